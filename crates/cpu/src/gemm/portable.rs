use super::{Element, Kernel, PANEL, Tile, column_at};

pub(super) fn kernel<W: Element>(rows: usize, panels: usize) -> Kernel {
    match (rows, panels) {
        (1, 1) => tile::<W, 1>,
        (2, 1) => tile::<W, 2>,
        _ => unreachable!("no kernel for {rows} rows and {panels} panels"),
    }
}

/// `ROWS` rows with one panel, in plain loops.
fn tile<W: Element, const ROWS: usize>(tile: &Tile<'_>, out: &mut [f32]) {
    let mut sums = [[0.0_f32; PANEL]; ROWS];
    let steps = tile.panels.bytes.chunks_exact(PANEL * size_of::<W>());
    for (slot, x) in steps.zip(tile.x.as_chunks::<ROWS>().0) {
        let mut weights = [0.0; PANEL];
        for (at, weight) in slot.chunks_exact(size_of::<W>()).enumerate() {
            weights[column_at::<W>(at)] = W::read(weight);
        }
        for (sums, x) in sums.iter_mut().zip(x) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = weight.mul_add(*x, *sum);
            }
        }
    }
    for (out, sums) in out.chunks_exact_mut(PANEL).zip(sums) {
        out.copy_from_slice(&sums);
    }
}
