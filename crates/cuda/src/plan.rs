//! How attention over a batch is cut into blocks: which rows, which tiles.

use crate::batch::Tables;
use crate::device::Device;
use crate::kernels::AttentionOptions;
use crate::load::Load;
use crate::memory::{Memory, Plain};
use octavo_backend::{AttentionSpec, BackendError, PageLayout};
use std::sync::Arc;

/// Positions of a tile.
const TILE: u32 = 16;
/// Tiles of a part where bits may not depend on the batch.
const FIXED_PART: u32 = 32;
/// Shared memory of a multiprocessor that blocks may have, of which each takes 1 KiB more than it asks for.
const SHARED: usize = 227 << 10;

/// What, beside the tables, a plan depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlanKey {
    pub(crate) window: u32,
    pub(crate) kv_heads: usize,
    pub(crate) group: usize,
    pub(crate) head_dim: usize,
    pub(crate) element_bytes: usize,
    pub(crate) deterministic: bool,
    pub(crate) tuning: Tuning,
}

/// What is chosen by measurement; 0 is for what this file chooses, or `Load` where nothing says how to cut.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tuning {
    pub part_tiles: u32,
    pub warps: usize,
    pub stages: usize,
    pub min_blocks: usize,
}

impl PlanKey {
    pub(crate) fn new(
        spec: &AttentionSpec,
        layout: &PageLayout,
        deterministic: bool,
        tuning: Tuning,
    ) -> Self {
        Self {
            window: spec.window.unwrap_or(0),
            kv_heads: spec.heads.kv,
            group: spec.heads.group(),
            head_dim: spec.heads.dim,
            element_bytes: layout.element_bytes(),
            deterministic,
            tuning,
        }
    }

    fn first_seen(&self, position: u32) -> u32 {
        if self.window == 0 { 0 } else { (position + 1).saturating_sub(self.window) }
    }

    /// Eights of columns for rows of decoding, and for chunks.
    fn blocks(&self) -> [usize; 2] {
        let narrow = self.group.div_ceil(8);
        [narrow, narrow.max(if self.head_dim > 128 { 2 } else { 4 })]
    }

    fn options(&self, blocks: usize, small_pages: bool, measured: Tuning) -> AttentionOptions {
        let asked = self.tuning;
        let or = |chosen: usize, usual: usize| if chosen == 0 { usual } else { chosen };
        let warps =
            or(or(asked.warps, measured.warps), if 8 * self.stage_bytes() < SHARED - 1024 { 4 } else { 2 });
        let most = (SHARED - 1024) / self.stage_bytes() / warps;
        let usual = if blocks > 2 { most.min(3) } else { (most / 2).clamp(2, 6).min(most) };
        let stages = or(or(asked.stages, measured.stages), usual).clamp(2, most.max(2));
        let fits = SHARED / (warps * stages * self.stage_bytes() + 1024);
        let min_blocks =
            or(or(asked.min_blocks, measured.min_blocks), if blocks > 1 { 1 } else { fits.clamp(1, 2) });
        AttentionOptions { blocks, warps, stages, min_blocks, small_pages }
    }

    /// As in `cu/tile.cuh`.
    fn stage_bytes(&self) -> usize {
        let units = self.head_dim * self.element_bytes / 16;
        2 * TILE as usize * 16 * (units | 1) + if self.element_bytes == 1 { 128 } else { 0 }
    }

    /// Bytes of shared memory: the rings, and over them, at the end, the warps' results.
    fn shared_bytes(&self, options: &AttentionOptions) -> usize {
        let rings = options.warps * options.stages * self.stage_bytes();
        let results = options.warps * options.blocks * 8 * (self.head_dim + 2) * 4;
        // A matrix load of an odd number of 16-byte units reads one unit on.
        rings.max(results) + 16
    }
}

/// `Item` of `cu/attention.cuh`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct Item {
    row: i32,
    rows: i32,
    position: i32,
    table: i32,
    tile0: i32,
    tile1: i32,
    first_part: i32,
    part: i32,
    parts: i32,
    counter: i32,
    unused: [i32; 2],
}

// SAFETY: twelve numbers of four bytes.
unsafe impl Plain for Item {}

/// One launch: all items have the same options.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) options: AttentionOptions,
    pub(crate) shared: usize,
    pub(crate) items: Memory,
    pub(crate) count: usize,
    /// Parts that are merged, of all items; 0 where none is.
    pub(crate) parts: usize,
    /// Items of several parts.
    pub(crate) counters: usize,
}

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) launches: Vec<Launch>,
}

/// Rows of one sequence that one block takes, against all tiles they see.
#[derive(Clone, Copy, Debug)]
struct Work {
    row: usize,
    rows: usize,
    position: u32,
    table: i32,
    tiles: [u32; 2],
}

impl Plan {
    pub(crate) fn new(device: &Arc<dyn Device>, key: PlanKey, tables: &Tables) -> Result<Self, BackendError> {
        let [narrow, wide] = key.blocks();
        let small_pages = !tables.page_size.is_multiple_of(TILE as usize);
        let mut launches = Vec::new();
        for (blocks, decoding) in [(narrow, true), (wide, false)] {
            let work = work_of(&key, tables, 8 * blocks / key.group, decoding);
            if work.is_empty() {
                continue;
            }
            let load = Load::new(work.iter().map(|w| w.tiles[1] - w.tiles[0]), key.kv_heads);
            let fast = decoding && blocks == 1 && !key.deterministic && key.tuning.part_tiles == 0;
            let measured = if fast { load.tuning(&key, device.processors()) } else { Tuning::default() };
            let options = key.options(blocks, small_pages, measured);
            let items =
                items(&key, &work, decoding, load.part_tiles(device.processors() * options.min_blocks));
            let parts = items.iter().filter(|item| item.parts > 1).count();
            let counters = items.iter().map(|item| item.counter + 1).max().unwrap_or(0) as usize;
            let shared = key.shared_bytes(&options);
            let count = items.len();
            let items = Memory::of(device, &items)?;
            launches.push(Launch { options, shared, items, count, parts, counters });
        }
        Ok(Self { launches })
    }
}

/// The rows of spans of one row (decoding) or of more, at most `most` together.
fn work_of(key: &PlanKey, tables: &Tables, most: usize, decoding: bool) -> Vec<Work> {
    let mut work = Vec::new();
    for (span, table) in tables.spans.iter().zip(tables.origins()) {
        if span.rows == 0 || (span.rows == 1) != decoding {
            continue;
        }
        for first in (0..span.rows).step_by(most) {
            let rows = most.min(span.rows - first);
            let position = span.start + first as u32;
            let tiles = [key.first_seen(position) / TILE, (position + rows as u32).div_ceil(TILE)];
            work.push(Work { row: span.first_row + first, rows, position, table, tiles });
        }
    }
    // The longest first: what is left at the end is short.
    work.sort_by_key(|w| std::cmp::Reverse(w.tiles[1] - w.tiles[0]));
    work
}

/// `usual` is the size of parts where nothing else says it.
fn items(key: &PlanKey, work: &[Work], decoding: bool, usual: u32) -> Vec<Item> {
    let part = match (key.deterministic, decoding, key.tuning.part_tiles) {
        (true, _, 0) => FIXED_PART,
        (true, _, tiles) => tiles,
        (false, false, _) => u32::MAX,
        (false, true, 0) => usual,
        (false, true, tiles) => tiles,
    };
    let (mut items, mut first_part, mut counter) = (Vec::new(), 0, 0);
    for w in work {
        let ranges = ranges(w.tiles, part, key.deterministic);
        let parts = ranges.len() as i32;
        for (number, [tile0, tile1]) in (0..).zip(ranges) {
            items.push(Item {
                row: w.row as i32,
                rows: w.rows as i32,
                position: w.position as i32,
                table: w.table,
                tile0: tile0 as i32,
                tile1: tile1 as i32,
                first_part,
                part: number,
                parts,
                counter,
                unused: [0; 2],
            });
        }
        if parts > 1 {
            first_part += parts;
            counter += 1;
        }
    }
    items
}

/// Ranges of about `part` tiles: of equal length, or cut at its multiples where bits may not depend on the range.
fn ranges([from, to]: [u32; 2], part: u32, fixed: bool) -> Vec<[u32; 2]> {
    let mut ranges = Vec::new();
    let mut at = from;
    let step = (to - from).div_ceil((to - from).div_ceil(part));
    while at < to {
        let end = if fixed { (at / part + 1) * part } else { at + step };
        ranges.push([at, end.min(to)]);
        at = end;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_the_tiles_once_and_in_order() {
        for (from, to, part, fixed) in
            [(0, 1, 32, true), (5, 100, 32, true), (0, 256, 16, false), (3, 50, 7, false)]
        {
            let ranges = ranges([from, to], part, fixed);
            assert_eq!((ranges[0][0], ranges[ranges.len() - 1][1]), (from, to));
            assert!(ranges.windows(2).all(|pair| pair[0][1] == pair[1][0]), "{ranges:?}");
            assert!(ranges.iter().all(|r| r[0] < r[1] && r[1] - r[0] <= part), "{ranges:?}");
            assert!(!fixed || ranges.iter().skip(1).all(|r| r[0] % part == 0), "{ranges:?}");
        }
    }
}
