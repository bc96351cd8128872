//! The fused kernel: some rows of one span against one kv head.
//!
//! For each (row, query head): the tiles that the row sees, in order, are folded with an online softmax in base 2.
//! A position's score is a sum over `head_dim` in `LANES` interleaved parts, each in order, that are then added in
//! one fixed tree; an output sums its positions in order. Positions that the row does not see are never read. None
//! of this depends on how queries are blocked, so neither do the bits.

#![allow(clippy::needless_range_loop, reason = "indices name registers, over several arrays at once")]

use super::element::{Element, F32};
use super::scratch::Scratch;
use super::tile::{HeadPages, TILE, TileRows};
use crate::simd::Simd;
use octavo_backend::Half;
use std::ops::Range;

/// From this many queries on, a tile is widened once into scratch rather than in registers for every four.
const STAGE_FROM: usize = 9;
const LINE: usize = 64;

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

/// # Safety
/// As [`Simd`]; the pointers of `work` are valid for their shapes, and no other task writes to its `out`; the table
/// holds every position that its rows see; `E` is the precision of its pages.
#[inline(always)]
pub(crate) unsafe fn run<S: Simd, E: Element, const P: usize, const N: usize>(work: &Work<'_>) {
    let queries = work.rows * work.heads;
    let mut scratch = Scratch::new(queries, work.dim);
    let staged = queries >= STAGE_FROM || !work.dim.is_multiple_of(TILE);
    // SAFETY: as the caller promised; scratch has room for these queries, and a staged tile has rows of its width.
    unsafe {
        load_queries::<S>(work, &mut scratch);
        let last = (work.start + work.rows - 1) / TILE;
        let first = work.seen(0).start / TILE;
        let mut second = [Half::Key, Half::Value].map(|half| work.pages.tile((first + 1).min(last), half));
        let mut now = [Half::Key, Half::Value].map(|half| work.pages.tile(first, half));
        for tile in first..=last {
            let at = tile * TILE;
            let [keys, values] = now;
            now = second;
            second = [Half::Key, Half::Value].map(|half| work.pages.tile((tile + 2).min(last), half));
            let mut ctx = Tile {
                keys,
                values,
                keys_ahead: second[0],
                values_ahead: second[1],
                row_bytes: work.dim * E::BYTES,
                keys_scaled: [[1.0; TILE], [0.0; TILE]],
                values_scaled: [[1.0; TILE], [0.0; TILE]],
            };
            let all = slots(&work.seen(0), at).start..slots(&work.seen(work.rows - 1), at).end;
            ctx.load_parameters::<S, E>(all.clone());
            if E::SCALED {
                // Sixteen times four bytes: in one line, or in two.
                for parameters in second.map(|ahead| ahead.parameters) {
                    S::prefetch(parameters[0]);
                    S::prefetch(parameters[TILE - 1]);
                }
            }
            if staged {
                stage::<S, E>(&ctx.keys, all.clone(), work.dim, &mut scratch, 0);
                stage::<S, E>(&ctx.values, all.clone(), work.dim, &mut scratch, 1);
                ctx.keys.rows = scratch.tile_rows(0);
                ctx.values.rows = scratch.tile_rows(1);
            }
            // Rows that all see the whole tile go together, others one by one.
            let whole = |row| slots(&work.seen(row), at) == (0..TILE);
            let step = if whole(0) && whole(work.rows - 1) { work.rows } else { 1 };
            for row in (0..work.rows).step_by(step) {
                let slots = slots(&work.seen(row), at);
                if !slots.is_empty() {
                    let queries = row * work.heads..(row + step) * work.heads;
                    fold::<S, E, P, N>(&ctx, slots, queries, staged, &mut scratch);
                }
            }
        }
        store_outputs::<S>(work, &scratch);
    }
}

struct Tile {
    keys: TileRows,
    values: TileRows,
    /// Two tiles on: what is fetched meanwhile.
    keys_ahead: TileRows,
    values_ahead: TileRows,
    row_bytes: usize,
    /// Scales and shifts; numbers, and scales above 0, outside the slots that are seen too.
    keys_scaled: [[f32; TILE]; 2],
    values_scaled: [[f32; TILE]; 2],
}

impl Tile {
    #[inline(always)]
    unsafe fn load_parameters<S: Simd, E: Element>(&mut self, slots: Range<usize>) {
        if E::SCALED {
            let mut stored = [[E::UNIT; TILE]; 2];
            for slot in slots {
                // SAFETY: parameters of rows that the table holds.
                unsafe {
                    stored[0][slot] = u32::from_le_bytes(self.keys.parameters[slot].cast::<[u8; 4]>().read());
                    stored[1][slot] =
                        u32::from_le_bytes(self.values.parameters[slot].cast::<[u8; 4]>().read());
                }
            }
            // SAFETY: as the caller promised.
            unsafe {
                self.keys_scaled = E::parameters::<S>(&stored[0]);
                self.values_scaled = E::parameters::<S>(&stored[1]);
            }
        }
    }
}

/// Scales the queries for scores in base 2, and sums them for keys that are shifted.
#[inline(always)]
unsafe fn load_queries<S: Simd>(work: &Work<'_>, scratch: &mut Scratch) {
    let scale = work.scale * std::f32::consts::LOG2_E;
    for query in 0..work.rows * work.heads {
        // SAFETY: a query of the caller's; scratch rows are padded with zeros to whole vectors.
        unsafe {
            let from = work.q.add(query / work.heads * work.q_stride + query % work.heads * work.dim);
            let to = scratch.query_mut(query);
            for i in 0..work.dim {
                *to.add(i) = *from.add(i) * scale;
            }
            let mut sum = S::splat(0.0);
            for i in (0..scratch.width()).step_by(S::LANES) {
                sum = S::add(sum, S::load(to.add(i)));
            }
            scratch.sums[query] = S::sum(sum);
        }
    }
}

#[inline(always)]
unsafe fn store_outputs<S: Simd>(work: &Work<'_>, scratch: &Scratch) {
    for query in 0..work.rows * work.heads {
        // SAFETY: this task alone writes these outputs.
        unsafe {
            let to = work.out.add(query / work.heads * work.out_stride + query % work.heads * work.dim);
            let from = scratch.output(query);
            let (shift, factor) = (scratch.shift[query], 1.0 / scratch.total[query]);
            for i in 0..work.dim {
                *to.add(i) = (*from.add(i) + shift) * factor;
            }
        }
    }
}

/// Widens the rows of a tile into scratch, padded with zeros to whole vectors.
#[inline(always)]
unsafe fn stage<S: Simd, E: Element>(
    tile: &TileRows,
    slots: Range<usize>,
    dim: usize,
    scratch: &mut Scratch,
    half: usize,
) {
    let rows = scratch.tile_rows(half);
    let whole = dim / S::LANES * S::LANES;
    for slot in slots {
        let (from, to) = (tile.rows[slot], rows[slot].cast::<f32>().cast_mut());
        // SAFETY: `dim` elements are readable; scratch rows are as wide as whole vectors.
        unsafe {
            for i in (0..whole).step_by(S::LANES) {
                S::store(to.add(i), E::widen::<S>(from.add(i * E::BYTES)));
            }
            if whole < dim {
                let mut tail = [0u8; TILE * 4];
                let bytes = (dim - whole) * E::BYTES;
                std::ptr::copy_nonoverlapping(from.add(whole * E::BYTES), tail.as_mut_ptr(), bytes);
                S::store(to.add(whole), E::widen::<S>(tail.as_ptr()));
            }
        }
    }
}

/// Folds `slots` of the tile into the state of `queries`.
#[inline(always)]
unsafe fn fold<S: Simd, E: Element, const P: usize, const N: usize>(
    tile: &Tile,
    slots: Range<usize>,
    queries: Range<usize>,
    staged: bool,
    scratch: &mut Scratch,
) {
    let mut query = queries.start;
    while query < queries.end {
        let count = match queries.end - query {
            left if left >= 4 => 4,
            // Few blocks are worth a kernel of their own; staged tiles have many queries, but for the last rows.
            left => {
                if staged {
                    1
                } else {
                    left
                }
            }
        };
        // SAFETY: as the caller promised; staged rows are f32.
        unsafe {
            match (count, staged) {
                (4, false) => fold_block::<S, E, E, 4, P, N>(tile, slots.clone(), query, scratch),
                (3, false) => fold_block::<S, E, E, 3, P, N>(tile, slots.clone(), query, scratch),
                (2, false) => fold_block::<S, E, E, 2, P, N>(tile, slots.clone(), query, scratch),
                (_, false) => fold_block::<S, E, E, 1, P, N>(tile, slots.clone(), query, scratch),
                (4, true) => fold_block::<S, E, F32, 4, P, N>(tile, slots.clone(), query, scratch),
                (_, true) => fold_block::<S, E, F32, 1, P, N>(tile, slots.clone(), query, scratch),
            }
        }
        query += count;
    }
}

/// Folds a tile into the state of `Q` queries from `first` on. `E` says what the parameters mean, `R` how rows are read.
#[inline(always)]
unsafe fn fold_block<S: Simd, E: Element, R: Element, const Q: usize, const P: usize, const N: usize>(
    tile: &Tile,
    slots: Range<usize>,
    first: usize,
    scratch: &mut Scratch,
) {
    let ahead = first == 0;
    let mut weights = [[f32::NEG_INFINITY; TILE]; Q];
    // SAFETY: as the caller promised.
    unsafe {
        scores::<S, R, Q, P>(tile, &slots, scratch, first, ahead, &mut weights);
        for (i, weights) in weights.iter_mut().enumerate() {
            soften::<S, E>(tile, scratch, first + i, weights);
        }
        values::<S, R, Q, N>(tile, &slots, scratch, first, ahead, &weights);
    }
}

/// `scores[i][slot] = q[first + i] · keys[slot]` for the seen slots; the others are left alone.
#[inline(always)]
unsafe fn scores<S: Simd, R: Element, const Q: usize, const P: usize>(
    tile: &Tile,
    slots: &Range<usize>,
    scratch: &Scratch,
    first: usize,
    ahead: bool,
    scores: &mut [[f32; TILE]; Q],
) {
    let q: [*const f32; Q] = std::array::from_fn(|i| scratch.query(first + i));
    let mut slot = slots.start;
    while slot < slots.end {
        // Past the last slot the last is computed again.
        let at: [usize; P] = std::array::from_fn(|j| (slot + j).min(slots.end - 1));
        let rows = at.map(|slot| tile.keys.rows[slot]);
        // SAFETY: rows and queries are as wide as whole vectors.
        unsafe {
            if ahead {
                for slot in at {
                    for byte in (0..tile.row_bytes).step_by(LINE) {
                        S::prefetch(tile.keys_ahead.rows[slot].wrapping_add(byte));
                    }
                }
            }
            let mut sums = [[S::splat(0.0); Q]; P];
            for i in (0..scratch.width()).step_by(S::LANES) {
                let mut query = [S::splat(0.0); Q];
                for n in 0..Q {
                    query[n] = S::load(q[n].add(i));
                }
                for j in 0..P {
                    let key = R::widen::<S>(rows[j].add(i * R::BYTES));
                    for n in 0..Q {
                        sums[j][n] = S::fma(key, query[n], sums[j][n]);
                    }
                }
            }
            if P == 4 && Q == 4 && slot + P <= slots.end {
                let sums = std::array::from_fn(|k| sums[k / Q][k % Q]);
                let out = std::array::from_fn(|n| scores[n].as_mut_ptr().add(slot).cast());
                S::sum16(sums, out);
                slot += P;
                continue;
            }
            let mut flat = 0;
            while flat < P * Q {
                let mut four = [S::splat(0.0); 4];
                for k in flat..(flat + 4).min(P * Q) {
                    four[k - flat] = sums[k / Q][k % Q];
                }
                let four = S::sum4(four);
                for k in flat..(flat + 4).min(P * Q) {
                    scores[k % Q][at[k / Q]] = four[k - flat];
                }
                flat += 4;
            }
        }
        slot += P;
    }
}

/// Scores of one query become weights, and its running maximum, total and shift take them in. What was summed under
/// an earlier maximum is scaled down.
#[inline(always)]
unsafe fn soften<S: Simd, E: Element>(
    tile: &Tile,
    scratch: &mut Scratch,
    query: usize,
    weights: &mut [f32; TILE],
) {
    // SAFETY: arrays of TILE, a multiple of LANES; scratch has this query.
    unsafe {
        let p = weights.as_mut_ptr();
        let mut largest = S::splat(f32::NEG_INFINITY);
        for i in (0..TILE).step_by(S::LANES) {
            let mut score = S::load(p.add(i));
            if E::SCALED {
                score = S::mul(score, S::load(tile.keys_scaled[0].as_ptr().add(i)));
            }
            if E::SHIFTED {
                let shift = S::load(tile.keys_scaled[1].as_ptr().add(i));
                score = S::fma(S::splat(scratch.sums[query]), shift, score);
            }
            S::store(p.add(i), score);
            largest = S::max(largest, score);
        }
        let largest = S::largest(largest);
        if largest > scratch.largest[query] {
            let mut factor = [0.0; TILE];
            S::store(factor.as_mut_ptr(), S::exp2(S::splat(scratch.largest[query] - largest)));
            scratch.largest[query] = largest;
            scratch.rescale(query, factor[0]);
        }
        let largest = S::splat(scratch.largest[query]);
        let (mut total, mut shift) = (S::splat(0.0), S::splat(0.0));
        for i in (0..TILE).step_by(S::LANES) {
            let weight = S::exp2(S::sub(S::load(p.add(i)), largest));
            total = S::add(total, weight);
            if E::SHIFTED {
                shift = S::fma(weight, S::load(tile.values_scaled[1].as_ptr().add(i)), shift);
            }
            let scaled = if E::SCALED {
                S::mul(weight, S::load(tile.values_scaled[0].as_ptr().add(i)))
            } else {
                weight
            };
            S::store(p.add(i), scaled);
        }
        scratch.total[query] += S::sum(total);
        if E::SHIFTED {
            scratch.shift[query] += S::sum(shift);
        }
    }
}

/// `output[first + i] += weights[i][slot] * values[slot]`, slot by slot.
#[inline(always)]
unsafe fn values<S: Simd, R: Element, const Q: usize, const N: usize>(
    tile: &Tile,
    slots: &Range<usize>,
    scratch: &mut Scratch,
    first: usize,
    ahead: bool,
    weights: &[[f32; TILE]; Q],
) {
    let out: [*mut f32; Q] = std::array::from_fn(|i| scratch.output_mut(first + i));
    let width = scratch.width();
    let wide = width / (N * S::LANES) * (N * S::LANES);
    // SAFETY: rows and outputs are as wide as whole vectors.
    unsafe {
        for i in (0..wide).step_by(N * S::LANES) {
            add_values::<S, R, Q, N>(tile, slots, out.map(|out| out.add(i)), i, ahead && i == 0, weights);
        }
        for i in (wide..width).step_by(S::LANES) {
            add_values::<S, R, Q, 1>(tile, slots, out.map(|out| out.add(i)), i, ahead && i == 0, weights);
        }
    }
}

/// The same for the `N` vectors of elements from `at` on.
#[inline(always)]
unsafe fn add_values<S: Simd, R: Element, const Q: usize, const N: usize>(
    tile: &Tile,
    slots: &Range<usize>,
    out: [*mut f32; Q],
    at: usize,
    ahead: bool,
    weights: &[[f32; TILE]; Q],
) {
    // SAFETY: as the caller promised.
    unsafe {
        let mut sums = [[S::splat(0.0); N]; Q];
        for i in 0..Q {
            for n in 0..N {
                sums[i][n] = S::load(out[i].add(n * S::LANES));
            }
        }
        for slot in slots.clone() {
            if ahead {
                for byte in (0..tile.row_bytes).step_by(LINE) {
                    S::prefetch(tile.values_ahead.rows[slot].wrapping_add(byte));
                }
            }
            let row = tile.values.rows[slot];
            let mut value = [S::splat(0.0); N];
            for n in 0..N {
                value[n] = R::widen::<S>(row.add((at + n * S::LANES) * R::BYTES));
            }
            for i in 0..Q {
                let weight = S::splat(weights[i][slot]);
                for n in 0..N {
                    sums[i][n] = S::fma(weight, value[n], sums[i][n]);
                }
            }
        }
        for i in 0..Q {
            for n in 0..N {
                S::store(out[i].add(n * S::LANES), sums[i][n]);
            }
        }
    }
}
