//! Dot products of bf16, for fp8 on processors that have them: two multiply-adds a lane where f32 has one.
//!
//! - Elements are exact (see [`e4m3`](super::e4m3)), but that the processor takes subnormal ones for 0: less than a
//!   1/28000 of a row's largest, which is 448.
//! - A query is rounded to bf16, once: an eighth bit, where the keys have their fourth.
//! - The weights of values, times their scales, are rounded to bf16: by every query for itself.
//! - Scales are lifted, so that rows with magnitudes from about 1.2e17 on (which f16 does not hold, either) count as
//!   infinite.
//!
//! A lane is a position; a score is summed in four parts, every fourth pair of elements each.

#![allow(clippy::needless_range_loop, reason = "indices name registers, over several arrays at once")]

use super::arithmetic::{Arithmetic, Tile};
use super::bytes::{CHUNK, fours, keys, query_part, whole_keys};
use super::e4m3::{UNIT, words};
use super::paired;
use super::scratch::Line;
use super::softmax::State;
use super::tile::BLOCK;
use crate::keys::FOUR;
use crate::simd::{Avx512, LANES, Simd};
use std::arch::x86_64::*;
use std::mem::transmute;
use std::ops::Range;

/// What scales are multiplied with, so that products with elements in [`UNIT`]s are far from the smallest numbers.
const LIFT: f32 = power(80);
/// The exponent of a stored query's largest element, for the same reason.
const QUERY_EXPONENT: i32 = 120;

const fn power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// The processor has the instructions.
pub(crate) fn available() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

/// # Safety
/// AVX-512 F, BW, DQ, VL and BF16, for all methods.
pub(crate) struct Dots;

/// Adds the products of pairs of bf16: of the second, then of the first.
///
/// # Safety
/// AVX-512 BF16.
#[inline(always)]
pub(crate) unsafe fn dot(sum: __m512, x: __m512i, y: __m512i) -> __m512 {
    // SAFETY: as the caller promised; the types differ in name alone.
    unsafe { _mm512_dpbf16_ps(sum, transmute::<__m512i, __m512bh>(x), transmute::<__m512i, __m512bh>(y)) }
}

impl Arithmetic for Dots {
    type S = Avx512;
    const STEP: usize = CHUNK;
    const STAGE_FROM: usize = 9;
    const PADS: bool = true;
    const SCALED: bool = true;
    const SHIFTED: bool = false;

    #[inline(always)]
    unsafe fn parameters(stored: *const u8) -> [__m512; 2] {
        // SAFETY: as the caller promised.
        unsafe { [_mm512_mul_ps(_mm512_loadu_ps(stored.cast()), _mm512_set1_ps(LIFT)), _mm512_setzero_ps()] }
    }

    #[inline(always)]
    unsafe fn load_query(
        from: *const f32,
        dim: usize,
        scale: f32,
        to: *mut f32,
        _width: usize,
        state: &mut State,
    ) {
        // SAFETY: `dim` readable numbers, and a row of scratch.
        unsafe {
            let mut largest = _mm512_setzero_ps();
            for i in (0..dim).step_by(LANES) {
                largest = _mm512_max_ps(largest, _mm512_abs_ps(query_part(from, i, dim)));
            }
            let exponent = (Avx512::largest(largest).to_bits() >> 23) as i32 - 127;
            // At most what f32 has: queries that small stay smaller.
            let lift = (QUERY_EXPONENT - exponent).min(126);
            state.factor = scale * (power(120 - lift) / LIFT);
            for i in (0..dim).step_by(LANES) {
                let x = _mm512_mul_ps(query_part(from, i, dim), _mm512_set1_ps(power(lift)));
                let x = transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x));
                // As `words` brings the elements of a key: the even ones of every four, then the odd ones.
                let x = _mm256_shufflehi_epi16::<0b11_01_10_00>(_mm256_shufflelo_epi16::<0b11_01_10_00>(x));
                _mm256_storeu_si256(to.cast::<u16>().add(i).cast(), x);
            }
        }
    }

    #[inline(always)]
    unsafe fn stage_keys(tile: &Tile, to: *mut f32) {
        // SAFETY: a tile's rows are readable; scratch has room for two bytes an element, and more, from a `Line` on.
        unsafe {
            for i in 0..fours(tile.shape.dim) {
                to.cast::<[__m512i; 2]>().add(i).write(words(keys(tile, i)));
            }
        }
    }

    #[inline(always)]
    unsafe fn stage_values(tile: &Tile, slots: &Range<usize>, to: *mut f32) {
        // SAFETY: as the caller promised.
        unsafe { paired::stage(tile, slots, to) }
    }

    #[inline(always)]
    unsafe fn scores<const Q: usize, const STAGED: bool>(
        tile: &Tile,
        queries: [*const f32; Q],
    ) -> [__m512; Q] {
        // SAFETY: as the caller promised; rows of scratch are as wide as whole chunks.
        unsafe {
            let (count, whole) = (fours(tile.shape.dim), tile.shape.dim / FOUR / 2 * 2);
            // Adding takes several times as long as it is until the next may begin: the more sums the better.
            let [mut even, mut odd] = [Products::new(), Products::new()];
            for i in (0..whole).step_by(2) {
                if STAGED {
                    even.add(&queries, staged(tile, i), i * FOUR);
                    odd.add(&queries, staged(tile, i + 1), (i + 1) * FOUR);
                } else {
                    even.add(&queries, words(whole_keys(tile, i)), i * FOUR);
                    odd.add(&queries, words(whole_keys(tile, i + 1)), (i + 1) * FOUR);
                }
            }
            for i in whole..count {
                let keys = if STAGED { staged(tile, i) } else { words(keys(tile, i)) };
                if i % 2 == 0 {
                    even.add(&queries, keys, i * FOUR);
                } else {
                    odd.add(&queries, keys, i * FOUR);
                }
            }
            let mut scores = [_mm512_setzero_ps(); Q];
            for n in 0..Q {
                let [even, odd] = [even, odd].map(|sums| _mm512_add_ps(sums.first[n], sums.second[n]));
                scores[n] = _mm512_add_ps(even, odd);
            }
            scores
        }
    }

    #[inline(always)]
    unsafe fn store_weights<const Q: usize>(weights: &[[__m512; BLOCK]; Q], to: [*mut Line; Q]) {
        // SAFETY: as the caller promised.
        unsafe { paired::store_weights::<Q>(weights, to) }
    }

    #[inline(always)]
    unsafe fn add_values<const Q: usize, const STAGED: bool>(
        tile: &Tile,
        _slots: &Range<usize>,
        weights: [*const Line; Q],
        outputs: [*mut f32; Q],
    ) {
        // SAFETY: as the caller promised; what is not seen weighs 0.
        unsafe { paired::add_values::<Q, STAGED>(tile, weights, outputs) }
    }

    #[inline(always)]
    unsafe fn arrange(output: *mut f32, width: usize) {
        // SAFETY: as the caller promised.
        unsafe { paired::arrange(output, width, UNIT / LIFT) }
    }
}

/// Four elements of sixteen keys that are staged.
#[inline(always)]
unsafe fn staged(tile: &Tile, i: usize) -> [__m512i; 2] {
    // SAFETY: as the caller promised: staged keys have as many.
    unsafe { tile.staged.cast::<[__m512i; 2]>().add(i).read() }
}

/// Sums of products of queries with sixteen keys: of the first and third of every four elements, and of the others.
#[derive(Clone, Copy)]
struct Products<const Q: usize> {
    first: [__m512; Q],
    second: [__m512; Q],
}

impl<const Q: usize> Products<Q> {
    #[inline(always)]
    unsafe fn new() -> Self {
        // SAFETY: AVX-512 F.
        unsafe {
            let zero = _mm512_setzero_ps();
            Self { first: [zero; Q], second: [zero; Q] }
        }
    }

    /// Adds those of the elements from `at` on: four of each key.
    #[inline(always)]
    unsafe fn add(&mut self, queries: &[*const f32; Q], keys: [__m512i; 2], at: usize) {
        // SAFETY: as the caller promised: four elements of each query.
        unsafe {
            for n in 0..Q {
                let pairs = queries[n].cast::<u16>().wrapping_add(at).cast::<i32>();
                self.first[n] = dot(self.first[n], keys[0], _mm512_set1_epi32(pairs.read()));
                self.second[n] =
                    dot(self.second[n], keys[1], _mm512_set1_epi32(pairs.wrapping_add(1).read()));
            }
        }
    }
}
