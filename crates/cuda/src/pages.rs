//! Pages as such: copies, zeros, rows in and out.

use crate::arena::{CudaArena, Place};
use crate::backend::Cuda;
use crate::device::Grid;
use crate::kernels::Kernel;
use crate::memory::{Memory, launch};
use octavo_backend::{BackendError, PageLayout, TableView, codec};
use octavo_types::{PageId, SlotId};
use std::collections::HashMap;
use std::ops::Range;

pub(crate) const COPY: Kernel = Kernel::new::<CopyArgs>("copy");
pub(crate) const ZERO: Kernel = Kernel::new::<ZeroArgs>("zero");
pub(crate) const ROWS: Kernel = Kernel::new::<RowsArgs>("rows");

#[repr(C)]
struct CopyArgs {
    arena: u64,
    copies: u64,
    page_bytes: u64,
    parameters: u64,
    page_size: u32,
    row_bytes: u32,
    parameter_bytes: u32,
    unused: i32,
}

#[repr(C)]
struct ZeroArgs {
    arena: u64,
    pages: u64,
    page_bytes: u64,
    parts: u64,
}

#[repr(C)]
struct RowsArgs {
    place: Place,
    slots: u64,
    packed: u64,
    kv_heads: u32,
    parameter_bytes: u32,
    store: i32,
    unused: i32,
}

impl Cuda {
    /// Copies that do not touch each other run together.
    pub(crate) fn run_copies(
        &self,
        arena: &mut CudaArena,
        copies: &[(PageId, PageId, usize)],
    ) -> Result<(), BackendError> {
        arena.check_pages(copies.iter().flat_map(|&(from, to, _)| [from, to]));
        let size = arena.layout().page_size;
        assert!(copies.iter().all(|copy| copy.2 <= size), "slots of pages of {size}");
        let mut rest = copies;
        while !rest.is_empty() {
            let (together, later) = rest.split_at(independent(rest));
            self.copy_together(arena, together)?;
            rest = later;
        }
        Ok(())
    }

    fn copy_together(
        &self,
        arena: &mut CudaArena,
        copies: &[(PageId, PageId, usize)],
    ) -> Result<(), BackendError> {
        let layout = *arena.layout();
        let list: Vec<u32> =
            copies.iter().flat_map(|&(from, to, slots)| [from.0, to.0, slots as u32]).collect();
        let list = Memory::of(&self.device, &list)?;
        let planes = layout.layers * 2 * layout.kv_heads;
        let args = CopyArgs {
            arena: arena.address(),
            copies: list.address(),
            page_bytes: layout.page_bytes() as u64,
            parameters: (planes * layout.page_size * layout.row_bytes()) as u64,
            page_size: layout.page_size as u32,
            row_bytes: layout.row_bytes() as u32,
            parameter_bytes: layout.parameter_bytes() as u32,
            unused: 0,
        };
        let grid = Grid::new(copies.len(), planes, 128);
        // SAFETY: pages and slots were checked by the caller; a block a plane of a copy, none reads what another writes.
        unsafe { launch(&*self.device, COPY, grid, &args) }
    }

    pub(crate) fn run_zero(&self, arena: &mut CudaArena, pages: &[PageId]) -> Result<(), BackendError> {
        arena.check_pages(pages.iter().copied());
        let ids: Vec<u32> = pages.iter().map(|page| page.0).collect();
        let ids = Memory::of(&self.device, &ids)?;
        let page_bytes = arena.layout().page_bytes();
        let parts = page_bytes.div_ceil(16 << 10);
        let args = ZeroArgs {
            arena: arena.address(),
            pages: ids.address(),
            page_bytes: page_bytes as u64,
            parts: parts as u64,
        };
        let grid = Grid::new(pages.len(), parts, 256);
        // SAFETY: the pages were checked, and the kernel stays within them.
        unsafe { launch(&*self.device, ZERO, grid, &args) }
    }

    pub(crate) fn run_gather(
        &self,
        arena: &CudaArena,
        layer: usize,
        table: TableView<'_>,
        positions: Range<u32>,
    ) -> Result<[Vec<f32>; 2], BackendError> {
        let layout = *arena.layout();
        let slots: Vec<(PageId, u32)> = positions.map(|position| locate(&layout, table, position)).collect();
        let packed = Memory::new(&self.device, slots.len() * packed_bytes(&layout))?;
        self.move_rows(arena, layer, &slots, &packed, false)?;
        let mut bytes = vec![0; packed.bytes()];
        packed.read(&mut bytes)?;
        Ok(decode_packed(&layout, &bytes))
    }

    pub(crate) fn run_scatter(
        &self,
        arena: &mut CudaArena,
        layer: usize,
        slots: &[SlotId],
        kv: [&[f32]; 2],
    ) -> Result<(), BackendError> {
        let layout = *arena.layout();
        let width = layout.kv_heads * layout.head_dim;
        assert!(kv.iter().all(|half| half.len() == slots.len() * width), "numbers for {} slots", slots.len());
        // Of several rows for one slot the last stays: blocks run in any order.
        let last: HashMap<SlotId, usize> = slots.iter().enumerate().map(|(i, &slot)| (slot, i)).collect();
        let stored = |i: &usize| last[&slots[*i]] == *i;
        let kept: Vec<usize> = (0..slots.len()).filter(stored).collect();
        let size = layout.page_size as u64;
        let place = |&i: &usize| {
            let page = u32::try_from(slots[i].0 / size).expect("a page of the arena");
            (PageId(page), (slots[i].0 % size) as u32)
        };
        let places: Vec<_> = kept.iter().map(place).collect();
        let encoded: Vec<u8> = kept
            .iter()
            .flat_map(|&i| encode_packed(&layout, kv.map(|half| &half[i * width..][..width])))
            .collect();
        let packed = Memory::of(&self.device, &encoded)?;
        self.move_rows(arena, layer, &places, &packed, true)
    }

    /// Between the arena and a packed buffer, see `cu/rows.cu`.
    fn move_rows(
        &self,
        arena: &CudaArena,
        layer: usize,
        slots: &[(PageId, u32)],
        packed: &Memory,
        store: bool,
    ) -> Result<(), BackendError> {
        let layout = arena.layout();
        arena.check_pages(slots.iter().map(|slot| slot.0));
        assert!(packed.bytes() >= slots.len() * packed_bytes(layout));
        let list: Vec<u32> = slots.iter().flat_map(|&(page, slot)| [page.0, slot]).collect();
        let list = Memory::of(&self.device, &list)?;
        let args = RowsArgs {
            place: arena.place(layer),
            slots: list.address(),
            packed: packed.address(),
            kv_heads: layout.kv_heads as u32,
            parameter_bytes: layout.parameter_bytes() as u32,
            store: i32::from(store),
            unused: 0,
        };
        let grid = Grid::new(slots.len(), 1, 128);
        // SAFETY: a block a slot; pages, layer (by `place`) and the packed buffer's size were checked.
        unsafe { launch(&*self.device, ROWS, grid, &args) }
    }
}

/// How many copies, from the first, neither read nor overwrite what one before them wrote, nor overwrite what one
/// reads.
pub(crate) fn independent(copies: &[(PageId, PageId, usize)]) -> usize {
    let (mut read, mut written) = (Vec::new(), Vec::new());
    copies
        .iter()
        .take_while(|(from, to, _)| {
            let free =
                !written.contains(&from) && !written.contains(&to) && !read.contains(&to) && from != to;
            let first = written.is_empty();
            read.push(from);
            written.push(to);
            free || first
        })
        .count()
}

fn locate(layout: &PageLayout, table: TableView<'_>, position: u32) -> (PageId, u32) {
    let size = layout.page_size as u32;
    let index = (position / size).checked_sub(table.first).expect("a page that has left the window");
    (table.pages[index as usize], position % size)
}

fn packed_bytes(layout: &PageLayout) -> usize {
    2 * layout.kv_heads * (layout.row_bytes() + layout.parameter_bytes())
}

/// One token: keys and values `[kv_heads, dim]`.
fn encode_packed(layout: &PageLayout, kv: [&[f32]; 2]) -> Vec<u8> {
    let mut out = vec![0; packed_bytes(layout)];
    let (rows, parameters) = out.split_at_mut(2 * layout.kv_heads * layout.row_bytes());
    let vectors = kv.into_iter().flat_map(|half| half.chunks(layout.head_dim));
    for (i, (vector, row)) in vectors.zip(rows.chunks_mut(layout.row_bytes())).enumerate() {
        let at = i * layout.parameter_bytes();
        codec::encode(layout.dtype, vector, row, &mut parameters[at..at + layout.parameter_bytes()]);
    }
    out
}

fn decode_packed(layout: &PageLayout, bytes: &[u8]) -> [Vec<f32>; 2] {
    let mut out = [Vec::new(), Vec::new()];
    let mut row = vec![0.0; layout.head_dim];
    for token in bytes.chunks(packed_bytes(layout)) {
        let (rows, parameters) = token.split_at(2 * layout.kv_heads * layout.row_bytes());
        for (i, encoded) in rows.chunks(layout.row_bytes()).enumerate() {
            let at = i * layout.parameter_bytes();
            codec::decode(layout.dtype, encoded, &parameters[at..at + layout.parameter_bytes()], &mut row);
            out[i / layout.kv_heads].extend_from_slice(&row);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::emulated;
    use octavo_backend::Backend;
    use octavo_types::{KvDtype, Pages};

    #[test]
    fn copies_that_touch_each_other_do_not_run_together() {
        let first = |copies: &[(u32, u32)]| {
            let of = |&(from, to): &(u32, u32)| (PageId(from), PageId(to), 16);
            independent(&copies.iter().map(of).collect::<Vec<_>>())
        };
        assert_eq!(first(&[(0, 1), (2, 3), (0, 4)]), 3, "of one page, several times");
        assert_eq!(first(&[(0, 1), (2, 3), (1, 4)]), 2, "of what was written");
        assert_eq!(first(&[(0, 1), (2, 1)]), 1, "to what was written");
        assert_eq!(first(&[(0, 1), (2, 0)]), 1, "to what is read");
        assert_eq!([first(&[(0, 0), (1, 2)]), first(&[])], [2, 0]);
    }

    /// Of two pages of sixteen tokens.
    fn with_arena(run: impl FnOnce(&Cuda, &mut CudaArena) -> Result<(), BackendError>) {
        let cuda = emulated(false);
        let dtype = KvDtype::F32;
        let layout = PageLayout { layers: 1, kv_heads: 1, page_size: 16, head_dim: 16, dtype };
        let mut arena = cuda.arena(layout, Pages(2)).unwrap();
        run(&cuda, &mut arena).unwrap();
    }

    #[test]
    #[should_panic(expected = "of 2 pages")]
    fn a_page_beyond_the_arena_is_not_copied() {
        with_arena(|cuda, arena| cuda.copy_pages(arena, &[(PageId(0), PageId(2), 16)]));
    }

    #[test]
    #[should_panic(expected = "slots of pages of 16")]
    fn more_slots_than_a_page_has_are_not_copied() {
        with_arena(|cuda, arena| cuda.copy_pages(arena, &[(PageId(0), PageId(1), 17)]));
    }

    #[test]
    #[should_panic(expected = "of 2 pages")]
    fn a_page_beyond_the_arena_is_not_zeroed() {
        with_arena(|cuda, arena| cuda.zero_pages(arena, &[PageId(2)]));
    }

    #[test]
    #[should_panic(expected = "of 2 pages")]
    fn nothing_is_written_at_a_slot_beyond_the_arena() {
        with_arena(|cuda, arena| cuda.scatter(arena, 0, &[SlotId(32)], [&[0.0; 16]; 2]));
    }
}
