use super::{Element, Kernel, PAIR, PANEL, Tile};
use std::arch::x86_64::*;

pub(super) fn kernel<W: Element>(rows: usize, panels: usize) -> Kernel<f32> {
    match (rows, panels) {
        (1, 2) => tile::<W, 1, 2, 2>,
        (1, 1) => tile::<W, 1, 1, 2>,
        (2, 1) => tile::<W, 2, 1, 2>,
        (3, 1) => tile::<W, 3, 1, 2>,
        (4, 1) => tile::<W, 4, 1, 1>,
        (5, 1) => tile::<W, 5, 1, 1>,
        (6, 1) => tile::<W, 6, 1, 1>,
        _ => unreachable!("no kernel for {rows} rows and {panels} panels"),
    }
}

/// `HALVES` of a panel at a time: 2 for few rows, 1 where the sums of a whole panel would not fit the registers.
///
/// # Safety
/// The machine has AVX2, FMA and F16C. `x` holds `steps * 2 * ROWS`, the panels `COUNT * steps * 64` weights, `out`
/// `ROWS * COUNT * 32`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<W: Element, const ROWS: usize, const COUNT: usize, const HALVES: usize>(
    tile: &Tile<'_, f32>,
    out: &mut [f32],
) {
    for first in (0..2).step_by(HALVES) {
        // SAFETY: the caller's promises; the halves are 0 and 1 at once, or one after the other.
        unsafe { halves::<W, ROWS, COUNT, HALVES>(tile, first, out) };
    }
}

/// # Safety
/// As for `tile`; `first + HALVES` is at most 2.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn halves<W: Element, const ROWS: usize, const COUNT: usize, const HALVES: usize>(
    tile: &Tile<'_, f32>,
    first: usize,
    out: &mut [f32],
) {
    let step = PAIR * PANEL * size_of::<W>();
    let panel = tile.steps * step;
    let mut sums = [[[[_mm256_setzero_ps(); 2]; HALVES]; COUNT]; ROWS];
    let (mut x, mut w) = (tile.x.as_ptr(), tile.panels.bytes.as_ptr());
    let (mut next, share) = (w.wrapping_add(tile.panels.share.from), tile.panels.share.of(step));
    for (steps, ahead) in tile.steps_and_ahead(step) {
        for _ in 0..steps {
            for p in 0..COUNT {
                for line in 0..step / 64 {
                    _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(p * panel + ahead + line * 64).cast());
                }
                for h in 0..HALVES {
                    // SAFETY: `w` is at one of the first panel's steps, so this is at one of panel `p`'s.
                    let [even, odd] = unsafe { W::load_256(w.add(p * panel), first + h) };
                    for (input, weights) in [(1, odd), (0, even)] {
                        for (r, sums) in sums.iter_mut().enumerate() {
                            // SAFETY: `x` is at one of the steps, each two inputs of ROWS.
                            let value = _mm256_set1_ps(unsafe { *x.add(input * ROWS + r) });
                            sums[p][h][0] = _mm256_fmadd_ps(weights[0], value, sums[p][h][0]);
                            sums[p][h][1] = _mm256_fmadd_ps(weights[1], value, sums[p][h][1]);
                        }
                    }
                }
            }
            if COUNT == 1 {
                _mm_prefetch::<_MM_HINT_T1>(next.cast());
                next = next.wrapping_add(share);
            }
            x = x.wrapping_add(PAIR * ROWS);
            w = w.wrapping_add(step);
        }
    }
    for (i, sums) in sums.as_flattened().iter().enumerate() {
        for (h, [low, high]) in sums.iter().enumerate() {
            // SAFETY: `out` holds 32 values for each row and panel; a half's vectors go 16 columns apart.
            unsafe {
                let to = out.as_mut_ptr().add(i * PANEL + (first + h) * 8);
                _mm256_storeu_ps(to, *low);
                _mm256_storeu_ps(to.add(16), *high);
            }
        }
    }
}
