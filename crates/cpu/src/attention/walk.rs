//! Which pages are read, and which are asked for meanwhile.

use super::arithmetic::LINE;
use super::kernel::Work;
use super::tile::{BLOCK, Base, TILE};
use crate::simd::Simd;

/// The halves of a tile.
pub(super) const KEYS: usize = 0;
pub(super) const VALUES: usize = 1;

/// The block that is read first.
pub(super) fn first_block<'a, 'b>(heads: &'a [Work<'b>]) -> (&'a [Work<'b>], usize) {
    (heads, heads[0].tiles().start / BLOCK)
}

/// Bytes whose places are looked up together: a line of a page table has those of eight times 4 KiB, and where a
/// hypervisor has no huge pages those of its guests are that small in truth.
const PLACES: usize = 32 << 10;

/// Every [`PLACES`] from one address to another, once; returns where the first behind them begin.
fn look_up_run<S: Simd>(mut at: *const u8, to: *const u8) -> *const u8 {
    while at < to {
        // SAFETY: a hint; the level is that of the kernel which calls this.
        unsafe { S::prefetch(at) };
        at = at.wrapping_add(PLACES - at.addr() % PLACES);
    }
    at
}

/// Where the tiles of a block lie and those of the next, and which runs of them are fetched while the block is read.
///
/// - Several heads lie behind each other, and memory is read faster in longer runs than those of one head: the values of
///   all heads are fetched while keys are read, then the keys of the next block, tile by tile.
/// - One head reads a block sooner than memory answers: the next block is fetched, keys and values of a tile in turn.
pub(super) struct Walk<'a, 'b> {
    pub(super) here: [Base; BLOCK],
    pub(super) next: [Base; BLOCK],
    heads: &'a [Work<'b>],
    /// Whose the next block is, if there is one in pages.
    pub(super) following: Option<&'a [Work<'b>]>,
    /// What is read.
    half: usize,
    /// The run that is fetched next: of a tile, and of which head, or which half of one head.
    tile: usize,
    part: usize,
}

impl<'a, 'b> Walk<'a, 'b> {
    /// Before the first block of `heads`.
    pub(super) fn new(heads: &'a [Work<'b>]) -> Self {
        let nowhere = [Base::NOWHERE; BLOCK];
        let mut walk =
            Self { here: nowhere, next: nowhere, heads, following: None, half: KEYS, tile: 0, part: 0 };
        walk.look_at(Some(first_block(heads)));
        walk
    }

    /// On to the next block; `next` is the one after it.
    pub(super) fn step(&mut self, next: Option<(&'a [Work<'b>], usize)>) {
        self.here = self.next;
        self.look_at(next);
        (self.tile, self.part) = (0, 0);
        self.half(KEYS);
    }

    /// Has the processor look up where the next block lies. A request for a page that was not looked up holds up all
    /// that comes after it; these, all at once, hardly longer than one of them.
    pub(super) fn look_up<S: Simd>(&self) {
        let Some(heads) = self.following else { return };
        let (first, last) = (&heads[0].pages, &heads[heads.len() - 1].pages);
        if !first.scattered() {
            return;
        }
        for base in &self.next {
            let (from, to) = (first.tile(base), last.tile(base));
            let behind = to.rows[VALUES].wrapping_add(TILE * last.row_bytes);
            let unknown = look_up_run::<S>(from.rows[KEYS], behind);
            let behind = to.parameters[VALUES].wrapping_add(TILE * last.parameter_bytes);
            look_up_run::<S>(from.parameters[KEYS].max(unknown), behind);
        }
    }

    fn look_at(&mut self, next: Option<(&'a [Work<'b>], usize)>) {
        let next = next.filter(|(heads, _)| heads[0].pages.fills_pages());
        if let Some((heads, block)) = next {
            self.next = heads[0].pages.block(block, &heads[0].tiles());
        }
        self.following = next.map(|(heads, _)| heads);
    }

    /// From now on this half is read.
    pub(super) fn half(&mut self, half: usize) {
        self.half = half;
        if self.heads.len() > 1 {
            (self.tile, self.part) = (0, 0);
        }
    }

    /// How many runs of the next block were fetched: of keys, or of keys and values in turn for one head.
    pub(super) fn fetched(&self) -> usize {
        match self.following.map(<[_]>::len) {
            // One head has its runs counted otherwise than several: what was fetched for the others is fetched again.
            Some(heads) if (heads > 1) == (self.heads.len() > 1) => {
                self.tile * if heads > 1 { heads } else { 2 } + self.part
            }
            _ => 0,
        }
    }

    /// Of the first block, so many runs were [`fetched`](Self::fetched): has the others of head `i + 1` fetched, and if
    /// `i` is the first head those of that one too.
    pub(super) fn fetch_first<S: Simd>(&self, heads: &[Work<'_>], i: usize, fetched: usize) {
        if !heads[0].pages.fills_pages() {
            return;
        }
        let (from, one) = (if i == 0 { 0 } else { i + 1 }, heads.len() == 1);
        for (head, work) in heads.iter().enumerate().take(i + 2).skip(from) {
            for (tile, base) in self.here.iter().enumerate() {
                let [keys, values] = work.pages.tile(base).rows;
                let runs = if one {
                    &[(keys, 2 * tile), (values, 2 * tile + 1)][..]
                } else {
                    &[(keys, tile * heads.len() + head)]
                };
                for (rows, _) in runs.iter().filter(|(_, run)| *run >= fetched) {
                    for byte in (0..TILE * work.pages.row_bytes).step_by(LINE) {
                        // SAFETY: a hint; the level is that of the kernel which calls this.
                        unsafe { S::prefetch(rows.wrapping_add(byte)) };
                    }
                }
            }
        }
    }

    /// The rows that are fetched next, if there are any.
    #[inline(always)]
    pub(super) fn fetch(&mut self) -> Option<*const u8> {
        let several = self.heads.len() > 1;
        let (tiles, heads) = if several && self.half == KEYS {
            (&self.here, self.heads)
        } else {
            (&self.next, self.following?)
        };
        let (head, half, parts) =
            if several { (self.part, VALUES - self.half, heads.len()) } else { (0, self.part, 2) };
        let pages = &heads[head].pages;
        let tile = tiles.get(self.tile).filter(|_| pages.fills_pages())?;
        self.part += 1;
        if self.part == parts {
            (self.tile, self.part) = (self.tile + 1, 0);
        }
        Some(pages.tile(tile).rows[half])
    }
}
