//! Products of bytes, for int8 and fp8 on processors with VNNI and VBMI: four multiply-adds a lane where f32 has one.
//!
//! - A query is rounded to fifteen bits and a sign, relative to its largest element; once.
//! - The weights of a tile are rounded to sixteen bits, relative to their largest; by every query for itself.
//! - int8 elements are what they are; fp8 elements become fifteen bits and a sign (see [`Planes`]).
//!
//! Sixteen bits are two bytes: a product takes two or three of bytes, as the lowest by the lowest is left out. Keys
//! are transposed, so that a lane is a position, and sums of integers are exact: their order does not matter.

#![allow(clippy::needless_range_loop, reason = "indices name registers, over several arrays at once")]

use super::arithmetic::{Arithmetic, Tile};
use super::planes::Planes;
use super::softmax::State;
use super::tile::TILE;
use super::weighted;
use crate::simd::{Avx512, LANES, Simd};
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::Range;

/// Both bytes of a query's element are signed.
const LARGEST: f32 = 32639.0;
/// Elements that are read at once.
pub(crate) const CHUNK: usize = 64;
/// Elements that a lane multiplies at once.
const GROUP: usize = 4;
const GROUPS: usize = CHUNK / GROUP;
/// Beyond this many elements, sums of products could overflow.
pub(crate) const WIDEST: usize = 512;

pub(crate) struct Integer<E>(PhantomData<E>);

/// Elements of a row from `at` on; 0 behind its end.
///
/// # Safety
/// AVX-512 BW; the row is readable.
#[inline(always)]
pub(crate) unsafe fn load(row: *const u8, at: usize, dim: usize) -> __m512i {
    let left = dim.wrapping_sub(at);
    let mask = if left >= CHUNK { !0 } else { (1 << left) - 1 };
    // SAFETY: bytes that are masked out are not read.
    unsafe { _mm512_maskz_loadu_epi8(mask, row.wrapping_add(at).cast()) }
}

impl<E: Planes> Arithmetic for Integer<E> {
    type S = Avx512;
    const STEP: usize = CHUNK;
    const STAGE_FROM: usize = 9;
    const PADS: bool = true;
    const SCALED: bool = true;
    const SHIFTED: bool = E::SHIFTED;

    #[inline(always)]
    unsafe fn parameters(stored: *const u8) -> [__m512; 2] {
        // SAFETY: as the caller promised.
        unsafe { E::parameters(stored) }
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
            let (mut largest, mut sum) = (_mm512_setzero_ps(), _mm512_setzero_ps());
            for i in (0..dim).step_by(LANES) {
                let x = query_part(from, i, dim, scale);
                largest = _mm512_max_ps(largest, _mm512_abs_ps(x));
                sum = _mm512_add_ps(sum, x);
            }
            state.sum = Avx512::sum(sum);
            let largest = Avx512::largest(largest);
            let factor = if largest > 0.0 { LARGEST / largest } else { 0.0 };
            // If an element is not finite, no score will be a number.
            state.factor = if state.sum.is_finite() { largest / LARGEST * E::UNIT } else { f32::NAN };
            for i in (0..dim).step_by(LANES) {
                let x = _mm512_mul_ps(query_part(from, i, dim, scale), _mm512_set1_ps(factor));
                Query::new(to, width).store::<E>(i, _mm512_cvtps_epi32(x));
            }
        }
    }

    #[inline(always)]
    unsafe fn stage(tile: &mut Tile, slots: &Range<usize>, to: [*mut f32; 2]) {
        // SAFETY: a tile's rows are readable; scratch has room for two bytes an element, and more.
        unsafe {
            let mut worst = _mm512_setzero_si512();
            for chunk in (0..tile.width).step_by(CHUNK) {
                let keys = transposed(tile, chunk);
                let to = to[0].cast::<[__m512i; 2]>().add(chunk / GROUP);
                for i in 0..GROUPS {
                    to.add(i).write(E::keys(keys[i], &mut worst));
                }
            }
            tile.numbers[0] = E::numbers(worst);
            weighted::stage::<E>(tile, slots, to[1]);
        }
    }

    #[inline(always)]
    unsafe fn scores<const Q: usize, const STAGED: bool>(
        tile: &Tile,
        slots: &Range<usize>,
        queries: [*const f32; Q],
    ) -> [__m512; Q] {
        // SAFETY: as the caller promised; rows of scratch are as wide as whole chunks.
        unsafe {
            let queries = queries.map(|query| Query::new(query.cast_mut(), tile.width));
            let (mut high, mut low) = ([_mm512_setzero_si512(); Q], [_mm512_setzero_si512(); Q]);
            let mut worst = _mm512_setzero_si512();
            for chunk in (0..tile.width).step_by(CHUNK) {
                let staged = tile.rows[0].cast::<[__m512i; 2]>().add(chunk / GROUP);
                let stored = if STAGED { [_mm512_setzero_si512(); GROUPS] } else { transposed(tile, chunk) };
                for i in 0..GROUPS {
                    let keys = if STAGED { staged.add(i).read() } else { E::keys(stored[i], &mut worst) };
                    for n in 0..Q {
                        let [h, l] = queries[n].load(chunk + i * GROUP);
                        high[n] = _mm512_dpbusd_epi32(high[n], keys[0], h);
                        low[n] = _mm512_dpbusd_epi32(low[n], keys[0], l);
                        if E::LOW {
                            low[n] = _mm512_dpbusd_epi32(low[n], keys[1], h);
                        }
                    }
                }
            }
            let mut scores = [_mm512_setzero_ps(); Q];
            for n in 0..Q {
                // Where a sum overflows, the difference is right all the same.
                let sum = _mm512_add_epi32(_mm512_slli_epi32::<8>(high[n]), low[n]);
                scores[n] = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, _mm512_set1_epi32(queries[n].shift())));
            }
            if !(if STAGED { tile.numbers[0] } else { E::numbers(worst) }) {
                mark::<E, Q>(tile, slots, &mut scores);
            }
            scores
        }
    }

    #[inline(always)]
    unsafe fn add_values<const Q: usize, const STAGED: bool>(
        tile: &Tile,
        slots: &Range<usize>,
        weights: [__m512; Q],
        outputs: [*mut f32; Q],
    ) {
        // SAFETY: as the caller promised.
        unsafe { weighted::add_values::<E, Q, STAGED>(tile, slots, weights, outputs) }
    }

    #[inline(always)]
    unsafe fn arrange(output: *mut f32, width: usize) {
        // SAFETY: as the caller promised.
        unsafe { weighted::arrange(output, width) }
    }
}

/// Sixteen elements of a query, scaled; 0 behind its end.
#[inline(always)]
unsafe fn query_part(from: *const f32, at: usize, dim: usize, scale: f32) -> __m512 {
    let mask = if dim - at >= LANES { !0 } else { (1 << (dim - at)) - 1 };
    // SAFETY: elements that are masked out are not read.
    unsafe { _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, from.add(at)), _mm512_set1_ps(scale)) }
}

/// A query in bytes: `[width]` high ones, `[width]` low ones, and what the 128 in the keys adds to its products.
#[derive(Clone, Copy)]
struct Query {
    high: *mut u8,
    low: *mut u8,
    shift: *mut i32,
}

impl Query {
    #[inline(always)]
    fn new(row: *mut f32, width: usize) -> Self {
        let high = row.cast::<u8>();
        let low = high.wrapping_add(width);
        Self { high, low, shift: low.wrapping_add(width).cast() }
    }

    #[inline(always)]
    unsafe fn store<E: Planes>(&self, at: usize, x: __m512i) {
        // SAFETY: sixteen elements of the row.
        unsafe {
            let high = _mm512_srai_epi32::<8>(_mm512_add_epi32(x, _mm512_set1_epi32(128)));
            let low = _mm512_sub_epi32(x, _mm512_slli_epi32::<8>(high));
            _mm_storeu_si128(self.high.add(at).cast(), _mm512_cvtepi32_epi8(high));
            _mm_storeu_si128(self.low.add(at).cast(), _mm512_cvtepi32_epi8(low));
            let sum = if E::LOW { _mm512_add_epi32(x, high) } else { x };
            *self.shift = (*self.shift).wrapping_add(_mm512_reduce_add_epi32(sum).wrapping_mul(128));
        }
    }

    /// Four elements in every lane: high bytes, and low bytes.
    #[inline(always)]
    unsafe fn load(&self, at: usize) -> [__m512i; 2] {
        // SAFETY: four elements of the row.
        unsafe {
            [
                _mm512_set1_epi32(self.high.add(at).cast::<i32>().read()),
                _mm512_set1_epi32(self.low.add(at).cast::<i32>().read()),
            ]
        }
    }

    #[inline(always)]
    unsafe fn shift(&self) -> i32 {
        // SAFETY: it was written with the query.
        unsafe { *self.shift }
    }
}

/// Scores of keys with an element that is no number are none either.
#[cold]
#[inline(never)]
unsafe fn mark<E: Planes, const Q: usize>(tile: &Tile, slots: &Range<usize>, scores: &mut [__m512; Q]) {
    for slot in slots.clone() {
        // SAFETY: a stored row; sixteen lanes.
        unsafe {
            let row = std::slice::from_raw_parts(tile.stored[0].add(slot * tile.row_bytes), tile.dim);
            if !row.iter().all(|x| E::number(*x)) {
                for score in scores.iter_mut() {
                    *std::ptr::from_mut(score).cast::<f32>().add(slot) = f32::NAN;
                }
            }
        }
    }
}

/// Keys of all sixteen positions, their elements from `chunk` on: the `i`-th vector has four elements of each.
///
/// # Safety
/// AVX-512 BW; the rows are readable.
#[inline(always)]
unsafe fn transposed(tile: &Tile, chunk: usize) -> [__m512i; GROUPS] {
    // SAFETY: as the caller promised.
    unsafe {
        let mut fours = [[_mm512_setzero_si512(); 4]; 4];
        let mut row = tile.stored[0];
        for i in 0..4 {
            let mut x = [_mm512_setzero_si512(); 4];
            for j in 0..4 {
                x[j] = load(row, chunk, tile.dim);
                tile.fetch::<Avx512>(0, row.wrapping_add(chunk));
                row = row.wrapping_add(tile.row_bytes);
            }
            let (ab, cd) = (_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpacklo_epi32(x[2], x[3]));
            fours[0][i] = _mm512_unpacklo_epi64(ab, cd);
            fours[1][i] = _mm512_unpackhi_epi64(ab, cd);
            let (ab, cd) = (_mm512_unpackhi_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[2], x[3]));
            fours[2][i] = _mm512_unpacklo_epi64(ab, cd);
            fours[3][i] = _mm512_unpackhi_epi64(ab, cd);
        }
        // `fours[j][i]` has elements 4 j.. of every sixteen, of rows 4 i...
        let mut all = [_mm512_setzero_si512(); GROUPS];
        for j in 0..4 {
            let x = fours[j];
            let low = [_mm512_shuffle_i32x4::<0x44>(x[0], x[1]), _mm512_shuffle_i32x4::<0x44>(x[2], x[3])];
            let high = [_mm512_shuffle_i32x4::<0xee>(x[0], x[1]), _mm512_shuffle_i32x4::<0xee>(x[2], x[3])];
            all[j] = _mm512_shuffle_i32x4::<0x88>(low[0], low[1]);
            all[4 + j] = _mm512_shuffle_i32x4::<0xdd>(low[0], low[1]);
            all[8 + j] = _mm512_shuffle_i32x4::<0x88>(high[0], high[1]);
            all[12 + j] = _mm512_shuffle_i32x4::<0xdd>(high[0], high[1]);
        }
        all
    }
}

const _: () = assert!(TILE == LANES);
