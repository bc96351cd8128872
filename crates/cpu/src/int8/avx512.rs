use super::{Kernel, LINE, Tile, groups, panel_bytes};
use std::arch::x86_64::*;

pub(super) fn kernel(rows: usize, panels: usize) -> Kernel {
    match (rows, panels) {
        (1, 4) => tile::<1, 4>,
        (2, 2) => tile::<2, 2>,
        (3, 2) => tile::<3, 2>,
        (4, 2) => tile::<4, 2>,
        (1, 1) => tile::<1, 1>,
        (2, 1) => tile::<2, 1>,
        (3, 1) => tile::<3, 1>,
        (4, 1) => tile::<4, 1>,
        (5, 1) => tile::<5, 1>,
        (6, 1) => tile::<6, 1>,
        (7, 1) => tile::<7, 1>,
        (8, 1) => tile::<8, 1>,
        (9, 1) => tile::<9, 1>,
        (10, 1) => tile::<10, 1>,
        (11, 1) => tile::<11, 1>,
        (12, 1) => tile::<12, 1>,
        _ => unreachable!("no kernel for {rows} rows and {panels} panels"),
    }
}

/// # Safety
/// The machine has AVX-512 F and VNNI. `x` holds `ROWS` rows, the panels are `COUNT`, `out` holds `ROWS * COUNT * 32`.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn tile<const ROWS: usize, const COUNT: usize>(tile: &Tile<'_>, out: &mut [f32]) {
    let panel = panel_bytes(tile.k);
    let mut sums = [[[_mm512_setzero_ps(); 2]; COUNT]; ROWS];
    let (mut x, mut w) = (tile.x.as_ptr(), tile.panels.bytes.as_ptr());
    let mut left = panel;
    let (mut next, share) = (w.wrapping_add(tile.panels.share.from), tile.panels.share.of(LINE));
    for fours in groups(tile.k) {
        let ahead = tile.panels.ahead[usize::from(left <= tile.panels.ahead[0])];
        // SAFETY: `w` is at the scales of a group and `x` at those of the same, in the tile; its weights follow.
        unsafe {
            let dots = group::<ROWS, COUNT>(fours, x.add(2 * ROWS), w.add(LINE), panel, ahead, (next, share));
            for (r, (sums, dots)) in sums.iter_mut().zip(dots).enumerate() {
                let x_scale = _mm512_set1_ps(f32::from_bits(*x.add(r) as u32));
                for (p, (sums, dots)) in sums.iter_mut().zip(dots).enumerate() {
                    for (half, (sum, dot)) in sums.iter_mut().zip(dots).enumerate() {
                        let scale =
                            _mm512_mul_ps(_mm512_loadu_ps(w.add(p * panel + half * 64).cast()), x_scale);
                        *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, *sum);
                    }
                }
            }
        }
        x = x.wrapping_add((2 + fours) * ROWS);
        w = w.wrapping_add((1 + fours) * LINE);
        left -= (1 + fours) * LINE;
        next = next.wrapping_add((1 + fours) * share);
    }
    for (i, sum) in sums.as_flattened().as_flattened().iter().enumerate() {
        // SAFETY: `out` holds 16 values for each of these vectors.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr().add(i * 16), *sum) };
    }
}

/// The integer products of one group.
///
/// # Safety
/// As for `tile`. `w` is at the group's weights in the first of the panels, `x` at its first inputs, `ROWS` of which
/// lie before it as offsets.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn group<const ROWS: usize, const COUNT: usize>(
    fours: usize,
    mut x: *const i32,
    mut w: *const u8,
    panel: usize,
    ahead: usize,
    (mut next, share): (*const u8, usize),
) -> [[[__m512i; 2]; COUNT]; ROWS] {
    let mut dots = [[[_mm512_setzero_si512(); 2]; COUNT]; ROWS];
    for (r, dots) in dots.iter_mut().enumerate() {
        // SAFETY: the offsets lie just before the inputs.
        *dots = [[_mm512_set1_epi32(unsafe { *x.sub(ROWS).add(r) }); 2]; COUNT];
    }
    for _ in 0..fours {
        for p in 0..COUNT {
            // SAFETY: `w` is at one of the group's fours, each two vectors wide, in each of the panels.
            let weights = [0, 64].map(|at| unsafe { _mm512_loadu_si512(w.add(p * panel + at).cast()) });
            for at in [0, 64] {
                _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(p * panel + ahead + at).cast());
            }
            for (r, dots) in dots.iter_mut().enumerate() {
                // SAFETY: `x` is at one of the group's fours, each ROWS wide.
                let value = _mm512_set1_epi32(unsafe { *x.add(r) });
                dots[p][0] = _mm512_dpbusd_epi32(dots[p][0], weights[0], value);
                dots[p][1] = _mm512_dpbusd_epi32(dots[p][1], weights[1], value);
            }
        }
        if COUNT == 1 {
            _mm_prefetch::<_MM_HINT_T1>(next.cast());
            next = next.wrapping_add(share);
        }
        x = x.wrapping_add(ROWS);
        w = w.wrapping_add(LINE);
    }
    dots
}
