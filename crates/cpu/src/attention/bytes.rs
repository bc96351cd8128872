//! Rows of bytes in the orders in which they are multiplied, for AVX-512.

use super::arithmetic::{ABREAST, Tiles};
use crate::keys::{FOUR, last_elements};
use crate::simd::{Avx512, LANES, Simd};
use std::arch::x86_64::*;

/// Elements of a value that are read at once.
pub(crate) const CHUNK: usize = 64;

/// A chunk of a row; 0 behind the end of the row.
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

/// Sixteen elements of a query; 0 behind its end.
///
/// # Safety
/// AVX-512 F; the query is readable, and `at` lies in it.
#[inline(always)]
pub(crate) unsafe fn query_part(from: *const f32, at: usize, dim: usize) -> __m512 {
    let mask = if dim - at >= LANES { !0 } else { (1 << (dim - at)) - 1 };
    // SAFETY: elements that are masked out are not read.
    unsafe { _mm512_maskz_loadu_ps(mask, from.add(at)) }
}

/// How many times four elements keys have, the last time perhaps fewer.
pub(crate) fn fours(dim: usize) -> usize {
    dim.div_ceil(FOUR)
}

/// Elements `4 i..` of the sixteen keys of each tile, four a lane, all of which they have.
///
/// # Safety
/// AVX-512 F; the keys are readable.
#[inline(always)]
pub(crate) unsafe fn whole_keys(tiles: &Tiles, i: usize) -> [__m512i; ABREAST] {
    let at = i.wrapping_mul(FOUR * LANES);
    // No closure: it would not have the instructions.
    let [first, second] = tiles.stored;
    // SAFETY: as the caller promised.
    unsafe {
        [
            _mm512_loadu_si512(first.wrapping_add(at).cast()),
            _mm512_loadu_si512(second.wrapping_add(at).cast()),
        ]
    }
}

/// The same; 0 behind the end of the keys.
///
/// # Safety
/// AVX-512 F; the keys are readable.
#[inline(always)]
pub(crate) unsafe fn keys(tiles: &Tiles, i: usize) -> [__m512i; ABREAST] {
    let dim = tiles.shape.dim;
    // SAFETY: as the caller promised.
    unsafe {
        if i < dim / FOUR {
            return whole_keys(tiles, i);
        }
        let last = tiles.stored.map(|stored| last_elements(stored, dim, 1));
        [_mm512_loadu_si512(last[0].as_ptr().cast()), _mm512_loadu_si512(last[1].as_ptr().cast())]
    }
}

/// Part `i` of what is staged of each tile.
///
/// # Safety
/// There is as much.
#[inline(always)]
pub(crate) unsafe fn staged<T: Copy>(tiles: &Tiles, i: usize) -> [T; ABREAST] {
    let [first, second] = tiles.staged;
    // SAFETY: as the caller promised.
    unsafe { [first.cast::<T>().wrapping_add(i).read(), second.cast::<T>().wrapping_add(i).read()] }
}

/// Brings a chunk of an output in order, whose vector `m` has the elements `4 m..` of every sixteen.
///
/// # Safety
/// AVX-512 F; `at` has a chunk.
#[inline(always)]
pub(crate) unsafe fn in_order(at: *mut f32, chunk: [__m512; 4]) {
    // SAFETY: as the caller promised.
    unsafe {
        let [a, b, c, d] = chunk;
        let low = [_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0x44>(c, d)];
        let high = [_mm512_shuffle_f32x4::<0xee>(a, b), _mm512_shuffle_f32x4::<0xee>(c, d)];
        Avx512::store(at, _mm512_shuffle_f32x4::<0x88>(low[0], low[1]));
        Avx512::store(at.add(LANES), _mm512_shuffle_f32x4::<0xdd>(low[0], low[1]));
        Avx512::store(at.add(2 * LANES), _mm512_shuffle_f32x4::<0x88>(high[0], high[1]));
        Avx512::store(at.add(3 * LANES), _mm512_shuffle_f32x4::<0xdd>(high[0], high[1]));
    }
}
