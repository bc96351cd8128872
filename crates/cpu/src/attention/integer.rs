//! Products of bytes, for int8 on processors with VNNI: four multiply-adds a lane where f32 has one.
//!
//! - A query is rounded to fifteen bits and a sign, relative to its largest element; once.
//! - The weights of a block are rounded to sixteen bits, relative to their largest; by every query for itself.
//!
//! Sixteen bits are two bytes: a product takes two of bytes. A lane is a position, and sums of integers are exact: their
//! order does not matter.

#![allow(clippy::needless_range_loop, reason = "indices name registers, over several arrays at once")]

use super::arithmetic::{ABREAST, Arithmetic, Tiles};
use super::bytes::{CHUNK, fours, in_order, keys, query_part, staged, whole_keys};
use super::element::{Element, Int8};
use super::scratch::Line;
use super::softmax::State;
use super::tile::{BLOCK, TILE};
use super::weighted;
use crate::keys::FOUR;
use crate::simd::{Avx512, LANES, Simd};
use std::arch::x86_64::*;
use std::ops::Range;

/// Both bytes of a query's element are signed.
const LARGEST: f32 = 32639.0;
/// Beyond this many elements, sums of products could overflow.
const WIDEST: usize = 512;

/// Whether the processor has the instructions, for rows of `dim` elements.
pub(crate) fn available(dim: usize) -> bool {
    dim <= WIDEST && is_x86_feature_detected!("avx512vnni")
}

/// # Safety
/// AVX-512 F, BW, DQ and VNNI, for all methods.
pub(crate) struct Integer;

impl Arithmetic for Integer {
    type S = Avx512;
    const STEP: usize = CHUNK;
    const STAGE_FROM: usize = 9;
    const PADS: bool = true;
    const SCALED: bool = true;
    const SHIFTED: bool = true;

    #[inline(always)]
    unsafe fn parameters(stored: *const u8) -> [__m512; 2] {
        // SAFETY: as the caller promised.
        unsafe {
            let [scale, shift] = <Int8 as Element>::parameters::<Avx512>(stored);
            // Elements are read less 128, so that errors of queries and weights weigh less.
            [scale, Avx512::fma(scale, Avx512::splat(128.0), shift)]
        }
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
        // SAFETY: `dim` readable numbers, and a row of scratch.
        unsafe {
            let scale = _mm512_set1_ps(scale);
            let (mut largest, mut sum) = (_mm512_setzero_ps(), _mm512_setzero_ps());
            for i in (0..dim).step_by(LANES) {
                let x = _mm512_mul_ps(query_part(from, i, dim), scale);
                largest = _mm512_max_ps(largest, _mm512_abs_ps(x));
                sum = _mm512_add_ps(sum, x);
            }
            state.sum = Avx512::sum(sum);
            let largest = Avx512::largest(largest);
            let factor = if largest > 0.0 { LARGEST / largest } else { 0.0 };
            // If an element is not finite, no score will be a number.
            state.factor = if state.sum.is_finite() { largest / LARGEST } else { f32::NAN };
            for i in (0..dim).step_by(LANES) {
                let x = _mm512_mul_ps(query_part(from, i, dim), scale);
                let x = _mm512_mul_ps(x, _mm512_set1_ps(factor));
                Query::new(to, width).store(i, _mm512_cvtps_epi32(x));
            }
        }
    }

    #[inline(always)]
    unsafe fn stage_keys(tiles: &Tiles) {
        // SAFETY: the tiles' rows are readable; scratch has room for a byte an element, and more, from a `Line` on.
        unsafe {
            let mut ahead = tiles.ahead;
            for i in 0..fours(tiles.shape.dim) {
                ahead.ask::<Avx512>(1);
                let keys = keys(tiles, i);
                for t in 0..ABREAST {
                    tiles.staged[t].cast::<__m512i>().add(i).write(keys[t]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn stage_values(tiles: &Tiles, slots: &[Range<usize>; ABREAST]) {
        // SAFETY: as the caller promised.
        unsafe { weighted::stage(tiles, slots) }
    }

    #[inline(always)]
    unsafe fn scores<const Q: usize, const STAGED: bool>(
        tiles: &Tiles,
        queries: [*const f32; Q],
    ) -> [[__m512; Q]; ABREAST] {
        // SAFETY: as the caller promised; rows of scratch are as wide as whole chunks.
        unsafe {
            let queries = queries.map(|query| Query::new(query.cast_mut(), tiles.shape.width));
            let (mut sums, mut ahead) = (Products::new(), tiles.ahead);
            let (count, whole) = (fours(tiles.shape.dim), tiles.shape.dim / FOUR);
            for i in 0..whole {
                if !STAGED {
                    ahead.ask::<Avx512>(1);
                }
                sums.add(&queries, if STAGED { staged(tiles, i) } else { whole_keys(tiles, i) }, i);
            }
            for i in whole..count {
                sums.add(&queries, if STAGED { staged(tiles, i) } else { keys(tiles, i) }, i);
            }
            sums.finish(&queries)
        }
    }

    #[inline(always)]
    unsafe fn store_weights<const Q: usize>(weights: &[[__m512; BLOCK]; Q], to: [*mut Line; Q]) {
        // SAFETY: as the caller promised.
        unsafe { weighted::store_weights::<Q>(weights, to) }
    }

    #[inline(always)]
    unsafe fn add_values<const Q: usize, const STAGED: bool>(
        tiles: &Tiles,
        _slots: &[Range<usize>; ABREAST],
        weights: [*const Line; Q],
        outputs: [*mut f32; Q],
    ) {
        // SAFETY: as the caller promised; what is not seen weighs 0.
        unsafe { weighted::add_values::<Q, STAGED>(tiles, weights, outputs) }
    }

    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn apart<R>(f: impl FnOnce() -> R) -> R {
        f()
    }

    #[inline(always)]
    unsafe fn arrange(output: *mut f32, width: usize) {
        for chunk in (0..width).step_by(CHUNK) {
            // SAFETY: rows of scratch are as wide as whole chunks.
            unsafe {
                let at = output.add(chunk);
                let vectors = [
                    Avx512::load(at),
                    Avx512::load(at.add(LANES)),
                    Avx512::load(at.add(2 * LANES)),
                    Avx512::load(at.add(3 * LANES)),
                ];
                in_order(at, vectors);
            }
        }
    }
}

/// Sums of products of queries with the sixteen keys of each tile, by high and by low bytes.
struct Products<const Q: usize> {
    high: [[__m512i; Q]; ABREAST],
    low: [[__m512i; Q]; ABREAST],
}

impl<const Q: usize> Products<Q> {
    #[inline(always)]
    unsafe fn new() -> Self {
        // SAFETY: AVX-512 F.
        let zero = unsafe { [[_mm512_setzero_si512(); Q]; ABREAST] };
        Self { high: zero, low: zero }
    }

    /// Adds those of elements `4 i..`.
    #[inline(always)]
    unsafe fn add(&mut self, queries: &[Query; Q], keys: [__m512i; ABREAST], i: usize) {
        // SAFETY: as the caller promised.
        unsafe {
            for n in 0..Q {
                let [h, l] = queries[n].load(i.wrapping_mul(FOUR));
                for t in 0..ABREAST {
                    self.high[t][n] = _mm512_dpbusd_epi32(self.high[t][n], keys[t], h);
                    self.low[t][n] = _mm512_dpbusd_epi32(self.low[t][n], keys[t], l);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn finish(&self, queries: &[Query; Q]) -> [[__m512; Q]; ABREAST] {
        // SAFETY: as the caller promised.
        unsafe {
            let mut scores = [[_mm512_setzero_ps(); Q]; ABREAST];
            for n in 0..Q {
                let shift = _mm512_set1_epi32(queries[n].shift());
                for t in 0..ABREAST {
                    // Where a sum overflows, the difference is right all the same.
                    let sum = _mm512_add_epi32(_mm512_slli_epi32::<8>(self.high[t][n]), self.low[t][n]);
                    scores[t][n] = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, shift));
                }
            }
            scores
        }
    }
}

/// A query in bytes: of every four elements the high ones, then the low ones; and behind `2 width` of them what the 128 in the
/// keys adds to its products.
#[derive(Clone, Copy)]
struct Query {
    bytes: *mut u8,
    shift: *mut i32,
}

impl Query {
    #[inline(always)]
    fn new(row: *mut f32, width: usize) -> Self {
        let bytes = row.cast::<u8>();
        Self { bytes, shift: bytes.wrapping_add(width.wrapping_mul(2)).cast() }
    }

    #[inline(always)]
    unsafe fn store(&self, at: usize, x: __m512i) {
        // SAFETY: sixteen elements of the row.
        unsafe {
            let high = _mm512_srai_epi32::<8>(_mm512_add_epi32(x, _mm512_set1_epi32(128)));
            let low = _mm512_sub_epi32(x, _mm512_slli_epi32::<8>(high));
            let (high, low) = (_mm512_cvtepi32_epi8(high), _mm512_cvtepi32_epi8(low));
            let to = self.bytes.add(2 * at);
            _mm_storeu_si128(to.cast(), _mm_unpacklo_epi32(high, low));
            _mm_storeu_si128(to.add(LANES).cast(), _mm_unpackhi_epi32(high, low));
            *self.shift = (*self.shift).wrapping_add(_mm512_reduce_add_epi32(x).wrapping_mul(128));
        }
    }

    /// Four elements in every lane: high bytes, and low bytes.
    #[inline(always)]
    unsafe fn load(&self, at: usize) -> [__m512i; 2] {
        // SAFETY: four elements of the row.
        unsafe {
            let four = self.bytes.wrapping_add(at.wrapping_mul(2)).cast::<i32>();
            [_mm512_set1_epi32(four.read()), _mm512_set1_epi32(four.wrapping_add(1).read())]
        }
    }

    #[inline(always)]
    unsafe fn shift(&self) -> i32 {
        // SAFETY: it was written with the query.
        unsafe { *self.shift }
    }
}

const _: () = assert!(TILE == LANES);
