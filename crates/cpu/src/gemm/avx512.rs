use super::{Element, Kernel, PAIR, PANEL, Tile};
use std::arch::x86_64::*;

pub(super) fn kernel<W: Element>(rows: usize, panels: usize) -> Kernel<f32> {
    match (rows, panels) {
        (1, 4) => tile::<W, 1, 4>,
        (2, 4) => tile::<W, 2, 4>,
        (3, 2) => tile::<W, 3, 2>,
        (4, 2) => tile::<W, 4, 2>,
        (5, 2) => tile::<W, 5, 2>,
        (6, 2) => tile::<W, 6, 2>,
        (1, 1) => tile::<W, 1, 1>,
        (2, 1) => tile::<W, 2, 1>,
        (3, 1) => tile::<W, 3, 1>,
        (4, 1) => tile::<W, 4, 1>,
        (5, 1) => tile::<W, 5, 1>,
        (6, 1) => tile::<W, 6, 1>,
        (7, 1) => tile::<W, 7, 1>,
        (8, 1) => tile::<W, 8, 1>,
        (9, 1) => tile::<W, 9, 1>,
        (10, 1) => tile::<W, 10, 1>,
        (11, 1) => tile::<W, 11, 1>,
        (12, 1) => tile::<W, 12, 1>,
        _ => unreachable!("no kernel for {rows} rows and {panels} panels"),
    }
}

/// # Safety
/// The machine has AVX-512 F. `x` holds `steps * 2 * ROWS`, the panels `COUNT * steps * 64` weights, `out`
/// `ROWS * COUNT * 32`.
#[target_feature(enable = "avx512f")]
unsafe fn tile<W: Element, const ROWS: usize, const COUNT: usize>(tile: &Tile<'_, f32>, out: &mut [f32]) {
    let step = PAIR * PANEL * size_of::<W>();
    let panel = tile.steps * step;
    let mut sums = [[[_mm512_setzero_ps(); 2]; COUNT]; ROWS];
    let (mut x, mut w) = (tile.x.as_ptr(), tile.panels.bytes.as_ptr());
    let (mut next, share) = (w.wrapping_add(tile.panels.share.from), tile.panels.share.of(step));
    for (steps, ahead) in tile.steps_and_ahead(step) {
        for _ in 0..steps {
            for p in 0..COUNT {
                // SAFETY: `w` is at one of the first panel's steps, so `p` panels on it is at one of panel `p`'s.
                let [even, odd] = unsafe { W::load_512(w.add(p * panel)) };
                for line in 0..step / 64 {
                    _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(p * panel + ahead + line * 64).cast());
                }
                for (input, weights) in [(1, odd), (0, even)] {
                    for (r, sums) in sums.iter_mut().enumerate() {
                        // SAFETY: `x` is at one of the steps, each two inputs of ROWS.
                        let value = _mm512_set1_ps(unsafe { *x.add(input * ROWS + r) });
                        sums[p][0] = _mm512_fmadd_ps(weights[0], value, sums[p][0]);
                        sums[p][1] = _mm512_fmadd_ps(weights[1], value, sums[p][1]);
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
    for (i, sum) in sums.as_flattened().as_flattened().iter().enumerate() {
        // SAFETY: `out` holds 16 values for each of these vectors.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr().add(i * 16), *sum) };
    }
}
