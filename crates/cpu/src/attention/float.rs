//! Multiply-adds in f32, for every precision and level. A score is the sum of its even products, in order, and of its
//! odd ones; an output sums its positions in order.

#![allow(clippy::needless_range_loop, reason = "indices name registers, over several arrays at once")]

use super::arithmetic::{ABREAST, Ahead, Arithmetic, LINE, Shape, Tiles};
use super::element::{Element, F32};
use super::scratch::Line;
use super::softmax::State;
use super::tile::{BLOCK, TILE};
use crate::keys::{FOUR, last_elements};
use crate::simd::{LANES, Simd};
use std::marker::PhantomData;
use std::ops::Range;

pub(crate) struct Float<S, E>(PhantomData<(S, E)>);

impl<S: Simd, E: Element> Arithmetic for Float<S, E> {
    type S = S;
    const STEP: usize = LANES;
    const STAGE_FROM: usize = 9;
    const PADS: bool = false;
    const SCALED: bool = E::SCALED;
    const SHIFTED: bool = E::SHIFTED;

    #[inline(always)]
    unsafe fn parameters(stored: *const u8) -> [S::V; 2] {
        // SAFETY: as the caller promised.
        unsafe { E::parameters::<S>(stored) }
    }

    #[inline(always)]
    unsafe fn load_query(
        from: *const f32,
        dim: usize,
        scale: f32,
        to: *mut f32,
        width: usize,
        state: &mut State,
    ) {
        // SAFETY: `dim` readable numbers; scratch rows are padded with zeros to whole vectors.
        unsafe {
            for i in 0..dim {
                *to.add(i) = *from.add(i) * scale;
            }
            let mut sum = S::splat(0.0);
            for i in (0..width).step_by(LANES) {
                sum = S::add(sum, S::load(to.add(i)));
            }
            state.sum = S::sum(sum);
        }
    }

    #[inline(always)]
    unsafe fn stage_keys(tiles: &Tiles) {
        // SAFETY: as the caller promised.
        unsafe { stage_keys::<S, E>(tiles) }
    }

    #[inline(always)]
    unsafe fn stage_values(tiles: &Tiles, slots: &[Range<usize>; ABREAST]) {
        // SAFETY: as the caller promised.
        unsafe { stage_values::<S, E>(tiles, slots) }
    }

    #[inline(always)]
    unsafe fn scores<const Q: usize, const STAGED: bool>(
        tiles: &Tiles,
        queries: [*const f32; Q],
    ) -> [[S::V; Q]; ABREAST] {
        // SAFETY: as the caller promised; staged keys are f32.
        unsafe {
            if STAGED {
                scores::<S, F32, Q, true>(tiles, queries)
            } else {
                scores::<S, E, Q, false>(tiles, queries)
            }
        }
    }

    #[inline(always)]
    unsafe fn store_weights<const Q: usize>(weights: &[[S::V; BLOCK]; Q], to: [*mut Line; Q]) {
        for (weights, to) in weights.iter().zip(to) {
            for tile in 0..BLOCK {
                // SAFETY: as the caller promised: lines of a block.
                unsafe { S::store(to.add(tile).cast(), weights[tile]) };
            }
        }
    }

    #[inline(always)]
    unsafe fn apart<R>(f: impl FnOnce() -> R) -> R {
        // SAFETY: as the caller promised.
        unsafe { S::apart(f) }
    }

    #[inline(always)]
    unsafe fn add_values<const Q: usize, const STAGED: bool>(
        tiles: &Tiles,
        slots: &[Range<usize>; ABREAST],
        weights: [*const Line; Q],
        outputs: [*mut f32; Q],
    ) {
        // SAFETY: as the caller promised; staged rows are f32.
        unsafe {
            let weights = weights.map(|line| &*line.cast::<[Line; ABREAST]>());
            if STAGED {
                values::<S, F32, Q, true>(tiles, slots, weights, outputs);
            } else {
                values::<S, E, Q, false>(tiles, slots, weights, outputs);
            }
        }
    }
}

/// All keys, in f32: `[width][TILE]`. Those behind `dim` stay 0, as they are in new scratch.
#[inline(always)]
unsafe fn stage_keys<S: Simd, E: Element>(tiles: &Tiles) {
    let (dim, mut ahead) = (tiles.shape.dim, tiles.ahead);
    let whole = dim / FOUR * FOUR;
    // SAFETY: the tiles' keys are readable; scratch has room for as many f32.
    unsafe {
        for i in (0..whole).step_by(FOUR) {
            ahead.ask::<S>(lines::<E>(FOUR * LANES));
            for t in 0..ABREAST {
                let keys = E::widen_keys::<S>(tiles.stored[t].add(i * LANES * E::BYTES));
                for (n, key) in keys.into_iter().enumerate() {
                    S::store(tiles.staged[t].add((i + n) * LANES), key);
                }
            }
        }
        for t in (0..ABREAST).filter(|_| whole < dim) {
            let last = last_elements(tiles.stored[t], dim, E::BYTES);
            let keys = E::widen_keys::<S>(last.as_ptr());
            for (n, key) in keys.into_iter().take(dim - whole).enumerate() {
                S::store(tiles.staged[t].add((whole + n) * LANES), key);
            }
        }
    }
}

/// The rows in `slots`, in f32.
#[inline(always)]
unsafe fn stage_values<S: Simd, E: Element>(tiles: &Tiles, slots: &[Range<usize>; ABREAST]) {
    let Shape { row_bytes, dim, width } = tiles.shape;
    let (whole, mut ahead) = (dim / LANES * LANES, tiles.ahead);
    for (slot, t) in (0..TILE).flat_map(|slot| (0..ABREAST).map(move |t| (slot, t))) {
        // SAFETY: `dim` elements are readable; scratch rows are as wide as whole vectors.
        unsafe {
            if t == 0 {
                ahead.ask::<S>(row_bytes.div_ceil(LINE));
            }
            if !slots[t].contains(&slot) {
                continue;
            }
            let (from, to) = (tiles.stored[t].add(slot * row_bytes), tiles.staged[t].add(slot * width));
            for i in (0..whole).step_by(LANES) {
                S::store(to.add(i), E::widen::<S>(from.add(i * E::BYTES)));
            }
            if whole < dim {
                let mut tail = [0u8; LANES * 4];
                let bytes = (dim - whole) * E::BYTES;
                std::ptr::copy_nonoverlapping(from.add(whole * E::BYTES), tail.as_mut_ptr(), bytes);
                S::store(to.add(whole), E::widen::<S>(tail.as_ptr()));
            }
        }
    }
}

/// Lines of so many elements.
const fn lines<E: Element>(elements: usize) -> usize {
    elements * E::BYTES / LINE
}

/// See [`Arithmetic::scores`].
#[inline(always)]
unsafe fn scores<S: Simd, R: Element, const Q: usize, const STAGED: bool>(
    tiles: &Tiles,
    queries: [*const f32; Q],
) -> [[S::V; Q]; ABREAST] {
    // SAFETY: as the caller promised.
    unsafe {
        if S::WIDE {
            return products::<S, R, Q, ABREAST, STAGED>(tiles, 0, queries);
        }
        // Registers hold the sums of one tile and two queries. The first asks for all lines.
        let (mut tiles, mut scores) = (*tiles, [[S::splat(0.0); Q]; ABREAST]);
        for n in (0..Q).step_by(2) {
            let other = (n + 1).min(Q - 1);
            for t in 0..ABREAST {
                let queries = [queries[n], queries[other]];
                [[scores[t][n], scores[t][other]]] = products::<S, R, 2, 1, STAGED>(&tiles, t, queries);
                tiles.ahead = tiles.ahead.none(tiles.stored);
            }
        }
        scores
    }
}

/// Scores of `N` tiles' keys, from tile `first` on.
#[inline(always)]
unsafe fn products<S: Simd, R: Element, const Q: usize, const N: usize, const STAGED: bool>(
    tiles: &Tiles,
    first: usize,
    queries: [*const f32; Q],
) -> [[S::V; Q]; N] {
    // SAFETY: keys and queries are as wide as whole vectors, or staged and padded to it.
    unsafe {
        let mut sums = [[[S::splat(0.0); Q]; N]; 2];
        let (mut keys, mut ahead) = ([[S::splat(0.0); FOUR]; N], tiles.ahead);
        for i in (0..tiles.shape.width).step_by(FOUR) {
            if !STAGED {
                ahead.ask::<S>(lines::<R>(FOUR * LANES));
            }
            for t in 0..N {
                let from = if STAGED { tiles.staged[first + t].cast() } else { tiles.stored[first + t] };
                keys[t] = R::widen_keys::<S>(from.wrapping_add(i * LANES * R::BYTES));
            }
            for j in 0..FOUR {
                for n in 0..Q {
                    let query = S::splat(*queries[n].add(i + j));
                    for t in 0..N {
                        sums[j % 2][t][n] = S::fma(keys[t][j], query, sums[j % 2][t][n]);
                    }
                }
            }
        }
        let mut scores = sums[0];
        for t in 0..N {
            for n in 0..Q {
                scores[t][n] = S::add(sums[0][t][n], sums[1][t][n]);
            }
        }
        scores
    }
}

/// `outputs[i] += weights[i][t][slot] * values[t][slot]`, slot by slot of both tiles.
#[inline(always)]
unsafe fn values<S: Simd, R: Element, const Q: usize, const STAGED: bool>(
    tiles: &Tiles,
    slots: &[Range<usize>; ABREAST],
    weights: [&[Line; ABREAST]; Q],
    outputs: [*mut f32; Q],
) {
    const WIDE: usize = 4;
    let width = tiles.shape.width;
    let wide = if S::WIDE { width / (WIDE * LANES) * (WIDE * LANES) } else { 0 };
    let (all, mut ahead) = (slots.iter().all(|slots| *slots == (0..TILE)), tiles.ahead);
    // SAFETY: rows and outputs are as wide as whole vectors.
    unsafe {
        for i in (0..wide).step_by(WIDE * LANES) {
            if all {
                add::<S, R, Q, STAGED, WIDE, true>(tiles, &mut ahead, slots, weights, outputs, i);
            } else {
                add::<S, R, Q, STAGED, WIDE, false>(tiles, &mut ahead, slots, weights, outputs, i);
            }
        }
        for i in (wide..width).step_by(LANES) {
            if all {
                add::<S, R, Q, STAGED, 1, true>(tiles, &mut ahead, slots, weights, outputs, i);
            } else {
                add::<S, R, Q, STAGED, 1, false>(tiles, &mut ahead, slots, weights, outputs, i);
            }
        }
    }
}

/// The same for the `N` vectors of elements from `at` on, of `ALL` slots or of those that are seen.
#[inline(always)]
unsafe fn add<S: Simd, R: Element, const Q: usize, const STAGED: bool, const N: usize, const ALL: bool>(
    tiles: &Tiles,
    ahead: &mut Ahead,
    slots: &[Range<usize>; ABREAST],
    weights: [&[Line; ABREAST]; Q],
    outputs: [*mut f32; Q],
    at: usize,
) {
    let Shape { row_bytes, width, .. } = tiles.shape;
    // SAFETY: as the caller promised.
    unsafe {
        let mut sums = [[S::splat(0.0); N]; Q];
        for i in 0..Q {
            for n in 0..N {
                sums[i][n] = S::load(outputs[i].add(at + n * LANES));
            }
        }
        // Rows that are shorter than a line have one together.
        let (lines, every) = (lines::<R>(N * LANES).max(1), LINE.div_ceil(N * LANES * R::BYTES));
        for slot in 0..TILE {
            for t in 0..ABREAST {
                if !STAGED && slot.is_multiple_of(every) {
                    // Of both tiles in all.
                    ahead.ask::<S>((lines + t) / ABREAST);
                }
                if !ALL && !slots[t].contains(&slot) {
                    continue;
                }
                let row = if STAGED {
                    tiles.staged[t].cast::<u8>().wrapping_add(slot.wrapping_mul(width * size_of::<f32>()))
                } else {
                    tiles.stored[t].cast_mut().wrapping_add(slot.wrapping_mul(row_bytes))
                };
                let row = row.wrapping_add(at.wrapping_mul(R::BYTES));
                let mut value = [S::splat(0.0); N];
                for n in 0..N {
                    value[n] = R::widen::<S>(row.wrapping_add(n * LANES * R::BYTES));
                }
                for i in 0..Q {
                    let weight = S::splat(weights[i][t].0[slot]);
                    for n in 0..N {
                        sums[i][n] = S::fma(weight, value[n], sums[i][n]);
                    }
                }
            }
        }
        for i in 0..Q {
            for n in 0..N {
                S::store(outputs[i].add(at + n * LANES), sums[i][n]);
            }
        }
    }
}
