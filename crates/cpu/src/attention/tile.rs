use crate::Arena;
use crate::keys::KeyOrder;
pub(crate) use crate::keys::TILE;
use octavo_backend::{Half, TableView};
use std::ops::Range;

/// Tiles that are folded into the softmax at a time. Tiles and blocks are aligned to position 0, whatever the page size.
/// What is done once a block is a small part of the work then.
pub(crate) const BLOCK: usize = 4;

/// Where the rows of one kv head lie: the page table of a span, resolved to addresses.
#[derive(Clone, Copy)]
pub(crate) struct HeadPages<'a> {
    arena: *const u8,
    page_bytes: usize,
    page_size: usize,
    table: TableView<'a>,
    keys: KeyOrder,
    pub(crate) row_bytes: usize,
    pub(crate) parameter_bytes: usize,
    /// Offsets in the page: keys, values.
    rows_at: [usize; 2],
    parameters_at: [usize; 2],
}

/// Where a position lies, less where a head lies in its page.
#[derive(Clone, Copy)]
pub(crate) struct Base {
    rows: *const u8,
    parameters: *const u8,
}

impl Base {
    /// For pages that tiles do not fill.
    pub(crate) const NOWHERE: Self = Self { rows: std::ptr::null(), parameters: std::ptr::null() };
}

/// Sixteen positions of one kv head, each of its four parts in one run of bytes: all of them may be read.
#[derive(Clone, Copy)]
pub(crate) struct TileAt {
    /// `[TILE]` rows: keys, in the order of a tile, and values.
    pub(crate) rows: [*const u8; 2],
    /// `[TILE]` parameters.
    pub(crate) parameters: [*const u8; 2],
}

impl<'a> HeadPages<'a> {
    /// # Safety
    /// All pages that `table` lists are in the arena, which outlives what is made here.
    pub(crate) unsafe fn new(arena: &Arena, layer: usize, head: usize, table: TableView<'a>) -> Self {
        let layout = arena.layout();
        Self {
            arena: arena.as_ptr(),
            page_bytes: layout.page_bytes(),
            page_size: layout.page_size,
            table,
            keys: arena.keys(),
            row_bytes: layout.row_bytes(),
            parameter_bytes: layout.parameter_bytes(),
            rows_at: [Half::Key, Half::Value].map(|half| layout.rows_at(layer, half, head)),
            parameters_at: [Half::Key, Half::Value].map(|half| layout.parameters_at(layer, half, head)),
        }
    }

    /// Whether a tile lies within a page as it is read, so that it need not be copied.
    pub(crate) fn whole_tiles(&self) -> bool {
        self.fills_pages() && self.keys.is_in_tiles()
    }

    /// Whether a tile lies within a page.
    pub(crate) fn fills_pages(&self) -> bool {
        self.page_size.is_multiple_of(TILE)
    }

    /// Whether a block lies in several pages.
    pub(crate) fn scattered(&self) -> bool {
        self.fills_pages() && self.page_size < BLOCK * TILE
    }

    /// Bytes that [`copy`](Self::copy) needs.
    pub(crate) fn copy_bytes(&self) -> usize {
        if self.fills_pages() {
            TILE * self.row_bytes
        } else {
            2 * TILE * (self.row_bytes + self.parameter_bytes)
        }
    }

    /// The page of `position`, and the slot.
    #[inline(always)]
    fn page(&self, position: usize) -> (*const u8, usize) {
        // A division takes long, and most pages have sixteen positions.
        let (page, slot) = match self.page_size {
            TILE => (position / TILE, position % TILE),
            size => (position / size, position % size),
        };
        let page = self.table.pages[page - self.table.first as usize];
        // Addresses inside the arena, as `new` was promised.
        (self.arena.wrapping_add(page.index().wrapping_mul(self.page_bytes)), slot)
    }

    /// How far it is from the rows of a head to those of the next.
    pub(crate) fn head_bytes(&self) -> usize {
        self.page_size * self.row_bytes
    }

    /// The same of their parameters.
    pub(crate) fn head_parameters(&self) -> usize {
        self.page_size * self.parameter_bytes
    }

    /// Where the tile from `position` on lies, whatever the head.
    #[inline(always)]
    fn base(&self, position: usize) -> Base {
        let (page, slot) = self.page(position);
        Base {
            rows: page.wrapping_add(slot.wrapping_mul(self.row_bytes)),
            parameters: page.wrapping_add(slot.wrapping_mul(self.parameter_bytes)),
        }
    }

    /// The tiles of block `block` among `tiles`, which lie in pages; others are the nearest of those. Tiles must
    /// [fill pages](Self::fills_pages).
    #[inline(always)]
    pub(crate) fn block(&self, block: usize, tiles: &Range<usize>) -> [Base; BLOCK] {
        let mut bases = [Base::NOWHERE; BLOCK];
        for (i, base) in bases.iter_mut().enumerate() {
            *base = self.base((block * BLOCK + i).clamp(tiles.start, tiles.end - 1) * TILE);
        }
        bases
    }

    /// A tile of this head.
    #[inline(always)]
    pub(crate) fn tile(&self, base: &Base) -> TileAt {
        TileAt {
            rows: self.rows_at.map(|at| base.rows.wrapping_add(at)),
            parameters: self.parameters_at.map(|at| base.parameters.wrapping_add(at)),
        }
    }

    /// Copies to `to` what [`copied`](Self::copied) does not find in its page. A position that the table does not hold
    /// shows the nearest that it does.
    ///
    /// # Safety
    /// `to` has room for [`copy_bytes`](Self::copy_bytes).
    pub(crate) unsafe fn copy(&self, tile: usize, to: *mut u8) {
        let [plane, bytes] = [self.page_size, TILE].map(|slots| slots * self.row_bytes);
        // SAFETY: the caller gave room for sixteen keys.
        let keys = unsafe { std::slice::from_raw_parts_mut(to, bytes) };
        // SAFETY: the keys of a head in a page.
        let keys_in =
            |page: *const u8| unsafe { std::slice::from_raw_parts(page.add(self.rows_at[0]), plane) };
        if self.fills_pages() {
            let (page, slot) = self.page(tile * TILE);
            return self.keys.tile_of_rows(&keys_in(page)[slot * self.row_bytes..][..bytes], keys);
        }
        let copied = self.copied(tile, to);
        let first = self.table.first as usize;
        let held = [first * self.page_size, (first + self.table.pages.len()) * self.page_size];
        for i in 0..TILE {
            let (page, slot) = self.page((tile * TILE + i).clamp(held[0], held[1] - 1));
            self.keys.copy_key(keys_in(page), slot, &self.keys.one_tile(), keys, i);
            // SAFETY: rows and parameters of pages; the caller gave room for sixteen of them.
            unsafe {
                let value = page.add(self.rows_at[1] + slot * self.row_bytes);
                let to = copied.rows[1].cast_mut().add(i * self.row_bytes);
                value.copy_to_nonoverlapping(to, self.row_bytes);
                for half in 0..2 {
                    let from = page.add(self.parameters_at[half] + slot * self.parameter_bytes);
                    let to = copied.parameters[half].cast_mut().add(i * self.parameter_bytes);
                    from.copy_to_nonoverlapping(to, self.parameter_bytes);
                }
            }
        }
    }

    /// Where a tile lies that was copied to `to`: all of it, or its keys if the rest lies within a page.
    pub(crate) fn copied(&self, tile: usize, to: *mut u8) -> TileAt {
        if self.fills_pages() {
            let TileAt { rows, parameters } = self.tile(&self.base(tile * TILE));
            return TileAt { rows: [to.cast_const(), rows[1]], parameters };
        }
        let rows = [0, TILE * self.row_bytes].map(|at| to.wrapping_add(at).cast_const());
        let behind = to.wrapping_add(2 * TILE * self.row_bytes);
        let parameters = [0, TILE * self.parameter_bytes].map(|at| behind.wrapping_add(at).cast_const());
        TileAt { rows, parameters }
    }
}
