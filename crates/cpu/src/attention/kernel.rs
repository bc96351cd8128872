//! The fused kernel: some rows of one span against one kv head.
//!
//! For each (row, query head): the tiles that the row sees, in order, are folded with an online softmax in base 2.
//! What positions that the row does not see hold never matters. None of this depends on how queries are blocked, so
//! neither do the bits.

use super::arithmetic::{Arithmetic, Tile};
use super::scratch::Scratch;
use super::softmax::{Parameters, within};
use super::tile::{HeadPages, TILE, TileAt};
use crate::simd::Simd;
use std::ops::Range;

/// Tiles that memory has time for.
const AHEAD: usize = 2;
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
}

/// Slots of the tile at `at` that a row seeing `seen` sees.
fn slots(seen: &Range<usize>, at: usize) -> Range<usize> {
    seen.start.saturating_sub(at).min(TILE)..seen.end.saturating_sub(at).min(TILE)
}

/// Some kv heads of the same rows, tile by tile.
///
/// # Safety
/// As [`Arithmetic`]; the pointers of `heads` are valid for their shapes, and no other task writes to their `out`; the
/// table holds every position that the rows see; `A` is for the precision of the pages.
#[inline(always)]
pub(crate) unsafe fn run<A: Arithmetic>(heads: &[Work<'_>]) {
    let mut all: Vec<Scratch> = heads.iter().map(scratch::<A>).collect();
    let (first, last) = (heads[0].seen(0).start / TILE, (heads[0].start + heads[0].rows - 1) / TILE);
    // SAFETY: as the caller promised; scratch has room for the queries.
    unsafe {
        for (work, scratch) in heads.iter().zip(&mut all) {
            load_queries::<A>(work, scratch);
        }
        for tile in first..=last {
            for (i, (work, scratch)) in heads.iter().zip(&mut all).enumerate() {
                let (here, ahead) = if work.pages.whole_tiles() {
                    // Two on in this order.
                    let ahead = tile + (i + AHEAD) / heads.len();
                    (work.pages.tile(tile), heads[(i + AHEAD) % heads.len()].pages.tile(ahead.min(last)))
                } else {
                    let here = work.pages.copied(tile, scratch.copied(work.pages.copy_bytes()));
                    (here, here)
                };
                fold_tile::<A>(work, tile, here, ahead, scratch);
            }
        }
        for (work, scratch) in heads.iter().zip(&mut all) {
            store_outputs::<A>(work, scratch);
        }
    }
}

fn scratch<A: Arithmetic>(work: &Work<'_>) -> Scratch {
    let queries = work.rows * work.heads;
    let staged = queries >= A::STAGE_FROM || !(A::PADS || work.dim.is_multiple_of(A::STEP));
    let copied = if work.pages.whole_tiles() { 0 } else { work.pages.copy_bytes() };
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

/// Folds one tile into the state of all queries that see some of it.
#[inline(always)]
unsafe fn fold_tile<A: Arithmetic>(
    work: &Work<'_>,
    tile: usize,
    here: TileAt,
    ahead: TileAt,
    scratch: &mut Scratch,
) {
    let (at, staged, width) = (tile * TILE, scratch.stages, scratch.width());
    let mut form = Tile::new(here.rows, ahead.rows, work.pages.row_bytes, work.dim, width);
    // SAFETY: as the caller promised.
    unsafe {
        if A::SCALED {
            // Sixteen times four bytes: in one line, or in two.
            for parameters in ahead.parameters {
                <A::S as Simd>::prefetch(parameters);
                <A::S as Simd>::prefetch(parameters.wrapping_add(TILE * 4 - 1));
            }
        }
        if staged {
            let all = slots(&work.seen(0), at).start..slots(&work.seen(work.rows - 1), at).end;
            form.rows = scratch.staged().map(|row| row.cast_const().cast());
            form.stride = width * size_of::<f32>();
            A::stage(&mut form, &all, scratch.staged());
        }
        // Rows that all see the whole tile go together, others one by one.
        let whole = |row| slots(&work.seen(row), at) == (0..TILE);
        let step = if whole(0) && whole(work.rows - 1) { work.rows } else { 1 };
        for row in (0..work.rows).step_by(step) {
            let slots = slots(&work.seen(row), at);
            if !slots.is_empty() {
                let queries = row * work.heads..(row + step) * work.heads;
                fold_queries::<A>(&mut form, &here, &slots, queries, staged, scratch);
            }
        }
    }
}

/// Folds `slots` of the tile into the state of `queries`.
#[inline(always)]
unsafe fn fold_queries<A: Arithmetic>(
    tile: &mut Tile,
    here: &TileAt,
    slots: &Range<usize>,
    queries: Range<usize>,
    staged: bool,
    scratch: &mut Scratch,
) {
    // SAFETY: as the caller promised.
    unsafe {
        let parameters = parameters::<A>(here, slots);
        let mut query = queries.start;
        while query < queries.end {
            let left = queries.end - query;
            // Few blocks are worth a kernel of their own; staged tiles have many queries, but for the last rows.
            let count = if left >= 4 {
                4
            } else if staged {
                1
            } else {
                left
            };
            match (count, staged) {
                (4, false) => fold_block::<A, 4, false>(tile, slots, &parameters, query, scratch),
                (3, false) => fold_block::<A, 3, false>(tile, slots, &parameters, query, scratch),
                (2, false) => fold_block::<A, 2, false>(tile, slots, &parameters, query, scratch),
                (_, false) => fold_block::<A, 1, false>(tile, slots, &parameters, query, scratch),
                (4, true) => fold_block::<A, 4, true>(tile, slots, &parameters, query, scratch),
                (_, true) => fold_block::<A, 1, true>(tile, slots, &parameters, query, scratch),
            }
            tile.ahead = [0; 2];
            query += count;
        }
    }
}

/// Those of the seen slots; numbers in the others too, whatever is stored there.
#[inline(always)]
unsafe fn parameters<A: Arithmetic>(here: &TileAt, slots: &Range<usize>) -> Option<Parameters<A::S>> {
    if !A::SCALED {
        return None;
    }
    // SAFETY: as the caller promised: sixteen parameters may be read.
    unsafe {
        let (keys, values) = (A::parameters(here.parameters[0]), A::parameters(here.parameters[1]));
        Some(Parameters {
            keys: [within::<A::S>(keys[0], slots, 1.0), within::<A::S>(keys[1], slots, 0.0)],
            values: [within::<A::S>(values[0], slots, 1.0), within::<A::S>(values[1], slots, 0.0)],
        })
    }
}

/// Folds a tile into the state of `Q` queries from `first` on.
#[inline(always)]
unsafe fn fold_block<A: Arithmetic, const Q: usize, const STAGED: bool>(
    tile: &Tile,
    slots: &Range<usize>,
    parameters: &Option<Parameters<A::S>>,
    first: usize,
    scratch: &mut Scratch,
) {
    let mut queries = [std::ptr::null(); Q];
    let mut outputs = [std::ptr::null_mut(); Q];
    for i in 0..Q {
        (queries[i], outputs[i]) = (scratch.query(first + i).cast_const(), scratch.output(first + i));
    }
    // SAFETY: as the caller promised.
    unsafe {
        let mut weights = A::scores::<Q, STAGED>(tile, slots, queries);
        for i in 0..Q {
            weights[i] = scratch.states[first + i].soften::<A::S>(
                weights[i],
                slots,
                parameters.as_ref(),
                A::SHIFTED,
                outputs[i],
                tile.width,
            );
        }
        A::add_values::<Q, STAGED>(tile, slots, weights, outputs);
    }
}
