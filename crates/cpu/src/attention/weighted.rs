//! Sums of values in bytes, by weights in two bytes: the second half of [`integer`](super::integer).
//!
//! Four positions lie together in a lane. That leaves outputs in an order of their own until [`arrange`]: vector `m`
//! of every 64 has the elements `4 m..` of every sixteen.

#![allow(clippy::needless_range_loop, reason = "indices name registers, over several arrays at once")]

use super::arithmetic::Tile;
use super::integer::{CHUNK, load};
use super::planes::Planes;
use super::tile::TILE;
use crate::simd::{Avx512, LANES, Simd};
use std::arch::x86_64::*;
use std::ops::Range;

/// Both bytes of a weight are unsigned, and the largest has no low one.
const LARGEST: f32 = 65280.0;
/// Positions that a lane multiplies at once.
const GROUP: usize = 4;
const GROUPS: usize = TILE / GROUP;

/// Weights of one query: high bytes, low bytes, and both rounded to a high byte; four positions each.
type Weights = [[i32; GROUPS]; 3];

/// # Safety
/// As [`Arithmetic::stage`](super::arithmetic::Arithmetic::stage).
#[inline(always)]
pub(crate) unsafe fn stage<E: Planes>(tile: &mut Tile, slots: &Range<usize>, to: *mut f32) {
    // SAFETY: as the caller promised.
    unsafe {
        let mut worst = _mm512_setzero_si512();
        for group in slots.start / GROUP..slots.end.div_ceil(GROUP) {
            for chunk in (0..tile.width).step_by(CHUNK) {
                let to = to.add(group * GROUP * tile.width + chunk * 4).cast::<[__m512i; 2]>();
                for half in 0..2 {
                    let [a, b] = interleaved(tile, group, chunk, half);
                    to.add(2 * half).write(E::values(a, &mut worst));
                    to.add(2 * half + 1).write(E::values(b, &mut worst));
                }
            }
        }
        tile.numbers[1] = E::numbers(worst);
    }
}

/// # Safety
/// As [`Arithmetic::add_values`](super::arithmetic::Arithmetic::add_values).
#[inline(always)]
pub(crate) unsafe fn add_values<E: Planes, const Q: usize, const STAGED: bool>(
    tile: &Tile,
    slots: &Range<usize>,
    weights: [__m512; Q],
    outputs: [*mut f32; Q],
) {
    // SAFETY: as the caller promised.
    unsafe {
        let (weights, factors) = shorten::<E, Q>(weights);
        let mut worst = _mm512_setzero_si512();
        for chunk in (0..tile.width).step_by(CHUNK) {
            for half in 0..2 {
                add_half::<E, Q, STAGED>(tile, &weights, &factors, outputs, [chunk, half], &mut worst);
            }
        }
        if !(if STAGED { tile.numbers[1] } else { E::numbers(worst) }) {
            mark::<E, Q>(tile, slots, outputs);
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

/// Weights as integers, and what their products are to be multiplied with.
#[inline(always)]
unsafe fn shorten<E: Planes, const Q: usize>(weights: [__m512; Q]) -> ([Weights; Q], [__m512; Q]) {
    // SAFETY: instructions, and stores to arrays of sixteen bytes.
    unsafe {
        let mut four = [_mm512_setzero_ps(); 4];
        four[..Q].copy_from_slice(&weights);
        let largest = across!(four, _mm512_max_ps);
        // No weight at all: the quotient is infinite and its products no numbers, which convert to integers whose
        // low bytes are 0.
        let scales = quarters(_mm512_div_ps(_mm512_set1_ps(LARGEST), largest));
        let factors = quarters(_mm512_mul_ps(largest, _mm512_set1_ps(E::UNIT / LARGEST)));
        let (mut short, mut kept) = ([[[0; GROUPS]; 3]; Q], [factors[0]; Q]);
        for n in 0..Q {
            let x = _mm512_cvtps_epi32(_mm512_mul_ps(weights[n], scales[n]));
            let high = _mm512_cvtepi32_epi8(_mm512_srli_epi32::<8>(x));
            _mm_storeu_si128(short[n][0].as_mut_ptr().cast(), high);
            _mm_storeu_si128(short[n][1].as_mut_ptr().cast(), _mm512_cvtepi32_epi8(x));
            if E::LOW {
                let x = _mm512_srli_epi32::<8>(_mm512_add_epi32(x, _mm512_set1_epi32(128)));
                _mm_storeu_si128(short[n][2].as_mut_ptr().cast(), _mm512_cvtepi32_epi8(x));
            }
            kept[n] = factors[n];
        }
        (short, kept)
    }
}

/// Four rows of values, their elements from `chunk` on; vectors 0 and 1 (`half` 0) or 2 and 3.
#[inline(always)]
unsafe fn interleaved(tile: &Tile, group: usize, chunk: usize, half: usize) -> [__m512i; 2] {
    // SAFETY: as the caller promised.
    unsafe {
        let mut row = tile.stored[1].wrapping_add(group.wrapping_mul(GROUP * tile.row_bytes));
        let mut x = [_mm512_setzero_si512(); GROUP];
        for i in 0..GROUP {
            x[i] = load(row, chunk, tile.dim);
            // Both halves read the same lines.
            if i / 2 == half {
                tile.fetch::<Avx512>(1, row.wrapping_add(chunk));
            }
            row = row.wrapping_add(tile.row_bytes);
        }
        let (ab, cd) = if half == 0 {
            (_mm512_unpacklo_epi8(x[0], x[1]), _mm512_unpacklo_epi8(x[2], x[3]))
        } else {
            (_mm512_unpackhi_epi8(x[0], x[1]), _mm512_unpackhi_epi8(x[2], x[3]))
        };
        [_mm512_unpacklo_epi16(ab, cd), _mm512_unpackhi_epi16(ab, cd)]
    }
}

/// `outputs[i] += weights[i] * values` for two vectors of a chunk.
#[inline(always)]
unsafe fn add_half<E: Planes, const Q: usize, const STAGED: bool>(
    tile: &Tile,
    weights: &[Weights; Q],
    factors: &[__m512; Q],
    outputs: [*mut f32; Q],
    [chunk, half]: [usize; 2],
    worst: &mut __m512i,
) {
    // SAFETY: as the caller promised; rows of scratch are as wide as whole chunks.
    unsafe {
        let (mut high, mut low) = ([[_mm512_setzero_si512(); 2]; Q], [[_mm512_setzero_si512(); 2]; Q]);
        for group in 0..GROUPS {
            let values = if STAGED {
                let at = tile.rows[1].cast::<f32>().add(group * GROUP * tile.width + chunk * 4);
                at.cast::<[[__m512i; 2]; 2]>().add(half).read()
            } else {
                let [a, b] = interleaved(tile, group, chunk, half);
                [E::values(a, worst), E::values(b, worst)]
            };
            for n in 0..Q {
                let h = _mm512_set1_epi32(weights[n][0][group]);
                let l = _mm512_set1_epi32(weights[n][1][group]);
                let rounded = if E::LOW { _mm512_set1_epi32(weights[n][2][group]) } else { h };
                for i in 0..2 {
                    high[n][i] = _mm512_dpbusd_epi32(high[n][i], h, values[i][0]);
                    low[n][i] = _mm512_dpbusd_epi32(low[n][i], l, values[i][0]);
                    if E::LOW {
                        low[n][i] = _mm512_dpbusd_epi32(low[n][i], rounded, values[i][1]);
                    }
                }
            }
        }
        for n in 0..Q {
            for i in 0..2 {
                let sum = _mm512_add_epi32(_mm512_slli_epi32::<8>(high[n][i]), low[n][i]);
                let to = outputs[n].add(chunk + (2 * half + i) * LANES);
                let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), factors[n], _mm512_load_ps(to));
                _mm512_store_ps(to, sum);
            }
        }
    }
}

/// Outputs of elements that are no numbers are none either.
#[cold]
#[inline(never)]
unsafe fn mark<E: Planes, const Q: usize>(tile: &Tile, slots: &Range<usize>, outputs: [*mut f32; Q]) {
    for slot in slots.clone() {
        // SAFETY: a stored row, and outputs as wide as whole chunks.
        unsafe {
            let row = std::slice::from_raw_parts(tile.stored[1].add(slot * tile.row_bytes), tile.dim);
            for (i, _) in row.iter().enumerate().filter(|(_, x)| !E::number(**x)) {
                // Element 16 k + 4 m + j of a chunk is number 4 k + j of vector m.
                let at = i / CHUNK * CHUNK + i % 16 / 4 * LANES + i % CHUNK / 16 * 4 + i % 4;
                for output in outputs {
                    *output.add(at) = f32::NAN;
                }
            }
        }
    }
}

/// Brings outputs in order.
///
/// # Safety
/// As [`Arithmetic::arrange`](super::arithmetic::Arithmetic::arrange).
#[inline(always)]
pub(crate) unsafe fn arrange(output: *mut f32, width: usize) {
    for chunk in (0..width).step_by(CHUNK) {
        // SAFETY: as the caller promised.
        unsafe {
            let at = output.add(chunk);
            let vectors = [
                Avx512::load(at),
                Avx512::load(at.add(LANES)),
                Avx512::load(at.add(2 * LANES)),
                Avx512::load(at.add(3 * LANES)),
            ];
            for (i, vector) in Avx512::transpose_quarters(vectors).into_iter().enumerate() {
                Avx512::store(at.add(i * LANES), vector);
            }
        }
    }
}
