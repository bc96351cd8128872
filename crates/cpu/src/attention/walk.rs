//! In which order a thread reads, and what it asks for ahead of that.

use super::arithmetic::{ABREAST, Ahead, LINE};
use super::kernel::Work;
use super::tile::{BLOCK, Base, TILE, TileAt};
use crate::simd::{Asking, Simd};
use std::ops::Range;

/// The halves of a tile.
pub(super) const KEYS: usize = 0;
pub(super) const VALUES: usize = 1;

/// How many bytes are asked for before they are read: enough to wait for memory, and little enough to stay in the nearest
/// caches until then.
const AHEAD: usize = 56 << 10;

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

    /// The tile that is read in the place of `tile`, should that not be seen.
    #[inline(always)]
    pub(super) fn nearest(&self, tile: usize) -> usize {
        tile.clamp(self.tiles.start, self.tiles.end - 1)
    }

    /// The tiles as they are read, abreast, whatever is seen: no bit may depend on that.
    #[inline(always)]
    pub(super) fn abreast(&self) -> impl Iterator<Item = [usize; ABREAST]> + use<> {
        let first = self.tiles.start / ABREAST..self.tiles.end.div_ceil(ABREAST);
        first.map(|i| [ABREAST * i, ABREAST * i + 1])
    }
}

/// Bytes whose places are looked up together: a line of a page table has those of eight times 4 KiB, and where a hypervisor
/// has no huge pages those of its guests are that small in truth.
const PLACES: usize = 32 << 10;

/// The runs of bytes that a thread reads: sixteen keys or values of a head each, of as many tiles as are read abreast.
///
/// Heads lie behind each other in a page, so all of a task's are read before the next tiles: memory, and what the processor
/// asks for by itself, is fastest in long runs.
pub(super) struct Runs<'a, 'b> {
    asking: Asking,
    /// From the task of the next run on.
    tasks: &'a [Vec<Work<'b>>],
    /// Where the next runs are, and at which tile of that half of the block those behind them begin.
    block: usize,
    at: Option<BlockAt>,
    half: usize,
    tile: usize,
    /// The next runs, how far it is to those of the next head, and of how many heads there are some.
    next: Ahead,
    head_bytes: usize,
    heads: usize,
    /// Parameters of their tiles, and how many bytes a position and a head of them have.
    parameters: [[*const u8; 2]; ABREAST],
    parameter_bytes: usize,
    head_parameters: usize,
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
            tile: 0,
            next: Ahead::in_turn([std::ptr::null(); ABREAST], Asking::Near),
            head_bytes: 0,
            heads: 0,
            parameters: [[std::ptr::null(); 2]; ABREAST],
            parameter_bytes: 0,
            head_parameters: 0,
            started: false,
        }
    }

    pub(super) fn asking(&self) -> Asking {
        self.asking
    }

    /// To be called before a task is read: before the first, asks for as many runs as are to be on their way at any time.
    pub(super) fn start<S: Simd>(&mut self) {
        let Some(heads) = self.tasks.first().filter(|_| !self.started) else { return };
        let lines = (TILE * heads[0].pages.row_bytes).div_ceil(LINE);
        self.started = true;
        self.begin::<S>(self.tasks);
        for mut runs in (0..AHEAD.div_ceil(ABREAST * lines * LINE)).map_while(|_| self.next::<S>()) {
            // SAFETY: hints; the level is that of the kernel which calls this.
            unsafe { runs.ask::<S>(lines) };
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
        (self.block, self.half, self.tile) = (block, KEYS, at.tiles.start);
        self.at = Some(at);
    }

    /// The runs that are to be asked for next, if there are some.
    #[inline(always)]
    pub(super) fn next<S: Simd>(&mut self) -> Option<Ahead> {
        if self.heads == 0 && !self.next_tiles::<S>() {
            return None;
        }
        self.heads -= 1;
        if self.half == KEYS && self.parameter_bytes > 0 {
            self.ask_for_parameters::<S>();
        }
        let next = self.next;
        self.next = next.further(self.head_bytes);
        Some(next)
    }

    /// Goes on to the next tiles, or to the next half, block or task. False if there is none.
    fn next_tiles<S: Simd>(&mut self) -> bool {
        while let (Some(heads), Some(at)) = (self.tasks.first(), &self.at) {
            if self.tile >= at.tiles.end {
                if self.half == KEYS {
                    (self.half, self.tile) = (VALUES, at.tiles.start);
                } else if at.tiles.end < heads[0].tiles().end {
                    self.enter::<S>(self.block + 1);
                } else {
                    self.begin::<S>(&self.tasks[1..]);
                }
                continue;
            }
            let (pages, first) = (&heads[0].pages, self.tile / ABREAST * ABREAST);
            self.tile = first + ABREAST;
            let mut runs = [std::ptr::null(); ABREAST];
            for (t, run) in runs.iter_mut().enumerate() {
                let TileAt { rows, parameters } = pages.tile(at.base(first + t));
                (*run, self.parameters[t]) = (rows[self.half], parameters);
            }
            self.next = match pages.scattered() {
                true => Ahead::in_turn(runs, self.asking),
                false => Ahead::in_order(runs[0], self.asking),
            };
            (self.head_bytes, self.heads) = (pages.head_bytes(), heads.len());
            (self.parameter_bytes, self.head_parameters) = (pages.parameter_bytes, pages.head_parameters());
            return true;
        }
        false
    }

    /// Those of the next head: in one line a tile and half, or in two.
    #[inline(always)]
    fn ask_for_parameters<S: Simd>(&mut self) {
        let (bytes, head) = (TILE * self.parameter_bytes, self.head_parameters);
        for parameters in self.parameters.as_flattened_mut() {
            // SAFETY: a hint; the level is that of the kernel which calls this.
            unsafe {
                S::prefetch(*parameters, self.asking);
                if parameters.addr() % LINE + bytes > LINE {
                    S::prefetch(parameters.wrapping_add(bytes - 1), self.asking);
                }
            }
            *parameters = parameters.wrapping_add(head);
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
    fn read(tasks: &[Vec<Work<'_>>], asking: Asking) -> Vec<Ahead> {
        let mut runs = Vec::new();
        for heads in tasks {
            let seen = heads[0].tiles();
            for block in seen.start / BLOCK..seen.end.div_ceil(BLOCK) {
                let at = BlockAt::new(heads, block);
                for half in [KEYS, VALUES] {
                    for tiles in at.abreast() {
                        let of =
                            |work: &Work<'_>, tile| work.pages.tile(at.base(at.nearest(tile))).rows[half];
                        runs.extend(
                            heads.iter().map(|work| Ahead::in_turn(tiles.map(|tile| of(work, tile)), asking)),
                        );
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
        let ahead = AHEAD / (ABREAST * TILE * 64);
        for asking in [Asking::Near, Asking::Far] {
            let read = read(&tasks, asking);
            assert_eq!(read.len(), 2 * (5 * 3 + 1 + 2 * 2));
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
    fn in_the_place_of_a_tile_that_nobody_sees_the_nearest_is_read() {
        let arena = Arena::new(LAYOUT, Pages(16)).unwrap();
        let pages: Vec<_> = (0..9).map(PageId).collect();
        // Tiles 6 to 8: the second half of a block, and the first of the next.
        let task = task(&arena, &pages, 0..2, 143, 40);
        for (block, read) in [(1, &[[6, 7]][..]), (2, &[[8, 8]])] {
            let at = BlockAt::new(&task, block);
            let tiles: Vec<_> = at.abreast().map(|tiles| tiles.map(|tile| at.nearest(tile))).collect();
            assert_eq!(tiles, read);
        }
        let at = BlockAt::new(&task, 1);
        assert_eq!([4, 5, 6, 7, 8].map(|tile| at.nearest(tile)), [6, 6, 6, 7, 7]);
    }

    #[test]
    fn every_line_is_asked_for_once_in_turn_in_pages_and_in_the_order_of_addresses_behind_each_other() {
        let arena = Arena::new(PageLayout { page_size: 64, ..LAYOUT }, Pages(2)).unwrap();
        let tasks = [task(&arena, &[PageId(1)], 0..2, 63, usize::MAX)];
        let pages = &tasks[0][0].pages;
        assert!(!pages.scattered());
        let tile = |i| BlockAt::new(&tasks[0], 0).base(i).to_owned();
        let (first, second) = (pages.tile(&tile(0)).rows, pages.tile(&tile(1)).rows);
        let mut runs = Runs::new(&tasks);
        runs.begin::<Portable>(&tasks);
        let (next, bytes) = (runs.next::<Portable>().unwrap(), TILE * 64);
        let passed = |mut ahead: Ahead| (0..bytes / LINE).flat_map(move |_| ahead.pass()).collect::<Vec<_>>();
        let in_order: Vec<_> = (0..2 * bytes).step_by(LINE).map(|at| first[KEYS].wrapping_add(at)).collect();
        assert_eq!(passed(next), in_order);
        assert_eq!(in_order[bytes / LINE], second[KEYS]);
        assert_eq!(runs.next::<Portable>().unwrap(), next.further(64 * 64), "the next head");

        let in_turn = passed(Ahead::in_turn([first[KEYS], second[VALUES]], Asking::Near));
        let of_each = [first[KEYS], second[VALUES]];
        let lines: Vec<_> =
            (0..bytes).step_by(LINE).flat_map(|at| of_each.map(|run| run.wrapping_add(at))).collect();
        assert_eq!(in_turn, lines);
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
