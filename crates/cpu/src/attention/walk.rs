//! In which order a thread reads, and what it asks for ahead of that.

use super::arithmetic::LINE;
use super::kernel::Work;
use super::tile::{BLOCK, Base, TILE};
use crate::simd::{Asking, Simd};
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

/// Bytes whose places are looked up together: a line of a page table has those of eight times 4 KiB, and where a hypervisor
/// has no huge pages those of its guests are that small in truth.
const PLACES: usize = 32 << 10;

/// The runs of bytes that a thread reads one after another: sixteen keys or values of a head each.
///
/// Heads lie behind each other in a page, so all of a task's are read before the next tile: memory, and what the processor
/// asks for by itself, is fastest in long runs.
pub(super) struct Runs<'a, 'b> {
    asking: Asking,
    /// From the task of the next run on.
    tasks: &'a [Vec<Work<'b>>],
    /// Where the next run is, and which tiles of that half of the block come behind it.
    block: usize,
    at: Option<BlockAt>,
    half: usize,
    tiles: Range<usize>,
    /// The next run, how far it is to that of the next head, and of how many heads there are some.
    run: *const u8,
    head_bytes: usize,
    heads: usize,
    started: bool,
}

impl<'a, 'b> Runs<'a, 'b> {
    /// Those of `tasks`, if their tiles lie in pages.
    pub(super) fn new(tasks: &'a [Vec<Work<'b>>]) -> Self {
        let in_pages = tasks.iter().all(|heads| heads[0].pages.fills_pages());
        Self {
            asking: Asking::of_this_machine(),
            tasks: if in_pages { tasks } else { &[] },
            block: 0,
            at: None,
            half: KEYS,
            tiles: 0..0,
            run: std::ptr::null(),
            head_bytes: 0,
            heads: 0,
            started: false,
        }
    }

    pub(super) fn asking(&self) -> Asking {
        self.asking
    }

    /// To be called before a task is read: before the first, asks for as many runs as are to be on their way at any time.
    pub(super) fn start<S: Simd>(&mut self) {
        let Some(heads) = self.tasks.first().filter(|_| !self.started) else { return };
        let (bytes, asking) = (TILE * heads[0].pages.row_bytes, self.asking);
        self.started = true;
        self.begin::<S>(self.tasks);
        for run in (0..AHEAD.div_ceil(bytes)).map_while(|_| self.next::<S>()) {
            for byte in (0..bytes).step_by(LINE) {
                // SAFETY: a hint; the level is that of the kernel which calls this.
                unsafe { S::prefetch(run.wrapping_add(byte), asking) };
            }
        }
    }

    fn begin<S: Simd>(&mut self, tasks: &'a [Vec<Work<'b>>]) {
        self.tasks = tasks;
        match tasks.first() {
            Some(heads) => self.enter::<S>(heads[0].tiles().start / BLOCK),
            None => self.at = None,
        }
    }

    fn enter<S: Simd>(&mut self, block: usize) {
        let at = BlockAt::new(&self.tasks[0], block);
        if self.asking == Asking::Far {
            look_up::<S>(&self.tasks[0], &at);
        }
        (self.block, self.half, self.tiles) = (block, KEYS, at.tiles.clone());
        self.at = Some(at);
    }

    /// The run that is to be asked for next, if there is one.
    #[inline(always)]
    pub(super) fn next<S: Simd>(&mut self) -> Option<*const u8> {
        if self.heads == 0 && !self.next_tile::<S>() {
            return None;
        }
        self.heads -= 1;
        let run = self.run;
        self.run = run.wrapping_add(self.head_bytes);
        Some(run)
    }

    /// Goes on to the next tile, or to the next half, block or task. False if there is none.
    fn next_tile<S: Simd>(&mut self) -> bool {
        while let (Some(heads), Some(at)) = (self.tasks.first(), &self.at) {
            let Some(tile) = self.tiles.next() else {
                if self.half == KEYS {
                    (self.half, self.tiles) = (VALUES, at.tiles.clone());
                } else if at.tiles.end < heads[0].tiles().end {
                    self.enter::<S>(self.block + 1);
                } else {
                    self.begin::<S>(&self.tasks[1..]);
                }
                continue;
            };
            let pages = &heads[0].pages;
            self.run = pages.tile(at.base(tile)).rows[self.half];
            (self.head_bytes, self.heads) = (pages.head_bytes(), heads.len());
            if self.half == KEYS {
                self.ask_for_parameters::<S>(heads, at.base(tile));
            }
            return true;
        }
        false
    }

    /// Those of a tile: a head's in one line, or in two.
    fn ask_for_parameters<S: Simd>(&self, heads: &[Work<'_>], base: &Base) {
        let bytes = TILE * heads[0].pages.parameter_bytes;
        for work in heads.iter().filter(|_| bytes > 0) {
            for parameters in work.pages.tile(base).parameters {
                // SAFETY: a hint; the level is that of the kernel which calls this.
                unsafe {
                    S::prefetch(parameters, self.asking);
                    S::prefetch(parameters.wrapping_add(bytes - 1), self.asking);
                }
            }
        }
    }
}

/// Has the processor look up where a block lies that is in several pages.
fn look_up<S: Simd>(heads: &[Work<'_>], block: &BlockAt) {
    let (first, last) = (&heads[0].pages, &heads[heads.len() - 1].pages);
    if !first.scattered() {
        return;
    }
    for tile in block.tiles.clone() {
        let (from, to) = (first.tile(block.base(tile)), last.tile(block.base(tile)));
        let behind = to.rows[VALUES].wrapping_add(TILE * last.row_bytes);
        let unknown = look_up_run::<S>(from.rows[KEYS], behind);
        let behind = to.parameters[VALUES].wrapping_add(TILE * last.parameter_bytes);
        look_up_run::<S>(from.parameters[KEYS].max(unknown), behind);
    }
}

/// Every [`PLACES`] from one address to another, once; returns where the first behind them begin.
fn look_up_run<S: Simd>(mut at: *const u8, to: *const u8) -> *const u8 {
    while at < to {
        // SAFETY: a hint; the level is that of the kernel which calls this.
        unsafe { S::prefetch(at, Asking::Far) };
        at = at.wrapping_add(PLACES - at.addr() % PLACES);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arena;
    use crate::attention::tile::HeadPages;
    use crate::simd::Portable;
    use octavo_backend::{PageLayout, TableView};
    use octavo_types::{KvDtype, PageId, Pages};

    const LAYOUT: PageLayout =
        PageLayout { layers: 2, kv_heads: 3, page_size: 16, head_dim: 64, dtype: KvDtype::Int8 };

    /// A row of each of `heads` at position `start`, which sees `window` positions.
    fn task<'a>(
        arena: &Arena,
        pages: &'a [PageId],
        heads: Range<usize>,
        start: usize,
        window: usize,
    ) -> Vec<Work<'a>> {
        let work = |head| Work {
            q: std::ptr::null(),
            q_stride: 0,
            out: std::ptr::null_mut(),
            out_stride: 0,
            rows: 1,
            heads: 1,
            dim: 64,
            start,
            window,
            scale: 1.0,
            // SAFETY: the arena has the pages, and nothing is read.
            pages: unsafe { HeadPages::new(arena, 1, head, TableView { first: 0, pages }) },
        };
        heads.map(work).collect()
    }

    /// As the kernel reads them.
    fn read(tasks: &[Vec<Work<'_>>]) -> Vec<*const u8> {
        let mut runs = Vec::new();
        for heads in tasks {
            let seen = heads[0].tiles();
            for block in seen.start / BLOCK..seen.end.div_ceil(BLOCK) {
                let at = BlockAt::new(heads, block);
                for half in [KEYS, VALUES] {
                    for tile in at.tiles.clone() {
                        runs.extend(heads.iter().map(|work| work.pages.tile(at.base(tile)).rows[half]));
                    }
                }
            }
        }
        runs
    }

    #[test]
    fn what_is_asked_for_is_what_is_read_in_that_order_and_as_far_ahead_as_it_should_be() {
        let arena = Arena::new(LAYOUT, Pages(16)).unwrap();
        let pages = [9, 2, 14, 0, 7, 5, 11, 3, 12].map(PageId);
        let tasks = [
            task(&arena, &pages, 0..3, 140, usize::MAX),
            task(&arena, &pages[3..], 1..2, 4, usize::MAX),
            // From the middle of a block on.
            task(&arena, &pages, 0..2, 143, 40),
        ];
        let (read, ahead) = (read(&tasks), AHEAD / (TILE * 64));
        assert_eq!(read.len(), 2 * (9 * 3 + 1 + 3 * 2));
        for asking in [Asking::Near, Asking::Far] {
            let mut runs = Runs::new(&tasks);
            runs.asking = asking;
            runs.start::<Portable>();
            // Asked for once, whatever the number of tasks.
            runs.start::<Portable>();
            let next: Vec<_> = std::iter::from_fn(|| runs.next::<Portable>()).collect();
            assert_eq!(next, read[ahead..], "{asking:?}");
        }
    }

    #[test]
    fn nothing_is_asked_for_where_tiles_do_not_lie_in_pages() {
        let layout = PageLayout { page_size: 8, ..LAYOUT };
        let arena = Arena::new(layout, Pages(4)).unwrap();
        let tasks = [task(&arena, &[PageId(0), PageId(1)], 0..3, 15, usize::MAX)];
        let mut runs = Runs::new(&tasks);
        runs.start::<Portable>();
        assert_eq!(runs.next::<Portable>(), None);
    }
}
