use super::{Kernel, LINE, Tile, groups};
use crate::gemm::{Element, PANEL};

pub(super) fn kernel(rows: usize, panels: usize) -> Kernel {
    match (rows, panels) {
        (1, 1) => tile::<1>,
        (2, 1) => tile::<2>,
        _ => unreachable!("no kernel for {rows} rows and {panels} panels"),
    }
}

/// `ROWS` rows with one panel, in plain loops.
fn tile<const ROWS: usize>(tile: &Tile<'_>, out: &mut [f32]) {
    let (mut panel, mut x) = (tile.panels.bytes.chunks_exact(LINE), tile.x.as_chunks::<ROWS>().0.iter());
    let mut sums = [[0.0_f32; PANEL]; ROWS];
    for fours in groups(tile.k) {
        let scales = panel.next().expect("a panel has scales for each group");
        let (x_scales, offsets) = x.next().zip(x.next()).expect("a tile has scales for each group");
        let mut dots = offsets.map(|offset| [offset; PANEL]);
        for (weights, x) in panel.by_ref().take(fours).zip(x.by_ref().take(fours)) {
            for (dots, x) in dots.iter_mut().zip(x) {
                for (dot, weights) in dots.iter_mut().zip(weights.as_chunks::<4>().0) {
                    *dot += dot_of_four(*weights, *x);
                }
            }
        }
        for ((sums, dots), x_scale) in sums.iter_mut().zip(dots).zip(x_scales) {
            for ((sum, dot), scale) in sums.iter_mut().zip(dots).zip(scales.chunks_exact(4)) {
                let scale = f32::read(scale) * f32::from_bits(*x_scale as u32);
                *sum = (dot as f32).mul_add(scale, *sum);
            }
        }
    }
    for (out, sums) in out.chunks_exact_mut(PANEL).zip(sums) {
        out.copy_from_slice(&sums);
    }
}

fn dot_of_four(weights: [u8; 4], x: i32) -> i32 {
    let products = weights.into_iter().zip(x.to_le_bytes()).map(|(w, x)| i32::from(w) * i32::from(x as i8));
    products.sum()
}
