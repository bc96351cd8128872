use super::{Kernel, LINE, Tile, groups};
use std::arch::x86_64::*;

pub(super) fn kernel(rows: usize, panels: usize) -> Kernel {
    match (rows, panels) {
        (1, 1) => tile::<1>,
        (2, 1) => tile::<2>,
        _ => unreachable!("no kernel for {rows} rows and {panels} panels"),
    }
}

/// Vectors of four outputs, two sums each, that are added up at a time: half a panel.
const VECTORS: usize = 4;

/// # Safety
/// The machine has AVX2 and FMA. `x` holds `ROWS` rows, there is one panel, `out` holds `ROWS * 32`.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const ROWS: usize>(tile: &Tile<'_>, out: &mut [f32]) {
    let mut sums = [[_mm256_setzero_ps(); 4]; ROWS];
    let (mut x, mut w) = (tile.x.as_ptr(), tile.panels.bytes.as_ptr());
    for fours in groups(tile.k) {
        for half in 0..2 {
            // SAFETY: `w` is at the scales of a group and `x` at those of the same, in the tile; its weights follow.
            unsafe {
                let dots = group::<ROWS>(fours, x.add(2 * ROWS), w.add(LINE + half * 64));
                for (r, (sums, dots)) in sums.iter_mut().zip(dots).enumerate() {
                    let x_scale = _mm256_set1_ps(f32::from_bits(*x.add(r) as u32));
                    let offset = _mm256_set1_epi32(*x.add(ROWS + r));
                    for (i, dot) in eights(dots).into_iter().enumerate() {
                        let scale = _mm256_loadu_ps(w.add((half * 2 + i) * 32).cast());
                        let dot = _mm256_cvtepi32_ps(_mm256_add_epi32(dot, offset));
                        let sum = &mut sums[half * 2 + i];
                        *sum = _mm256_fmadd_ps(dot, _mm256_mul_ps(scale, x_scale), *sum);
                    }
                }
            }
        }
        x = x.wrapping_add((2 + fours) * ROWS);
        w = w.wrapping_add((1 + fours) * LINE);
    }
    for (i, sum) in sums.as_flattened().iter().enumerate() {
        // SAFETY: `out` holds 8 values for each of these vectors.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(i * 8), *sum) };
    }
}

/// The integer products of one group with half a panel, an output's in two neighbouring lanes.
///
/// # Safety
/// As for `tile`. `w` is at the group's weights of the half panel, `x` at its first inputs.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn group<const ROWS: usize>(
    fours: usize,
    mut x: *const i32,
    mut w: *const u8,
) -> [[__m256i; VECTORS]; ROWS] {
    let mut dots = [[_mm256_setzero_si256(); VECTORS]; ROWS];
    for _ in 0..fours {
        for v in 0..VECTORS {
            // SAFETY: `w` is at one of the group's fours; half a panel has four times 16 bytes there.
            let weights = _mm256_cvtepu8_epi16(unsafe { _mm_loadu_si128(w.add(v * 16).cast()) });
            for (r, dots) in dots.iter_mut().enumerate() {
                // SAFETY: `x` is at one of the group's fours, each ROWS wide.
                let value = _mm256_cvtepi8_epi16(_mm_set1_epi32(unsafe { *x.add(r) }));
                dots[v] = _mm256_add_epi32(dots[v], _mm256_madd_epi16(weights, value));
            }
        }
        x = x.wrapping_add(ROWS);
        w = w.wrapping_add(LINE);
    }
    dots
}

/// Adds the two lanes of each output and brings the outputs in order.
#[inline]
#[target_feature(enable = "avx2")]
fn eights(dots: [__m256i; VECTORS]) -> [__m256i; 2] {
    let [a, b, c, d] = dots;
    [(a, b), (c, d)]
        .map(|(low, high)| _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_hadd_epi32(low, high)))
}
