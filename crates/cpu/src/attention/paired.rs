//! Sums of values in fp8, by weights in bf16: the second half of [`dots`](super::dots).
//!
//! Two positions lie together in a lane, which an output sums in order. That leaves outputs in an order of their own
//! until [`arrange`]: of every sixteen, vector `2 j + h` of a chunk has elements `8 j + h`, `8 j + h + 2` and so on.

#![allow(clippy::needless_range_loop, reason = "indices name registers, over several arrays at once")]

use super::arithmetic::Tile;
use super::bytes::{CHUNK, in_order, load};
use super::dots::dot;
use super::e4m3::words;
use super::scratch::Line;
use super::tile::{BLOCK, TILE};
use crate::simd::{Avx512, LANES, Simd};
use std::arch::x86_64::*;
use std::mem::transmute;
use std::ops::Range;

const PAIRS: usize = TILE / 2;
/// Vectors of an output's chunk.
const VECTORS: usize = CHUNK / LANES;

/// Weights of a tile: two positions each.
type Weights = [i32; PAIRS];

/// # Safety
/// As [`Arithmetic::stage_values`](super::arithmetic::Arithmetic::stage_values).
#[inline(always)]
pub(crate) unsafe fn stage(tile: &Tile, slots: &Range<usize>, to: *mut f32) {
    // SAFETY: as the caller promised.
    unsafe {
        for pair in slots.start / 2..slots.end.div_ceil(2) {
            for chunk in (0..tile.shape.width).step_by(CHUNK) {
                let to = to.add(pair * tile.shape.width + chunk).cast::<[__m512i; VECTORS]>();
                to.write(values(tile, pair, chunk));
            }
        }
    }
}

/// # Safety
/// As [`Arithmetic::store_weights`](super::arithmetic::Arithmetic::store_weights).
#[inline(always)]
pub(crate) unsafe fn store_weights<const Q: usize>(weights: &[[__m512; BLOCK]; Q], to: [*mut Line; Q]) {
    for n in 0..Q {
        for tile in 0..BLOCK {
            // SAFETY: as the caller promised; a tile has as many weights as fit into its pairs, and a line into more.
            unsafe {
                let pairs = transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(weights[n][tile]));
                _mm256_store_si256(to[n].add(tile).cast(), pairs);
            }
        }
    }
}

/// `outputs[i] += weights[i] * values`.
///
/// # Safety
/// As [`Arithmetic::add_values`](super::arithmetic::Arithmetic::add_values).
#[inline(always)]
pub(crate) unsafe fn add_values<const Q: usize, const STAGED: bool>(
    tile: &Tile,
    weights: [*const Line; Q],
    outputs: [*mut f32; Q],
) {
    for chunk in (0..tile.shape.width).step_by(CHUNK) {
        // SAFETY: as the caller promised; rows of scratch are as wide as whole chunks.
        unsafe {
            let weights = weights.map(|line| &*line.cast::<Weights>());
            let mut sums = [[_mm512_setzero_ps(); VECTORS]; Q];
            for n in 0..Q {
                for i in 0..VECTORS {
                    sums[n][i] = _mm512_load_ps(outputs[n].add(chunk + i * LANES));
                }
            }
            for pair in 0..PAIRS {
                let values = if STAGED {
                    let at = pair.wrapping_mul(tile.shape.width).wrapping_add(chunk);
                    tile.staged.wrapping_add(at).cast::<[__m512i; VECTORS]>().read()
                } else {
                    values(tile, pair, chunk)
                };
                for n in 0..Q {
                    let weight = _mm512_set1_epi32(weights[n][pair]);
                    for i in 0..VECTORS {
                        sums[n][i] = dot(sums[n][i], values[i], weight);
                    }
                }
            }
            for n in 0..Q {
                for i in 0..VECTORS {
                    _mm512_store_ps(outputs[n].add(chunk + i * LANES), sums[n][i]);
                }
            }
        }
    }
}

/// A chunk of two rows, in bf16 and paired.
#[inline(always)]
unsafe fn values(tile: &Tile, pair: usize, chunk: usize) -> [__m512i; VECTORS] {
    // SAFETY: as the caller promised.
    unsafe {
        let first = tile.stored.wrapping_add(pair.wrapping_mul(2 * tile.shape.row_bytes));
        let second = first.wrapping_add(tile.shape.row_bytes);
        let (x, y) = (load(first, chunk, tile.shape.dim), load(second, chunk, tile.shape.dim));
        let offset = chunk * TILE + 2 * pair * CHUNK;
        tile.fetch::<Avx512>(offset);
        tile.fetch::<Avx512>(offset + CHUNK);
        // Two elements of the one, then two of the other: their first ones are a pair, and their second ones.
        let [a, b] = words(_mm512_unpacklo_epi16(x, y));
        let [c, d] = words(_mm512_unpackhi_epi16(x, y));
        [a, b, c, d]
    }
}

/// Brings outputs in order, and multiplies them.
///
/// # Safety
/// As [`Arithmetic::arrange`](super::arithmetic::Arithmetic::arrange).
#[inline(always)]
pub(crate) unsafe fn arrange(output: *mut f32, width: usize, factor: f32) {
    for chunk in (0..width).step_by(CHUNK) {
        // SAFETY: as the caller promised.
        unsafe {
            let (at, factor) = (output.add(chunk), Avx512::splat(factor));
            let mut x = [factor; VECTORS];
            for i in 0..VECTORS {
                x[i] = Avx512::mul(Avx512::load(at.add(i * LANES)), factor);
            }
            let four = [
                _mm512_unpacklo_ps(x[0], x[1]),
                _mm512_unpackhi_ps(x[0], x[1]),
                _mm512_unpacklo_ps(x[2], x[3]),
                _mm512_unpackhi_ps(x[2], x[3]),
            ];
            in_order(at, four);
        }
    }
}
