//! The fused kernel: some rows of one span against one kv head.
//!
//! For each (row, query head): the blocks that the row sees, in order, are folded with an online softmax in base 2.
//! What positions that the row does not see hold never matters. None of this depends on how queries are blocked, so
//! neither do the bits.

use super::arithmetic::{ABREAST, Ahead, Arithmetic, Shape, Tiles, slots_in};
use super::scratch::Scratch;
use super::seen::Seen;
use super::softmax::Parameters;
use super::tile::{BLOCK, HeadPages, TILE, TileAt};
use super::walk::{BlockAt, KEYS, Runs, VALUES};
use crate::simd::{Lanes, Simd};
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
    pub(super) fn seen(&self, row: usize) -> Range<usize> {
        let end = self.start + row + 1;
        end.saturating_sub(self.window)..end
    }

    /// Tiles that any row sees some of.
    pub(super) fn tiles(&self) -> Range<usize> {
        self.seen(0).start / TILE..self.seen(self.rows - 1).end.div_ceil(TILE)
    }
}

/// `$body` for as many of some queries at a time as there are: first for the first of `$n`, which is compiled for each of
/// them.
macro_rules! by_counts {
    ($queries:expr, [$($n:literal)+], |$first:ident, $count:ident| $body:expr) => {{
        let queries: Range<usize> = $queries;
        let mut $first = queries.start;
        $(while queries.end - $first >= $n {
            const $count: usize = $n;
            $body;
            $first += $n;
        })+
    }};
}

/// Computes a task, some kv heads of the same rows, block by block: the scores of a block's keys, two tiles of all heads after
/// another, then what they weigh and the weighted values, two tiles after another again. What the thread reads next is asked
/// for meanwhile: `runs` tells.
///
/// # Safety
/// As [`Arithmetic`]; the pointers of the heads are valid for their shapes, and no other task writes to their `out`; the
/// table holds every position that the rows see; `A` is for the precision of the pages.
#[inline(always)]
pub(crate) unsafe fn run<A: Arithmetic>(heads: &[Work<'_>], runs: &mut Runs<'_, '_>) {
    let mut all: Vec<Scratch> = heads.iter().map(scratch::<A>).collect();
    let seen = heads[0].tiles();
    runs.start::<A::S>();
    // SAFETY: as the caller promised; scratch has room for the queries.
    unsafe {
        for (work, scratch) in heads.iter().zip(&mut all) {
            load_queries::<A>(work, scratch);
        }
        let mut groups = Vec::with_capacity(heads[0].rows);
        for block in seen.start / BLOCK..seen.end.div_ceil(BLOCK) {
            let at = BlockAt::new(heads, block);
            Seen::of_block(&heads[0], block, &mut groups);
            if all[0].stages {
                fold::<A, true>(heads, &at, &groups, runs, &mut all);
            } else {
                fold::<A, false>(heads, &at, &groups, runs, &mut all);
            }
        }
        for (work, scratch) in heads.iter().zip(&mut all) {
            store_outputs::<A>(work, scratch);
        }
    }
}

/// Folds a block into the state of all queries.
#[inline(always)]
unsafe fn fold<A: Arithmetic, const STAGED: bool>(
    heads: &[Work<'_>],
    at: &BlockAt,
    groups: &[Seen],
    runs: &mut Runs<'_, '_>,
    all: &mut [Scratch],
) {
    // SAFETY: as the caller promised.
    unsafe {
        for tiles in at.abreast() {
            for (work, scratch) in heads.iter().zip(&mut *all) {
                score::<A, STAGED>(work, tiles, at, groups, runs, scratch);
            }
        }
        for (i, tiles) in at.abreast().enumerate() {
            for (work, scratch) in heads.iter().zip(&mut *all) {
                // Not of all heads before: memory would have nothing to do meanwhile.
                if i == 0 {
                    soften::<A>(work, at, groups, scratch);
                }
                add::<A, STAGED>(work, tiles, at, groups, runs, scratch);
            }
        }
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
        let to = scratch.queries::<1>(query)[0];
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
            let (from, width) = (scratch.outputs::<1>(query)[0], scratch.width());
            A::arrange(from, width);
            for i in 0..work.dim {
                *to.add(i) = (*from.add(i) + shift) * factor;
            }
        }
    }
}

/// Where a tile of a head lies, or the nearest that is seen: in its page, or copied to scratch.
#[inline(always)]
fn tile_at(work: &Work<'_>, tile: usize, at: &BlockAt, scratch: &mut Scratch) -> TileAt {
    let tile = at.nearest(tile);
    if work.pages.whole_tiles() {
        work.pages.tile(at.base(tile))
    } else {
        work.pages.copied(tile, scratch.copied(tile % BLOCK, work.pages.copy_bytes()))
    }
}

/// Keys or values of tiles as they are stored; while they are read the next of `runs` are asked for.
#[inline(always)]
fn stored<S: Simd>(
    work: &Work<'_>,
    half: usize,
    tiles: [usize; ABREAST],
    at: &BlockAt,
    runs: &mut Runs<'_, '_>,
    scratch: &mut Scratch,
) -> Tiles {
    let [first, second] = tiles;
    let stored =
        [tile_at(work, first, at, scratch).rows[half], tile_at(work, second, at, scratch).rows[half]];
    let shape = Shape { row_bytes: work.pages.row_bytes, dim: work.dim, width: scratch.width() };
    let staged = if scratch.stages { scratch.staged() } else { [std::ptr::null_mut(); ABREAST] };
    let ahead = runs.next::<S>().unwrap_or(Ahead::in_turn(stored, runs.asking()));
    Tiles { stored, staged, ahead, shape }
}

/// Scores of the tiles' keys, with all queries that see some of them: others may be anything.
#[inline(always)]
unsafe fn score<A: Arithmetic, const STAGED: bool>(
    work: &Work<'_>,
    tiles: [usize; ABREAST],
    at: &BlockAt,
    groups: &[Seen],
    runs: &mut Runs<'_, '_>,
    scratch: &mut Scratch,
) {
    // SAFETY: as the caller promised; scratch has room for copies and for what is staged.
    unsafe {
        for tile in tiles.into_iter().filter(|tile| !work.pages.whole_tiles() && at.tiles.contains(tile)) {
            work.pages.copy(tile, scratch.copied(tile % BLOCK, work.pages.copy_bytes()));
        }
        let mut keys = stored::<A::S>(work, KEYS, tiles, at, runs, scratch);
        let queries = groups[0].queries.start..groups[groups.len() - 1].queries.end;
        if STAGED {
            A::stage_keys(&keys);
            by_counts!(queries, [4 1], |query, COUNT| {
                score_some::<A, COUNT, true>(&keys, query, tiles[0], scratch)
            });
        } else {
            by_counts!(queries, [4 3 2 1], |query, COUNT| {
                score_some::<A, COUNT, false>(&keys, query, tiles[0], scratch);
                keys.ahead = keys.ahead.none(keys.stored);
            });
        }
    }
}

/// [`score`] for `Q` queries from `first` on and the tiles from `tile` on.
#[inline(always)]
unsafe fn score_some<A: Arithmetic, const Q: usize, const STAGED: bool>(
    keys: &Tiles,
    first: usize,
    tile: usize,
    scratch: &mut Scratch,
) {
    let queries = scratch.queries::<Q>(first).map(|query| query.cast_const());
    let lines = scratch.lines_of::<Q>(first, tile % BLOCK);
    // SAFETY: as the caller promised; a line holds the scores of a tile.
    unsafe {
        A::apart(
            #[inline(always)]
            || {
                let scores = A::scores::<Q, STAGED>(keys, queries);
                for (t, scores) in scores.into_iter().enumerate() {
                    for i in 0..Q {
                        <A::S as Simd>::store(lines[i].add(t).cast(), scores[i]);
                    }
                }
            },
        );
    }
}

/// Makes weights of the scores of a block.
#[inline(always)]
unsafe fn soften<A: Arithmetic>(work: &Work<'_>, at: &BlockAt, groups: &[Seen], scratch: &mut Scratch) {
    let first = at.tiles.start / BLOCK * BLOCK;
    let mut stored = [[std::ptr::null(); 2]; BLOCK];
    if A::SCALED {
        for (i, stored) in stored.iter_mut().enumerate() {
            *stored = tile_at(work, first + i, at, scratch).parameters;
        }
    }
    for Seen { queries, lanes, .. } in groups {
        // SAFETY: as the caller promised.
        unsafe {
            A::apart(
                #[inline(always)]
                || {
                    let parameters = parameters::<A>(&stored, lanes);
                    by_counts!(queries.clone(), [4 3 2 1], |first, COUNT| {
                        soften_some::<A, COUNT>(lanes, &parameters, first, scratch)
                    });
                },
            );
        }
    }
}

/// [`soften`] for what is `seen` of the block and `Q` queries from `first` on.
#[inline(always)]
unsafe fn soften_some<A: Arithmetic, const Q: usize>(
    seen: &[Lanes; BLOCK],
    parameters: &Option<[Parameters<A::S>; BLOCK]>,
    first: usize,
    scratch: &mut Scratch,
) {
    let width = scratch.width();
    // SAFETY: as the caller promised; a line holds the scores of a tile.
    unsafe {
        let (lines, outputs) = (scratch.lines_of::<Q>(first, 0), scratch.outputs::<Q>(first));
        let mut weights = [[<A::S as Simd>::splat(0.0); BLOCK]; Q];
        for i in 0..Q {
            for (tile, weights) in weights[i].iter_mut().enumerate() {
                *weights = <A::S as Simd>::load(lines[i].wrapping_add(tile).cast());
            }
            let (weights, state) = (&mut weights[i], &mut scratch.states[first + i]);
            state.soften::<A::S>(weights, seen, parameters.as_ref(), A::SHIFTED, outputs[i], width);
        }
        A::store_weights::<Q>(&weights, lines);
    }
}

/// Those of what is `seen`; numbers in the other lanes too, whatever is stored there.
#[inline(always)]
unsafe fn parameters<A: Arithmetic>(
    stored: &[[*const u8; 2]; BLOCK],
    seen: &[Lanes; BLOCK],
) -> Option<[Parameters<A::S>; BLOCK]> {
    if !A::SCALED {
        return None;
    }
    // SAFETY: as the caller promised: sixteen parameters of a tile may be read.
    unsafe {
        let zero = [<A::S as Simd>::splat(0.0); 2];
        let mut all = [Parameters { keys: zero, values: zero }; BLOCK];
        for tile in 0..BLOCK {
            let (keys, values) = (A::parameters(stored[tile][KEYS]), A::parameters(stored[tile][VALUES]));
            let (lanes, keep) = (seen[tile], <A::S as Simd>::keep);
            all[tile] = Parameters {
                keys: [keep(lanes, keys[0], 1.0), keep(lanes, keys[1], 0.0)],
                values: [keep(lanes, values[0], 1.0), keep(lanes, values[1], 0.0)],
            };
        }
        Some(all)
    }
}

/// Adds the tiles' values to the outputs, weighted.
#[inline(always)]
unsafe fn add<A: Arithmetic, const STAGED: bool>(
    work: &Work<'_>,
    tiles: [usize; ABREAST],
    at: &BlockAt,
    groups: &[Seen],
    runs: &mut Runs<'_, '_>,
    scratch: &mut Scratch,
) {
    let mut values = stored::<A::S>(work, VALUES, tiles, at, runs, scratch);
    // SAFETY: as the caller promised; scratch has room for what is staged.
    unsafe {
        if STAGED {
            let all = groups[0].slots.start..groups[groups.len() - 1].slots.end;
            A::stage_values(&values, &tiles.map(|tile| slots_in(&all, tile % BLOCK)));
        }
        for Seen { queries, slots, .. } in groups {
            let slots = tiles.map(|tile| slots_in(slots, tile % BLOCK));
            if slots.iter().all(Range::is_empty) {
                continue;
            }
            if STAGED {
                by_counts!(queries.clone(), [4 1], |query, COUNT| {
                    add_some::<A, COUNT, true>(&values, &slots, query, tiles[0], scratch)
                });
            } else {
                by_counts!(queries.clone(), [4 3 2 1], |query, COUNT| {
                    add_some::<A, COUNT, false>(&values, &slots, query, tiles[0], scratch);
                    values.ahead = values.ahead.none(values.stored);
                });
            }
        }
    }
}

/// [`add`] for `slots` of the tiles from `tile` on and `Q` queries from `first` on.
#[inline(always)]
unsafe fn add_some<A: Arithmetic, const Q: usize, const STAGED: bool>(
    values: &Tiles,
    slots: &[Range<usize>; ABREAST],
    first: usize,
    tile: usize,
    scratch: &mut Scratch,
) {
    let (lines, outputs) = (scratch.lines_of::<Q>(first, tile % BLOCK), scratch.outputs::<Q>(first));
    // SAFETY: as the caller promised.
    unsafe {
        let weights = lines.map(|line| line.cast_const());
        A::apart(
            #[inline(always)]
            || A::add_values::<Q, STAGED>(values, slots, weights, outputs),
        );
    }
}
