//! Dot products of bf16, for fp8 on processors that have them: two multiply-adds a lane where f32 has one.
//!
//! - Elements are exact (see [`e4m3`](super::e4m3)), but that the processor takes subnormal ones for 0: less than a
//!   1/28000 of a row's largest, which is 448.
//! - A query is rounded to bf16, once: an eighth bit, where the keys have their fourth.
//! - The weights of values, times their scales, are rounded to bf16: by every query for itself.
//! - Scales are lifted, so that rows with magnitudes from about 1.2e17 on (which f16 does not hold, either) count as
//!   infinite.
//!
//! A lane is a position; a score is summed in two parts, every second pair of elements each.

#![allow(clippy::needless_range_loop, reason = "indices name registers, over several arrays at once")]

use super::arithmetic::{ABREAST, Arithmetic, Tiles};
use super::bytes::{CHUNK, fours, keys, query_part, staged, whole_keys};
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
    unsafe fn stage_keys(tiles: &Tiles) {
        // SAFETY: the tiles' rows are readable; scratch has room for two bytes an element, and more, from a `Line` on.
        unsafe {
            let mut ahead = tiles.ahead;
            for i in 0..fours(tiles.shape.dim) {
                ahead.ask::<Avx512>(1);
                let keys = keys(tiles, i);
                for t in 0..ABREAST {
                    tiles.staged[t].cast::<[__m512i; 2]>().add(i).write(words(keys[t]));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn stage_values(tiles: &Tiles, slots: &[Range<usize>; ABREAST]) {
        // SAFETY: as the caller promised.
        unsafe { paired::stage(tiles, slots) }
    }

    #[inline(always)]
    unsafe fn scores<const Q: usize, const STAGED: bool>(
        tiles: &Tiles,
        queries: [*const f32; Q],
    ) -> [[__m512; Q]; ABREAST] {
        // SAFETY: as the caller promised; rows of scratch are as wide as whole chunks.
        unsafe {
            let (mut sums, mut ahead) = (Products::new(), tiles.ahead);
            let (count, whole) = (fours(tiles.shape.dim), tiles.shape.dim / FOUR);
            for i in 0..whole {
                if !STAGED {
                    ahead.ask::<Avx512>(1);
                }
                sums.add(&queries, if STAGED { staged(tiles, i) } else { both(whole_keys(tiles, i)) }, i);
            }
            for i in whole..count {
                sums.add(&queries, if STAGED { staged(tiles, i) } else { both(keys(tiles, i)) }, i);
            }
            let mut scores = [[_mm512_setzero_ps(); Q]; ABREAST];
            for t in 0..ABREAST {
                for n in 0..Q {
                    scores[t][n] = _mm512_add_ps(sums.first[t][n], sums.second[t][n]);
                }
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
        tiles: &Tiles,
        _slots: &[Range<usize>; ABREAST],
        weights: [*const Line; Q],
        outputs: [*mut f32; Q],
    ) {
        // SAFETY: as the caller promised; what is not seen weighs 0.
        unsafe { paired::add_values::<Q, STAGED>(tiles, weights, outputs) }
    }

    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    unsafe fn apart<R>(f: impl FnOnce() -> R) -> R {
        f()
    }

    #[inline(always)]
    unsafe fn arrange(output: *mut f32, width: usize) {
        // SAFETY: as the caller promised.
        unsafe { paired::arrange(output, width, UNIT / LIFT) }
    }
}

/// Four elements of the sixteen keys of each tile, as they are multiplied.
#[inline(always)]
unsafe fn both([first, second]: [__m512i; ABREAST]) -> [[__m512i; 2]; ABREAST] {
    // SAFETY: AVX-512 BW.
    unsafe { [words(first), words(second)] }
}

/// Sums of products of queries with the sixteen keys of each tile: of the first and third of every four elements, and of the
/// others.
struct Products<const Q: usize> {
    first: [[__m512; Q]; ABREAST],
    second: [[__m512; Q]; ABREAST],
}

impl<const Q: usize> Products<Q> {
    #[inline(always)]
    unsafe fn new() -> Self {
        // SAFETY: AVX-512 F.
        unsafe {
            let zero = [[_mm512_setzero_ps(); Q]; ABREAST];
            Self { first: zero, second: zero }
        }
    }

    /// Adds those of elements `4 i..`.
    #[inline(always)]
    unsafe fn add(&mut self, queries: &[*const f32; Q], keys: [[__m512i; 2]; ABREAST], i: usize) {
        // SAFETY: as the caller promised: four elements of each query.
        unsafe {
            for n in 0..Q {
                let [first, second] = queries[n].cast::<[i32; 2]>().wrapping_add(i).read();
                let (first, second) = (_mm512_set1_epi32(first), _mm512_set1_epi32(second));
                for t in 0..ABREAST {
                    self.first[t][n] = dot(self.first[t][n], keys[t][0], first);
                    self.second[t][n] = dot(self.second[t][n], keys[t][1], second);
                }
            }
        }
    }
}
