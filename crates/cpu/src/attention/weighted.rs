//! Sums of values in bytes, by weights in two bytes: the second half of [`integer`](super::integer).
//!
//! Four positions lie together in a lane. That leaves outputs in an order of their own until they are
//! [brought in order](super::bytes::in_order).

#![allow(clippy::needless_range_loop, reason = "indices name registers, over several arrays at once")]

use super::arithmetic::{ABREAST, Ahead, Tiles};
use super::bytes::{CHUNK, load};
use super::scratch::Line;
use super::tile::{BLOCK, TILE};
use crate::simd::{Avx512, LANES};
use std::arch::x86_64::*;
use std::ops::Range;

/// Both bytes of a weight are unsigned, and the largest has no low one.
const LARGEST: f32 = 65280.0;
/// Positions that a lane multiplies at once.
const GROUP: usize = 4;
const GROUPS: usize = TILE / GROUP;

/// Weights of a tile and one query, as they lie in a line.
#[repr(C, align(64))]
struct Weights {
    /// Of four positions each.
    high: [i32; GROUPS],
    low: [i32; GROUPS],
    /// What sums of products are multiplied with: the same for all tiles of a block.
    factor: f32,
}
const _: () = assert!(size_of::<Weights>() == size_of::<Line>());

/// # Safety
/// As [`Arithmetic::stage_values`](super::arithmetic::Arithmetic::stage_values).
#[inline(always)]
pub(crate) unsafe fn stage(tiles: &Tiles, slots: &[Range<usize>; ABREAST]) {
    let (width, mut ahead) = (tiles.shape.width, tiles.ahead);
    for group in 0..GROUPS {
        for chunk in (0..width).step_by(CHUNK) {
            // SAFETY: as the caller promised.
            unsafe {
                ahead.ask::<Avx512>(GROUP);
                for t in 0..ABREAST {
                    if slots[t].start < (group + 1) * GROUP && group * GROUP < slots[t].end {
                        let to = tiles.staged[t].add(group * width + chunk).cast::<[__m512i; 4]>();
                        to.write(interleaved::<0, 4>(tiles, t, group, chunk));
                    }
                }
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
        // SAFETY: as the caller promised.
        unsafe {
            let weights = weights.map(|line| &*line.cast::<[Weights; ABREAST]>());
            // As many sums at a time as registers hold.
            add::<Q, STAGED, 0, 2>(tiles, &mut ahead, weights, outputs, chunk);
            add::<Q, STAGED, 2, 2>(tiles, &mut ahead, weights, outputs, chunk);
        }
    }
}

/// `reduce` over the lanes of each vector, in all lanes of its quarter of the result.
macro_rules! across {
    ($x:expr, $reduce:ident) => {{
        let x: [__m512; 4] = $x;
        let ab = $reduce(_mm512_shuffle_f32x4::<0x44>(x[0], x[1]), _mm512_shuffle_f32x4::<0xee>(x[0], x[1]));
        let cd = $reduce(_mm512_shuffle_f32x4::<0x44>(x[2], x[3]), _mm512_shuffle_f32x4::<0xee>(x[2], x[3]));
        let all = $reduce(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
        let all = $reduce(all, _mm512_permute_ps::<0b01_00_11_10>(all));
        $reduce(all, _mm512_permute_ps::<0b10_11_00_01>(all))
    }};
}

/// Every quarter of `x`, four times.
#[inline(always)]
unsafe fn quarters(x: __m512) -> [__m512; 4] {
    // SAFETY: AVX-512 F.
    unsafe {
        [
            _mm512_shuffle_f32x4::<0x00>(x, x),
            _mm512_shuffle_f32x4::<0x55>(x, x),
            _mm512_shuffle_f32x4::<0xaa>(x, x),
            _mm512_shuffle_f32x4::<0xff>(x, x),
        ]
    }
}

/// # Safety
/// As [`Arithmetic::store_weights`](super::arithmetic::Arithmetic::store_weights).
#[inline(always)]
pub(crate) unsafe fn store_weights<const Q: usize>(weights: &[[__m512; BLOCK]; Q], to: [*mut Line; Q]) {
    // SAFETY: as the caller promised.
    unsafe {
        let mut four = [_mm512_setzero_ps(); 4];
        for n in 0..Q {
            for tile in 0..BLOCK {
                four[n] = _mm512_max_ps(four[n], weights[n][tile]);
            }
        }
        let largest = across!(four, _mm512_max_ps);
        // No weight at all: the quotient is infinite and its products no numbers, which convert to integers whose
        // low bytes are 0.
        let scales = quarters(_mm512_div_ps(_mm512_set1_ps(LARGEST), largest));
        let factors = quarters(_mm512_mul_ps(largest, _mm512_set1_ps(1.0 / LARGEST)));
        for n in 0..Q {
            for tile in 0..BLOCK {
                let x = _mm512_cvtps_epi32(_mm512_mul_ps(weights[n][tile], scales[n]));
                let high = _mm512_cvtepi32_epi8(_mm512_srli_epi32::<8>(x));
                let to = &mut *to[n].add(tile).cast::<Weights>();
                _mm_storeu_si128(to.high.as_mut_ptr().cast(), high);
                _mm_storeu_si128(to.low.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(x));
                to.factor = _mm512_cvtss_f32(factors[n]);
            }
        }
    }
}

/// Four rows of values of tile `t` less 128, their elements from `chunk` on: `N` vectors from number `FIRST` on.
#[inline(always)]
unsafe fn interleaved<const FIRST: usize, const N: usize>(
    tiles: &Tiles,
    t: usize,
    group: usize,
    chunk: usize,
) -> [__m512i; N] {
    // SAFETY: as the caller promised.
    unsafe {
        let mut row = tiles.stored[t].wrapping_add(group.wrapping_mul(GROUP * tiles.shape.row_bytes));
        let mut x = [_mm512_setzero_si512(); GROUP];
        for i in 0..GROUP {
            x[i] = load(row, chunk, tiles.shape.dim);
            row = row.wrapping_add(tiles.shape.row_bytes);
        }
        let mut out = [_mm512_setzero_si512(); N];
        for i in 0..N {
            let (ab, cd) = if FIRST + i < 2 {
                (_mm512_unpacklo_epi8(x[0], x[1]), _mm512_unpacklo_epi8(x[2], x[3]))
            } else {
                (_mm512_unpackhi_epi8(x[0], x[1]), _mm512_unpackhi_epi8(x[2], x[3]))
            };
            let all = if (FIRST + i).is_multiple_of(2) {
                _mm512_unpacklo_epi16(ab, cd)
            } else {
                _mm512_unpackhi_epi16(ab, cd)
            };
            out[i] = _mm512_xor_si512(all, _mm512_set1_epi8(-128));
        }
        out
    }
}

// Sums of tiles abreast are exact: high bytes, which count 256 times, and low ones.
const _: () = assert!(257 * 255 * 128 * ABREAST * TILE < i32::MAX as usize);

/// [`add_values`] for the `N` vectors from number `FIRST` on of a chunk.
#[inline(always)]
unsafe fn add<const Q: usize, const STAGED: bool, const FIRST: usize, const N: usize>(
    tiles: &Tiles,
    ahead: &mut Ahead,
    weights: [&[Weights; ABREAST]; Q],
    outputs: [*mut f32; Q],
    chunk: usize,
) {
    // SAFETY: as the caller promised; rows of scratch are as wide as whole chunks.
    unsafe {
        let zero = [[_mm512_setzero_si512(); N]; Q];
        let (mut high, mut low) = (zero, zero);
        for group in 0..GROUPS {
            for t in 0..ABREAST {
                if !STAGED {
                    // All parts read the same lines, and each asks for some.
                    ahead.ask::<Avx512>(N / ABREAST);
                }
                let values = if STAGED {
                    let at = group.wrapping_mul(tiles.shape.width).wrapping_add(chunk);
                    let at = tiles.staged[t].wrapping_add(at).cast::<__m512i>();
                    at.wrapping_add(FIRST).cast::<[__m512i; N]>().read()
                } else {
                    interleaved::<FIRST, N>(tiles, t, group, chunk)
                };
                for n in 0..Q {
                    let weights = &weights[n][t];
                    let h = _mm512_set1_epi32(weights.high[group]);
                    let l = _mm512_set1_epi32(weights.low[group]);
                    for i in 0..N {
                        high[n][i] = _mm512_dpbusd_epi32(high[n][i], h, values[i]);
                        low[n][i] = _mm512_dpbusd_epi32(low[n][i], l, values[i]);
                    }
                }
            }
        }
        for n in 0..Q {
            let factor = _mm512_set1_ps(weights[n][0].factor);
            for i in 0..N {
                let sum = _mm512_add_epi32(_mm512_slli_epi32::<8>(high[n][i]), low[n][i]);
                let to = outputs[n].add(chunk + (FIRST + i) * LANES);
                let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), factor, _mm512_load_ps(to));
                _mm512_store_ps(to, sum);
            }
        }
    }
}
