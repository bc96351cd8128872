//! Multiply-adds in f32, for every precision and level. A score is the sum of its even products, in order, and of its
//! odd ones; an output sums its positions in order.

#![allow(clippy::needless_range_loop, reason = "indices name registers, over several arrays at once")]

use super::arithmetic::{Arithmetic, LINE, Shape, Tile};
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
    unsafe fn stage_keys(tile: &Tile, to: *mut f32) {
        // SAFETY: as the caller promised.
        unsafe { stage_keys::<S, E>(tile, to) }
    }

    #[inline(always)]
    unsafe fn stage_values(tile: &Tile, slots: &Range<usize>, to: *mut f32) {
        // SAFETY: as the caller promised.
        unsafe { stage_values::<S, E>(tile, slots, to) }
    }

    #[inline(always)]
    unsafe fn scores<const Q: usize, const STAGED: bool>(tile: &Tile, queries: [*const f32; Q]) -> [S::V; Q] {
        // SAFETY: as the caller promised; staged keys are f32.
        unsafe {
            if STAGED {
                scores::<S, F32, Q, true>(tile, queries)
            } else {
                scores::<S, E, Q, false>(tile, queries)
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
    unsafe fn add_values<const Q: usize, const STAGED: bool>(
        tile: &Tile,
        slots: &Range<usize>,
        weights: [*const Line; Q],
        outputs: [*mut f32; Q],
    ) {
        // SAFETY: as the caller promised; staged rows are f32.
        unsafe {
            let weights = weights.map(|line| &(*line).0);
            if STAGED {
                values::<S, F32, Q, true>(tile, slots, weights, outputs);
            } else {
                values::<S, E, Q, false>(tile, slots, weights, outputs);
            }
        }
    }
}

/// All keys, in f32: `[width][TILE]`. Those behind `dim` stay 0, as they are in new scratch.
#[inline(always)]
unsafe fn stage_keys<S: Simd, E: Element>(tile: &Tile, to: *mut f32) {
    let dim = tile.shape.dim;
    let whole = dim / FOUR * FOUR;
    // SAFETY: a tile's keys are readable; scratch has room for as many f32.
    unsafe {
        for i in (0..whole).step_by(FOUR) {
            let from = tile.stored.add(i * LANES * E::BYTES);
            fetch_keys::<S, E>(tile, i);
            for (n, key) in E::widen_keys::<S>(from).into_iter().enumerate() {
                S::store(to.add((i + n) * LANES), key);
            }
        }
        if whole < dim {
            let last = last_elements(tile.stored, dim, E::BYTES);
            let keys = E::widen_keys::<S>(last.as_ptr());
            for (n, key) in keys.into_iter().take(dim - whole).enumerate() {
                S::store(to.add((whole + n) * LANES), key);
            }
        }
    }
}

/// The rows in `slots`, in f32.
#[inline(always)]
unsafe fn stage_values<S: Simd, E: Element>(tile: &Tile, slots: &Range<usize>, to: *mut f32) {
    let Shape { row_bytes, dim, width } = tile.shape;
    let whole = dim / LANES * LANES;
    for slot in slots.clone() {
        // SAFETY: `dim` elements are readable; scratch rows are as wide as whole vectors.
        unsafe {
            let (from, to) = (tile.stored.add(slot * row_bytes), to.add(slot * width));
            for byte in (0..row_bytes).step_by(LINE) {
                tile.fetch::<S>(slot * row_bytes + byte);
            }
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

/// Rows as stored or as staged, and how far apart they are.
#[inline(always)]
fn rows<const STAGED: bool>(tile: &Tile) -> (*const u8, usize) {
    if STAGED {
        (tile.staged.cast(), tile.shape.width * size_of::<f32>())
    } else {
        (tile.stored, tile.shape.row_bytes)
    }
}

/// Asks for the lines at the same place in the tile to come as four elements of all keys, from number `i` on.
#[inline(always)]
unsafe fn fetch_keys<S: Simd, E: Element>(tile: &Tile, i: usize) {
    for byte in (0..FOUR * LANES * E::BYTES).step_by(LINE) {
        // SAFETY: as the caller promised.
        unsafe { tile.fetch::<S>(i * LANES * E::BYTES + byte) };
    }
}

/// See [`Arithmetic::scores`].
#[inline(always)]
unsafe fn scores<S: Simd, R: Element, const Q: usize, const STAGED: bool>(
    tile: &Tile,
    queries: [*const f32; Q],
) -> [S::V; Q] {
    // SAFETY: as the caller promised.
    unsafe {
        if S::WIDE || Q <= 2 {
            return products::<S, R, Q, STAGED>(tile, queries);
        }
        // Registers hold the sums of two.
        let (mut tile, mut scores) = (*tile, [S::splat(0.0); Q]);
        for n in (0..Q).step_by(2) {
            let other = (n + 1).min(Q - 1);
            [scores[n], scores[other]] = products::<S, R, 2, STAGED>(&tile, [queries[n], queries[other]]);
            tile.ahead = tile.stored;
        }
        scores
    }
}

#[inline(always)]
unsafe fn products<S: Simd, R: Element, const Q: usize, const STAGED: bool>(
    tile: &Tile,
    queries: [*const f32; Q],
) -> [S::V; Q] {
    let mut at = if STAGED { tile.staged.cast() } else { tile.stored };
    // SAFETY: keys and queries are as wide as whole vectors, or staged and padded to it.
    unsafe {
        let mut sums = [[S::splat(0.0); Q]; 2];
        for i in (0..tile.shape.width).step_by(FOUR) {
            if !STAGED {
                fetch_keys::<S, R>(tile, i);
            }
            let keys = R::widen_keys::<S>(at);
            at = at.wrapping_add(FOUR * LANES * R::BYTES);
            for j in 0..FOUR {
                for n in 0..Q {
                    let query = S::splat(*queries[n].add(i + j));
                    sums[j % 2][n] = S::fma(keys[j], query, sums[j % 2][n]);
                }
            }
        }
        let mut scores = sums[0];
        for n in 0..Q {
            scores[n] = S::add(sums[0][n], sums[1][n]);
        }
        scores
    }
}

/// `outputs[i] += weights[i][slot] * values[slot]`, slot by slot.
#[inline(always)]
unsafe fn values<S: Simd, R: Element, const Q: usize, const STAGED: bool>(
    tile: &Tile,
    slots: &Range<usize>,
    weights: [&[f32; TILE]; Q],
    outputs: [*mut f32; Q],
) {
    const WIDE: usize = 4;
    let width = tile.shape.width;
    let wide = if S::WIDE { width / (WIDE * LANES) * (WIDE * LANES) } else { 0 };
    // SAFETY: rows and outputs are as wide as whole vectors.
    unsafe {
        for i in (0..wide).step_by(WIDE * LANES) {
            add::<S, R, Q, STAGED, WIDE>(tile, slots, weights, outputs, i);
        }
        for i in (wide..width).step_by(LANES) {
            add::<S, R, Q, STAGED, 1>(tile, slots, weights, outputs, i);
        }
    }
}

/// The same for the `N` vectors of elements from `at` on.
#[inline(always)]
unsafe fn add<S: Simd, R: Element, const Q: usize, const STAGED: bool, const N: usize>(
    tile: &Tile,
    slots: &Range<usize>,
    weights: [&[f32; TILE]; Q],
    outputs: [*mut f32; Q],
    at: usize,
) {
    // SAFETY: as the caller promised.
    unsafe {
        let mut sums = [[S::splat(0.0); N]; Q];
        for i in 0..Q {
            for n in 0..N {
                sums[i][n] = S::load(outputs[i].add(at + n * LANES));
            }
        }
        let (first, stride) = rows::<STAGED>(tile);
        for slot in slots.clone() {
            let row = first.wrapping_add(slot.wrapping_mul(stride)).add(at * R::BYTES);
            let mut value = [S::splat(0.0); N];
            for n in 0..N {
                value[n] = R::widen::<S>(row.add(n * LANES * R::BYTES));
                // What comes before these vectors was asked for with that.
                let offset = (at * TILE + (slot * N + n) * LANES) * R::BYTES;
                if !STAGED && offset.is_multiple_of(LINE) {
                    tile.fetch::<S>(offset);
                }
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
                S::store(outputs[i].add(at + n * LANES), sums[i][n]);
            }
        }
    }
}
