use super::{Element, Kernel, PAIR, PANEL, Tile};

pub(super) fn kernel<W: Element>(rows: usize, panels: usize) -> Kernel<f32> {
    match (rows, panels) {
        (1, 1) => tile::<W, 1>,
        (2, 1) => tile::<W, 2>,
        _ => unreachable!("no kernel for {rows} rows and {panels} panels"),
    }
}

/// `ROWS` rows with one panel, in plain loops.
fn tile<W: Element, const ROWS: usize>(tile: &Tile<'_, f32>, out: &mut [f32]) {
    let mut sums = [[0.0_f32; PANEL]; ROWS];
    let steps = tile.panels.bytes.chunks_exact(PAIR * PANEL * size_of::<W>());
    for (slot, x) in steps.zip(tile.x.chunks_exact(PAIR * ROWS)) {
        for input in [1, 0] {
            let weight = |column| W::read(&slot[W::place(input, column) * size_of::<W>()..]);
            let weights: [f32; PANEL] = std::array::from_fn(weight);
            for (sums, x) in sums.iter_mut().zip(&x[input * ROWS..]) {
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = weight.mul_add(*x, *sum);
                }
            }
        }
    }
    for (out, sums) in out.chunks_exact_mut(PANEL).zip(sums) {
        out.copy_from_slice(&sums);
    }
}
