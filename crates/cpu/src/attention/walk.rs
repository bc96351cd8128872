//! In which order a thread reads, and what it asks for ahead of that.

use super::arithmetic::LINE;
use super::kernel::Work;
use super::tile::{BLOCK, Base, TILE, TileAt};
use crate::simd::Simd;
use std::ops::Range;

/// The halves of a tile.
pub(super) const KEYS: usize = 0;
pub(super) const VALUES: usize = 1;

/// How many bytes are asked for before they are read: enough to wait for memory, and little enough to stay in the nearest
/// caches until then.
const AHEAD: usize = 32 << 10;

/// The tiles of a block that any row of a task sees, and where the pages have them.
#[derive(Clone)]
pub(super) struct BlockAt {
    pub(super) tiles: Range<usize>,
    bases: [Base; BLOCK],
}

impl BlockAt {
    /// Block `block` of a task.
    #[inline(always)]
    pub(super) fn new(heads: &[Work<'_>], block: usize) -> Self {
        let (seen, first) = (heads[0].tiles(), block * BLOCK);
        let tiles = first.max(seen.start)..(first + BLOCK).min(seen.end);
        let bases = match heads[0].pages.fills_pages() {
            true => heads[0].pages.block(block, &seen),
            false => [Base::NOWHERE; BLOCK],
        };
        Self { tiles, bases }
    }

    #[inline(always)]
    pub(super) fn base(&self, tile: usize) -> &Base {
        &self.bases[tile % BLOCK]
    }
}

/// The runs of bytes that a thread reads one after another: sixteen keys or values of a head each.
///
/// Heads lie behind each other in a page, so all of a task's are read before the next tile: memory, and what the processor
/// asks for by itself, is fastest in long runs.
pub(super) struct Runs<'a, 'b> {
    /// From the task of the next run on.
    tasks: &'a [Vec<Work<'b>>],
    block: usize,
    at: Option<BlockAt>,
    half: usize,
    tile: usize,
    head: usize,
    /// Runs that were asked for and not read yet.
    lead: usize,
}

impl<'a, 'b> Runs<'a, 'b> {
    /// Those of `tasks`, if their tiles lie in pages.
    pub(super) fn new(tasks: &'a [Vec<Work<'b>>]) -> Self {
        let mut runs = Self { tasks: &[], block: 0, at: None, half: KEYS, tile: 0, head: 0, lead: 0 };
        if tasks.iter().all(|heads| heads[0].pages.fills_pages()) {
            runs.begin(tasks);
        }
        runs
    }

    fn begin(&mut self, tasks: &'a [Vec<Work<'b>>]) {
        self.tasks = tasks;
        if let Some(heads) = tasks.first() {
            self.enter(heads[0].tiles().start / BLOCK);
        }
    }

    fn enter(&mut self, block: usize) {
        let at = BlockAt::new(&self.tasks[0], block);
        (self.block, self.half, self.tile) = (block, KEYS, at.tiles.start);
        self.at = Some(at);
    }

    /// Before the first run is read: asks for as many as are to be on their way at any time.
    pub(super) fn start<S: Simd>(&mut self) {
        let Some(heads) = self.tasks.first().filter(|_| self.lead == 0) else { return };
        let bytes = TILE * heads[0].pages.row_bytes;
        self.lead = AHEAD.div_ceil(bytes);
        for run in (0..self.lead).map_while(|_| self.next::<S>()) {
            for byte in (0..bytes).step_by(LINE) {
                // SAFETY: a hint; the level is that of the kernel which calls this.
                unsafe { S::prefetch(run.wrapping_add(byte)) };
            }
        }
    }

    /// The run that is to be asked for next, if there is one.
    #[inline(always)]
    pub(super) fn next<S: Simd>(&mut self) -> Option<*const u8> {
        let heads = self.tasks.first()?;
        let at = self.at.as_ref()?;
        let run = heads[self.head].pages.tile(at.base(self.tile));
        if self.half == KEYS {
            ask_for_parameters::<S>(&run, TILE * heads[0].pages.parameter_bytes);
        }
        let half = self.half;
        self.head += 1;
        if self.head == heads.len() {
            (self.head, self.tile) = (0, self.tile + 1);
            if self.tile == at.tiles.end {
                self.end_half();
            }
        }
        Some(run.rows[half])
    }

    fn end_half(&mut self) {
        let (Some(heads), Some(at)) = (self.tasks.first(), &self.at) else { return };
        if self.half == KEYS {
            (self.half, self.tile) = (VALUES, at.tiles.start);
        } else if at.tiles.end < heads[0].tiles().end {
            self.enter(self.block + 1);
        } else {
            self.at = None;
            self.begin(&self.tasks[1..]);
        }
    }
}

/// Those of a tile, `bytes` each: in one line, or in two.
#[inline(always)]
fn ask_for_parameters<S: Simd>(tile: &TileAt, bytes: usize) {
    if bytes > 0 {
        for parameters in tile.parameters {
            // SAFETY: a hint; the level is that of the kernel which calls this.
            unsafe {
                S::prefetch(parameters);
                S::prefetch(parameters.wrapping_add(bytes - 1));
            }
        }
    }
}
