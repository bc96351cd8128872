//! Products of bytes, for int8 and fp8 on processors with VNNI and VBMI: four multiply-adds a lane where f32 has one.
//!
//! - A query is rounded to fifteen bits and a sign, relative to its largest element; once.
//! - The weights of a tile are rounded to sixteen bits, relative to their largest; by every query for itself.
//! - int8 elements are what they are; fp8 elements become fifteen bits and a sign (see [`Planes`]).
//!
//! Sixteen bits are two bytes: a product takes two or three of bytes, as the lowest by the lowest is left out. Keys
//! are transposed, so that a lane is a position, and sums of integers are exact: their order does not matter.

#![allow(clippy::needless_range_loop, reason = "indices name registers, over several arrays at once")]

use super::arithmetic::{Arithmetic, Block, Tile};
use super::planes::Planes;
use super::softmax::State;
use super::tile::{BLOCK, TILE};
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
/// Beyond this many elements, sums of products could overflow.
pub(crate) const WIDEST: usize = 512;

pub(crate) struct Integer<E>(PhantomData<E>);

/// Elements of a row from `at` on; 0 behind its end.
///
/// # Safety
/// AVX-512 BW; the row is readable.
#[inline(always)]
pub(crate) unsafe fn load(row: *const u8, at: usize, dim: usize) -> __m512i {
    let (left, from) = (dim.wrapping_sub(at), row.wrapping_add(at));
    // SAFETY: bytes that are masked out are not read.
    unsafe {
        if left >= CHUNK {
            _mm512_loadu_si512(from.cast())
        } else {
            _mm512_maskz_loadu_epi8((1 << left) - 1, from.cast())
        }
    }
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
                let fours = fours(tile, chunk);
                let to = to[0].cast::<[__m512i; 2]>().add(chunk / GROUP);
                for j in 0..4 {
                    let keys = quarters(fours[j]);
                    for i in 0..4 {
                        to.add(4 * i + j).write(E::keys(keys[i], &mut worst));
                    }
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
            let mut sums = Products::new();
            for chunk in (0..tile.width).step_by(CHUNK) {
                if STAGED {
                    let keys = tile.rows[0].cast::<[__m512i; 2]>().wrapping_add(chunk / GROUP);
                    for i in 0..CHUNK / GROUP {
                        sums.add::<E>(&queries, keys.wrapping_add(i).read(), chunk + i * GROUP);
                    }
                } else {
                    // Written out, as a loop would keep them all in memory.
                    let [a, b, c, d] = fours(tile, chunk);
                    sums.add_four::<E>(&queries, a, chunk);
                    sums.add_four::<E>(&queries, b, chunk + GROUP);
                    sums.add_four::<E>(&queries, c, chunk + 2 * GROUP);
                    sums.add_four::<E>(&queries, d, chunk + 3 * GROUP);
                }
            }
            let mut scores = sums.finish(&queries);
            if !(if STAGED { tile.numbers[0] } else { E::numbers(sums.worst) }) {
                mark::<E, Q>(tile, slots, &mut scores);
            }
            scores
        }
    }

    #[inline(always)]
    unsafe fn add_values<const Q: usize, const STAGED: bool>(
        block: &Block,
        slots: &Range<usize>,
        weights: &[[__m512; BLOCK]; Q],
        outputs: [*mut f32; Q],
    ) {
        // SAFETY: as the caller promised.
        unsafe { weighted::add_values::<E, Q, STAGED>(block, slots, weights, outputs) }
    }

    #[inline(always)]
    unsafe fn arrange(output: *mut f32, width: usize) {
        // SAFETY: as the caller promised.
        unsafe { weighted::arrange(output, width) }
    }
}

/// Sums of products of queries with sixteen keys, by high and by low bytes.
struct Products<const Q: usize> {
    high: [__m512i; Q],
    low: [__m512i; Q],
    /// See [`Planes::keys`].
    worst: __m512i,
}

impl<const Q: usize> Products<Q> {
    #[inline(always)]
    unsafe fn new() -> Self {
        // SAFETY: AVX-512 F.
        let zero = unsafe { _mm512_setzero_si512() };
        Self { high: [zero; Q], low: [zero; Q], worst: zero }
    }

    /// Adds those of the elements from `at` on: four of each key.
    #[inline(always)]
    unsafe fn add<E: Planes>(&mut self, queries: &[Query; Q], keys: [__m512i; 2], at: usize) {
        // SAFETY: as the caller promised.
        unsafe {
            for n in 0..Q {
                let [h, l] = queries[n].load(at);
                self.high[n] = _mm512_dpbusd_epi32(self.high[n], keys[0], h);
                self.low[n] = _mm512_dpbusd_epi32(self.low[n], keys[0], l);
                if E::LOW {
                    self.low[n] = _mm512_dpbusd_epi32(self.low[n], keys[1], h);
                }
            }
        }
    }

    /// Adds those of one of the [`fours`], the first of whose elements are those from `at` on.
    #[inline(always)]
    unsafe fn add_four<E: Planes>(&mut self, queries: &[Query; Q], four: [__m512i; 4], at: usize) {
        // SAFETY: as the caller promised.
        unsafe {
            let [a, b, c, d] = quarters(four);
            let keys = E::keys(a, &mut self.worst);
            self.add::<E>(queries, keys, at);
            let keys = E::keys(b, &mut self.worst);
            self.add::<E>(queries, keys, at + 4 * GROUP);
            let keys = E::keys(c, &mut self.worst);
            self.add::<E>(queries, keys, at + 8 * GROUP);
            let keys = E::keys(d, &mut self.worst);
            self.add::<E>(queries, keys, at + 12 * GROUP);
        }
    }

    #[inline(always)]
    unsafe fn finish(&self, queries: &[Query; Q]) -> [__m512; Q] {
        // SAFETY: as the caller promised.
        unsafe {
            let mut scores = [_mm512_setzero_ps(); Q];
            for n in 0..Q {
                // Where a sum overflows, the difference is right all the same.
                let sum = _mm512_add_epi32(_mm512_slli_epi32::<8>(self.high[n]), self.low[n]);
                scores[n] = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, _mm512_set1_epi32(queries[n].shift())));
            }
            scores
        }
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

/// Keys of all sixteen positions, their elements from `chunk` on: the `i`-th of the `j`-th four has elements `4 j..` of
/// every sixteen, of rows `4 i..`.
///
/// # Safety
/// AVX-512 BW; the rows are readable.
#[inline(always)]
unsafe fn fours(tile: &Tile, chunk: usize) -> [[__m512i; 4]; 4] {
    // SAFETY: as the caller promised.
    unsafe {
        let [a, b, c, d] = [
            four_rows(tile, 0, chunk),
            four_rows(tile, 4, chunk),
            four_rows(tile, 8, chunk),
            four_rows(tile, 12, chunk),
        ];
        [
            [a[0], b[0], c[0], d[0]],
            [a[1], b[1], c[1], d[1]],
            [a[2], b[2], c[2], d[2]],
            [a[3], b[3], c[3], d[3]],
        ]
    }
}

/// Those of rows `first..`.
///
/// # Safety
/// AVX-512 BW; the rows are readable.
#[inline(always)]
unsafe fn four_rows(tile: &Tile, first: usize, chunk: usize) -> [__m512i; 4] {
    // SAFETY: as the caller promised.
    unsafe {
        let mut x = [_mm512_setzero_si512(); 4];
        let mut row = tile.stored[0].wrapping_add(first.wrapping_mul(tile.row_bytes));
        for x in &mut x {
            *x = load(row, chunk, tile.dim);
            tile.fetch::<Avx512>(0, row.wrapping_add(chunk));
            row = row.wrapping_add(tile.row_bytes);
        }
        let (ab, cd) = (_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpacklo_epi32(x[2], x[3]));
        let (ef, gh) = (_mm512_unpackhi_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[2], x[3]));
        [
            _mm512_unpacklo_epi64(ab, cd),
            _mm512_unpackhi_epi64(ab, cd),
            _mm512_unpacklo_epi64(ef, gh),
            _mm512_unpackhi_epi64(ef, gh),
        ]
    }
}

/// [`Simd::transpose_quarters`]: four elements of each position from four [`fours`].
///
/// # Safety
/// AVX-512 F.
#[inline(always)]
unsafe fn quarters(x: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: as the caller promised.
    unsafe {
        let low = [_mm512_shuffle_i32x4::<0x44>(x[0], x[1]), _mm512_shuffle_i32x4::<0x44>(x[2], x[3])];
        let high = [_mm512_shuffle_i32x4::<0xee>(x[0], x[1]), _mm512_shuffle_i32x4::<0xee>(x[2], x[3])];
        [
            _mm512_shuffle_i32x4::<0x88>(low[0], low[1]),
            _mm512_shuffle_i32x4::<0xdd>(low[0], low[1]),
            _mm512_shuffle_i32x4::<0x88>(high[0], high[1]),
            _mm512_shuffle_i32x4::<0xdd>(high[0], high[1]),
        ]
    }
}

const _: () = assert!(TILE == LANES);
