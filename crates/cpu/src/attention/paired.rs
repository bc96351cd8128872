//! Sums of values in fp8, by weights in bf16: the second half of [`dots`](super::dots).
//!
//! Two positions lie together in a lane, which an output sums in order. That leaves outputs in an order of their own
//! until [`arrange`]: of every sixteen, vector `2 j + h` of a chunk has elements `8 j + h`, `8 j + h + 2` and so on.

#![allow(clippy::needless_range_loop, reason = "indices name registers, over several arrays at once")]

use super::arithmetic::{ABREAST, Tiles};
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
pub(crate) unsafe fn stage(tiles: &Tiles, slots: &[Range<usize>; ABREAST]) {
    let (width, mut ahead) = (tiles.shape.width, tiles.ahead);
    for pair in 0..PAIRS {
        for chunk in (0..width).step_by(CHUNK) {
            // SAFETY: as the caller promised.
            unsafe {
                ahead.ask::<Avx512>(2);
                for t in 0..ABREAST {
                    if slots[t].start < 2 * (pair + 1) && 2 * pair < slots[t].end {
                        let to = tiles.staged[t].add(pair * width + chunk).cast::<[__m512i; VECTORS]>();
                        to.write(values(tiles, t, pair, chunk));
                    }
                }
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
    tiles: &Tiles,
    weights: [*const Line; Q],
    outputs: [*mut f32; Q],
) {
    let mut ahead = tiles.ahead;
    for chunk in (0..tiles.shape.width).step_by(CHUNK) {
        // SAFETY: as the caller promised; rows of scratch are as wide as whole chunks.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); VECTORS]; Q];
            for n in 0..Q {
                for i in 0..VECTORS {
                    sums[n][i] = _mm512_load_ps(outputs[n].add(chunk + i * LANES));
                }
            }
            for pair in 0..PAIRS {
                for t in 0..ABREAST {
                    if !STAGED {
                        ahead.ask::<Avx512>(2 / ABREAST);
                    }
                    let values = if STAGED {
                        let at = pair.wrapping_mul(tiles.shape.width).wrapping_add(chunk);
                        tiles.staged[t].wrapping_add(at).cast::<[__m512i; VECTORS]>().read()
                    } else {
                        values(tiles, t, pair, chunk)
                    };
                    for n in 0..Q {
                        let weights = &*weights[n].wrapping_add(t).cast::<Weights>();
                        let weight = _mm512_set1_epi32(weights[pair]);
                        for i in 0..VECTORS {
                            sums[n][i] = dot(sums[n][i], values[i], weight);
                        }
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

/// A chunk of two rows of tile `t`, in bf16 and paired.
#[inline(always)]
unsafe fn values(tiles: &Tiles, t: usize, pair: usize, chunk: usize) -> [__m512i; VECTORS] {
    // SAFETY: as the caller promised.
    unsafe {
        let first = tiles.stored[t].wrapping_add(pair.wrapping_mul(2 * tiles.shape.row_bytes));
        let second = first.wrapping_add(tiles.shape.row_bytes);
        let (x, y) = (load(first, chunk, tiles.shape.dim), load(second, chunk, tiles.shape.dim));
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
