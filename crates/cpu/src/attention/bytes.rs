//! Rows of bytes in the orders in which they are multiplied, for AVX-512.

use super::arithmetic::Tile;
use crate::simd::{Avx512, LANES, Simd};
use std::arch::x86_64::*;

/// Elements that are read at once; half as many of keys, as registers hold those of sixteen keys twice over then.
pub(crate) const CHUNK: usize = 64;
/// Elements of a key that lie together in a lane.
pub(crate) const GROUP: usize = 4;

/// A chunk of a row; where it is not `WHOLE`, 0 behind the end of the row.
///
/// # Safety
/// AVX-512 BW; the row is readable.
#[inline(always)]
pub(crate) unsafe fn load<const WHOLE: bool>(row: *const u8, at: usize, dim: usize) -> __m512i {
    let (left, from) = (dim.wrapping_sub(at), row.wrapping_add(at));
    // SAFETY: bytes that are masked out are not read.
    unsafe {
        if WHOLE || left >= CHUNK {
            _mm512_loadu_si512(from.cast())
        } else {
            _mm512_maskz_loadu_epi8((1 << left) - 1, from.cast())
        }
    }
}

/// The same for half a chunk, of which there may be nothing in the row.
///
/// # Safety
/// AVX-512 BW and VL; the row is readable.
#[inline(always)]
unsafe fn load_half<const WHOLE: bool>(row: *const u8, at: usize, dim: usize) -> __m256i {
    let (left, from) = (dim.saturating_sub(at), row.wrapping_add(at));
    // SAFETY: bytes that are masked out are not read.
    unsafe {
        if WHOLE || left >= CHUNK / 2 {
            _mm256_loadu_si256(from.cast())
        } else {
            _mm256_maskz_loadu_epi8((1 << left) - 1, from.cast())
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

/// Keys of all sixteen positions, half a chunk: the first (0) or second (1) half of that from `chunk` on. Two vectors
/// each make two with a lane for each position, see [`by_position`].
///
/// # Safety
/// AVX-512 BW and VL; the rows are readable.
#[inline(always)]
pub(crate) unsafe fn keys<const WHOLE: bool, const HALF: usize>(
    tile: &Tile,
    chunk: usize,
) -> [[__m512i; 2]; 4] {
    // SAFETY: as the caller promised.
    unsafe {
        let (a, b) = (eight_rows::<WHOLE, HALF>(tile, 0, chunk), eight_rows::<WHOLE, HALF>(tile, 8, chunk));
        [[a[0], b[0]], [a[1], b[1]], [a[2], b[2]], [a[3], b[3]]]
    }
}

/// Those of rows `first..`. Of quarters of the `i`-th vector, the first has elements `4 i..` of four rows, the second
/// those that are sixteen on, and the others the same of the other four rows.
///
/// # Safety
/// AVX-512 BW and VL; the rows are readable.
#[inline(always)]
unsafe fn eight_rows<const WHOLE: bool, const HALF: usize>(
    tile: &Tile,
    first: usize,
    chunk: usize,
) -> [__m512i; 4] {
    let at = chunk + HALF * CHUNK / 2;
    // SAFETY: as the caller promised.
    unsafe {
        let mut x = [_mm512_setzero_si512(); 4];
        let mut row = tile.stored.wrapping_add(first.wrapping_mul(tile.shape.row_bytes));
        for x in &mut x {
            let other = row.wrapping_add(4 * tile.shape.row_bytes);
            let low = _mm512_castsi256_si512(load_half::<WHOLE>(row, at, tile.shape.dim));
            *x = _mm512_inserti64x4::<1>(low, load_half::<WHOLE>(other, at, tile.shape.dim));
            // Both halves are on the same lines.
            if HALF == 0 {
                tile.fetch::<Avx512>(row.wrapping_add(chunk));
                tile.fetch::<Avx512>(other.wrapping_add(chunk));
            }
            row = row.wrapping_add(tile.shape.row_bytes);
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

/// Two of the [`keys`] with a lane for each position: [`GROUP`] elements each, those of the second sixteen on.
///
/// # Safety
/// AVX-512 F.
#[inline(always)]
pub(crate) unsafe fn by_position([a, b]: [__m512i; 2]) -> [__m512i; 2] {
    // SAFETY: as the caller promised.
    unsafe { [_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b)] }
}

/// Which elements of a chunk the `i`-th vector has that [`keys`] and [`by_position`] make: those from here on.
#[inline(always)]
pub(crate) const fn place(i: usize) -> usize {
    i / 8 * (CHUNK / 2) + i % 8 / 2 * GROUP + i % 2 * 16
}

/// Brings a chunk of an output in order, whose vector `m` has the elements `4 m..` of every sixteen.
///
/// # Safety
/// AVX-512 F; `at` has a chunk.
#[inline(always)]
pub(crate) unsafe fn in_order(at: *mut f32, chunk: [__m512; 4]) {
    // SAFETY: as the caller promised.
    unsafe {
        for (i, vector) in Avx512::transpose_quarters(chunk).into_iter().enumerate() {
            Avx512::store(at.add(i * LANES), vector);
        }
    }
}
