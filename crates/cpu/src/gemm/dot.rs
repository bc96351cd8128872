//! Dot products of pairs of bf16: as many instructions as multiply-adds of half the length.
//!
//! The instruction adds the product of the odd input, rounds, then adds that of the even one: what the other kernels
//! do with two multiply-adds.

use super::{Kernel, PAIR, PANEL, Tile};
use crate::Buf;
use std::arch::x86_64::*;
use std::mem::transmute;
use std::ops::Range;

/// Bytes of a step of a panel.
const STEP: usize = PAIR * PANEL * 2;

/// How many steps ahead activations are asked for: those of many inputs do not fit the first cache.
const X_AHEAD: usize = 16;

/// The machine has the instructions.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512f")
}

/// Two activations in a word, the first in its lower half; a missing last one is zero. For machines that have the
/// instructions.
pub(super) fn pack(x: &Buf, rows: Range<usize>, packed: &mut [u32]) {
    assert!(available() && rows.end <= x.rows() && packed.len() == rows.len() * x.cols().div_ceil(PAIR));
    // SAFETY: asserted above.
    unsafe { pack_pairs(x, rows, packed) }
}

/// # Safety
/// The machine has AVX-512 F and BF16. `packed` holds a word for each pair of inputs of the rows.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn pack_pairs(x: &Buf, rows: Range<usize>, packed: &mut [u32]) {
    const AT_ONCE: usize = 16;
    let height = rows.len();
    let mut words = [0u32; AT_ONCE];
    for (i, packed) in packed.chunks_mut(AT_ONCE * height).enumerate() {
        let first = i * AT_ONCE * PAIR;
        let left = x.cols() - first;
        let here = [0, AT_ONCE].map(|at| (1u32 << left.saturating_sub(at).min(AT_ONCE)) - 1);
        for (r, row) in rows.clone().enumerate() {
            let from = x.row(row)[first..].as_ptr();
            // SAFETY: only numbers of the row are read, those of the masks; the types differ in name alone.
            unsafe {
                let low = _mm512_maskz_loadu_ps(here[0] as u16, from);
                let high = _mm512_maskz_loadu_ps(here[1] as u16, from.wrapping_add(AT_ONCE));
                let pairs = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
                _mm512_storeu_si512(words.as_mut_ptr().cast(), pairs);
            }
            for (slot, word) in packed[r..].iter_mut().step_by(height).zip(words) {
                *slot = word;
            }
        }
    }
}

pub(super) fn kernel(rows: usize, panels: usize) -> Kernel<u32> {
    match (rows, panels) {
        (1, 4) => tile::<1, 4>,
        (2, 4) => tile::<2, 4>,
        (3, 2) => tile::<3, 2>,
        (4, 2) => tile::<4, 2>,
        (5, 2) => tile::<5, 2>,
        (6, 2) => tile::<6, 2>,
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
/// The machine has AVX-512 F and BF16. `x` holds `steps * ROWS`, the panels `COUNT * steps * 64` weights, `out`
/// `ROWS * COUNT * 32`.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn tile<const ROWS: usize, const COUNT: usize>(tile: &Tile<'_, u32>, out: &mut [f32]) {
    let panel = tile.steps * STEP;
    let mut sums = [[[_mm512_setzero_ps(); 2]; COUNT]; ROWS];
    let (mut x, mut w) = (tile.x.as_ptr(), tile.panels.bytes.as_ptr());
    let (mut next, share) = (w.wrapping_add(tile.panels.share.from), tile.panels.share.of(STEP));
    for (steps, ahead) in tile.steps_and_ahead(STEP) {
        for _ in 0..steps {
            for p in 0..COUNT {
                // SAFETY: `w` is at one of the first panel's steps, so `p` panels on it is at one of panel `p`'s; the
                // types differ in name alone.
                let [low, high] = unsafe {
                    [0, 64].map(|at| {
                        transmute::<__m512i, __m512bh>(_mm512_loadu_si512(w.add(p * panel + at).cast()))
                    })
                };
                for line in 0..STEP / 64 {
                    _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(p * panel + ahead + line * 64).cast());
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: `x` is at one of the steps, each ROWS wide; the types differ in name alone.
                    let pair: __m512bh = unsafe { transmute(_mm512_set1_epi32(*x.add(r) as i32)) };
                    sums[p][0] = _mm512_dpbf16_ps(sums[p][0], low, pair);
                    sums[p][1] = _mm512_dpbf16_ps(sums[p][1], high, pair);
                }
            }
            if COUNT == 1 {
                _mm_prefetch::<_MM_HINT_T0>(x.wrapping_add(X_AHEAD * ROWS).cast());
                _mm_prefetch::<_MM_HINT_T1>(next.cast());
                next = next.wrapping_add(share);
            }
            x = x.wrapping_add(ROWS);
            w = w.wrapping_add(STEP);
        }
    }
    for (i, sum) in sums.as_flattened().as_flattened().iter().enumerate() {
        // SAFETY: `out` holds 16 values for each of these vectors.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr().add(i * 16), *sum) };
    }
}
