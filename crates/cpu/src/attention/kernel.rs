//! The fused kernel: some rows of one span against one kv head.
//!
//! For each (row, query head): the blocks that the row sees, in order, are folded with an online softmax in base 2.
//! What positions that the row does not see hold never matters. None of this depends on how queries are blocked, so
//! neither do the bits.

use super::arithmetic::{Arithmetic, Block, Shape, slots_in, tiles_of};
use super::scratch::Scratch;
use super::softmax::{Parameters, within};
use super::tile::{BLOCK, HeadPages, TILE, TileAt};
use super::walk::{KEYS, VALUES, Walk, first_block};
use crate::simd::Simd;
use std::ops::Range;

/// What one task computes. Query `i` is head `i % heads` of row `i / heads`.
pub(crate) struct Work<'a> {
    /// `[rows]` of `[heads, dim]`, `q_stride` apart.
    pub(crate) q: *const f32,
    pub(crate) q_stride: usize,
    /// `[rows]` of `[heads, dim]`, `out_stride` apart.
    pub(crate) out: *mut f32,
    pub(crate) out_stride: usize,
    pub(crate) rows: usize,
    pub(crate) heads: usize,
    pub(crate) dim: usize,
    /// Position of the first row.
    pub(crate) start: usize,
    pub(crate) window: usize,
    pub(crate) scale: f32,
    pub(crate) pages: HeadPages<'a>,
}

impl Work<'_> {
    /// Positions that row `row` sees.
    fn seen(&self, row: usize) -> Range<usize> {
        let end = self.start + row + 1;
        end.saturating_sub(self.window)..end
    }

    /// Tiles that any row sees some of.
    pub(super) fn tiles(&self) -> Range<usize> {
        self.seen(0).start / TILE..self.seen(self.rows - 1).end.div_ceil(TILE)
    }
}

/// All slots of a block.
const WHOLE: Range<usize> = 0..BLOCK * TILE;

/// Slots of the block at position `at` that a row seeing `seen` sees.
fn slots(seen: &Range<usize>, at: usize) -> Range<usize> {
    let most = BLOCK * TILE;
    seen.start.saturating_sub(at).min(most)..seen.end.saturating_sub(at).min(most)
}

/// A task, and what comes after it on the same thread.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'a, 'b> {
    /// Some kv heads of the same rows.
    pub(crate) heads: &'a [Work<'b>],
    /// Runs of their first block that the turn before this one had fetched.
    pub(crate) fetched: usize,
    pub(crate) following: Option<&'a [Work<'b>]>,
}

/// Computes a task, block by block: the scores of a block, of all heads, then its weighted values. While keys are read the
/// values are fetched, and while those are read the keys of the next block: at the end the first of what follows. How
/// many runs of it, is returned.
///
/// # Safety
/// As [`Arithmetic`]; the pointers of the heads are valid for their shapes, and no other task writes to their `out`; the
/// table holds every position that the rows see; `A` is for the precision of the pages.
#[inline(always)]
pub(crate) unsafe fn run<A: Arithmetic>(turn: Turn<'_, '_>) -> usize {
    let Turn { heads, fetched, following } = turn;
    let mut all: Vec<Scratch> = heads.iter().map(scratch::<A>).collect();
    let seen = heads[0].tiles();
    let (first, last) = (seen.start / BLOCK, (seen.end - 1) / BLOCK);
    // SAFETY: as the caller promised; scratch has room for the queries.
    unsafe {
        for (work, scratch) in heads.iter().zip(&mut all) {
            load_queries::<A>(work, scratch);
        }
        let mut walk = Walk::new(heads);
        for block in first..=last {
            walk.step(if block < last { Some((heads, block + 1)) } else { following.map(first_block) });
            walk.look_up::<A::S>();
            for (i, scratch) in all.iter_mut().enumerate() {
                if block == first {
                    walk.fetch_first::<A::S>(heads, i, fetched);
                }
                fold::<A, KEYS>(heads, i, block, &seen, &mut walk, scratch);
            }
            walk.half(VALUES);
            for (i, scratch) in all.iter_mut().enumerate() {
                fold::<A, VALUES>(heads, i, block, &seen, &mut walk, scratch);
            }
        }
        for (work, scratch) in heads.iter().zip(&mut all) {
            store_outputs::<A>(work, scratch);
        }
        walk.fetched()
    }
}

fn scratch<A: Arithmetic>(work: &Work<'_>) -> Scratch {
    let queries = work.rows * work.heads;
    let staged = queries >= A::STAGE_FROM || !(A::PADS || work.dim.is_multiple_of(A::STEP));
    let copied = if work.pages.whole_tiles() { 0 } else { BLOCK * work.pages.copy_bytes() };
    Scratch::new(queries, work.dim, A::STEP, staged, copied)
}

#[inline(always)]
unsafe fn load_queries<A: Arithmetic>(work: &Work<'_>, scratch: &mut Scratch) {
    let (scale, width) = (work.scale * std::f32::consts::LOG2_E, scratch.width());
    for query in 0..work.rows * work.heads {
        let to = scratch.query(query);
        // SAFETY: a query of the caller's, and its row of scratch.
        unsafe {
            let from = work.q.add(query / work.heads * work.q_stride + query % work.heads * work.dim);
            A::load_query(from, work.dim, scale, to, width, &mut scratch.states[query]);
        }
    }
}

#[inline(always)]
unsafe fn store_outputs<A: Arithmetic>(work: &Work<'_>, scratch: &mut Scratch) {
    for query in 0..work.rows * work.heads {
        // SAFETY: this task alone writes these outputs.
        unsafe {
            let to = work.out.add(query / work.heads * work.out_stride + query % work.heads * work.dim);
            let (shift, factor) = scratch.states[query].finish::<A::S>();
            let (from, width) = (scratch.output(query), scratch.width());
            A::arrange(from, width);
            for i in 0..work.dim {
                *to.add(i) = (*from.add(i) + shift) * factor;
            }
        }
    }
}

/// Half of what folds block `block` into the state of all queries of head `i` that see some of it: scores of its keys, or
/// their softmax and the values. `seen`: tiles that any row sees.
#[inline(always)]
unsafe fn fold<A: Arithmetic, const HALF: usize>(
    heads: &[Work<'_>],
    i: usize,
    block: usize,
    seen: &Range<usize>,
    walk: &mut Walk<'_, '_>,
    scratch: &mut Scratch,
) {
    let (work, at) = (&heads[i], block * BLOCK * TILE);
    let shape = Shape { row_bytes: work.pages.row_bytes, dim: work.dim, width: scratch.width() };
    // SAFETY: as the caller promised.
    unsafe {
        let here = if work.pages.whole_tiles() {
            walk.here.map(|base| work.pages.tile(&base))
        } else {
            copied::<HALF>(work, block, seen, scratch)
        };
        let mut form = Block::new(here.map(|here| here.rows[HALF]), shape);
        fetch::<A, HALF>(walk, i, &mut form, tiles_of(&slots(&(seen.start * TILE..seen.end * TILE), at)));
        if scratch.stages {
            let all = slots(&work.seen(0), at).start..slots(&work.seen(work.rows - 1), at).end;
            for tile in tiles_of(&all) {
                let (from, slots, to) = (form.tile(tile), slots_in(&all, tile), scratch.staged(tile)[HALF]);
                if HALF == KEYS {
                    A::stage_keys(&from, to)
                } else {
                    A::stage_values(&from, &slots, to)
                }
                form.staged[tile] = to;
            }
        }
        // Rows that all see the whole block go together, others one by one.
        let whole = |row| slots(&work.seen(row), at) == (0..BLOCK * TILE);
        let step = if whole(0) && whole(work.rows - 1) { work.rows } else { 1 };
        for row in (0..work.rows).step_by(step) {
            let slots = slots(&work.seen(row), at);
            if !slots.is_empty() {
                let queries = row * work.heads..(row + step) * work.heads;
                fold_queries::<A, HALF>(&mut form, &here, &slots, queries, scratch);
            }
        }
    }
}

/// The tiles of block `block` among `seen`, copied when the keys are needed; others stand for nothing.
unsafe fn copied<const HALF: usize>(
    work: &Work<'_>,
    block: usize,
    seen: &Range<usize>,
    scratch: &mut Scratch,
) -> [TileAt; BLOCK] {
    let bytes = work.pages.copy_bytes();
    let to = scratch.copied(BLOCK * bytes);
    std::array::from_fn(|i| {
        let (tile, to) = (block * BLOCK + i, to.wrapping_add(i * bytes));
        if HALF == KEYS && seen.contains(&tile) {
            // SAFETY: scratch has room for the copies of a block.
            unsafe { work.pages.copy(tile, to) };
        }
        work.pages.copied(tile.clamp(seen.start, seen.end - 1), to)
    })
}

/// Has as much fetched as head `i` reads of the block: of these tiles of it.
#[inline(always)]
unsafe fn fetch<A: Arithmetic, const HALF: usize>(
    walk: &mut Walk<'_, '_>,
    i: usize,
    block: &mut Block,
    tiles: Range<usize>,
) {
    for tile in tiles {
        if let Some(rows) = walk.fetch() {
            block.fetch_later(tile, rows);
        }
    }
    if A::SCALED
        && HALF == VALUES
        && let Some(work) = walk.following.and_then(|heads| heads.get(i))
    {
        for base in &walk.next {
            // Sixteen times four bytes: in one line, or in two.
            for parameters in work.pages.tile(base).parameters {
                // SAFETY: as the caller promised.
                unsafe {
                    <A::S as Simd>::prefetch(parameters);
                    <A::S as Simd>::prefetch(parameters.wrapping_add(TILE * 4 - 1));
                }
            }
        }
    }
}

/// [`fold`] for `slots` of the block and `queries`.
#[inline(always)]
unsafe fn fold_queries<A: Arithmetic, const HALF: usize>(
    block: &mut Block,
    here: &[TileAt; BLOCK],
    slots: &Range<usize>,
    queries: Range<usize>,
    scratch: &mut Scratch,
) {
    // Most are: what is known to be whole is compiled into straight code.
    let (staged, whole) = (scratch.stages, *slots == WHOLE);
    // SAFETY: as the caller promised.
    unsafe {
        let parameters = if HALF == VALUES { parameters::<A>(here, slots) } else { None };
        let mut query = queries.start;
        while query < queries.end {
            let left = queries.end - query;
            // Few blocks are worth a kernel of their own; staged blocks have many queries, but for the last rows.
            let count = if left >= 4 {
                4
            } else if staged {
                1
            } else {
                left
            };
            match (count, staged, whole) {
                (4, false, true) => {
                    fold_some::<A, 4, false, HALF>(block, &WHOLE, &parameters, query, scratch)
                }
                (4, false, false) => {
                    fold_some::<A, 4, false, HALF>(block, slots, &parameters, query, scratch)
                }
                (3, false, _) => fold_some::<A, 3, false, HALF>(block, slots, &parameters, query, scratch),
                (2, false, true) => {
                    fold_some::<A, 2, false, HALF>(block, &WHOLE, &parameters, query, scratch)
                }
                (2, false, false) => {
                    fold_some::<A, 2, false, HALF>(block, slots, &parameters, query, scratch)
                }
                (_, false, _) => fold_some::<A, 1, false, HALF>(block, slots, &parameters, query, scratch),
                (4, true, _) => fold_some::<A, 4, true, HALF>(block, slots, &parameters, query, scratch),
                (_, true, _) => fold_some::<A, 1, true, HALF>(block, slots, &parameters, query, scratch),
            }
            block.ahead = [0; BLOCK];
            query += count;
        }
    }
}

/// Those of the seen slots; numbers in the others too, whatever is stored there.
#[inline(always)]
unsafe fn parameters<A: Arithmetic>(
    here: &[TileAt; BLOCK],
    slots: &Range<usize>,
) -> Option<[Parameters<A::S>; BLOCK]> {
    if !A::SCALED {
        return None;
    }
    // SAFETY: as the caller promised: sixteen parameters of a tile may be read.
    unsafe {
        let zero = [<A::S as Simd>::splat(0.0); 2];
        let mut all = [Parameters { keys: zero, values: zero }; BLOCK];
        for tile in tiles_of(slots) {
            let slots = slots_in(slots, tile);
            let [keys, values] = here[tile].parameters;
            let (keys, values) = (A::parameters(keys), A::parameters(values));
            all[tile] = Parameters {
                keys: [within::<A::S>(keys[0], &slots, 1.0), within::<A::S>(keys[1], &slots, 0.0)],
                values: [within::<A::S>(values[0], &slots, 1.0), within::<A::S>(values[1], &slots, 0.0)],
            };
        }
        Some(all)
    }
}

/// [`fold`] for `Q` queries from `first` on.
#[inline(always)]
unsafe fn fold_some<A: Arithmetic, const Q: usize, const STAGED: bool, const HALF: usize>(
    block: &Block,
    slots: &Range<usize>,
    parameters: &Option<[Parameters<A::S>; BLOCK]>,
    first: usize,
    scratch: &mut Scratch,
) {
    // SAFETY: as the caller promised; a line holds the scores of a tile.
    unsafe {
        if HALF == KEYS {
            let queries = std::array::from_fn(|i| scratch.query(first + i).cast_const());
            for tile in tiles_of(slots) {
                let scores = A::scores::<Q, STAGED>(&block.tile(tile), queries);
                for (i, scores) in scores.into_iter().enumerate() {
                    <A::S as Simd>::store(scratch.scores(first + i)[tile].0.as_mut_ptr(), scores);
                }
            }
            return;
        }
        let outputs: [_; Q] = std::array::from_fn(|i| scratch.output(first + i));
        let mut weights = [[<A::S as Simd>::splat(0.0); BLOCK]; Q];
        let width = block.shape.width;
        for i in 0..Q {
            for tile in tiles_of(slots) {
                weights[i][tile] = <A::S as Simd>::load(scratch.scores(first + i)[tile].0.as_ptr());
            }
            let state = &mut scratch.states[first + i];
            state.soften::<A::S>(&mut weights[i], slots, parameters.as_ref(), A::SHIFTED, outputs[i], width);
        }
        A::add_values::<Q, STAGED>(block, slots, &weights, outputs);
    }
}
