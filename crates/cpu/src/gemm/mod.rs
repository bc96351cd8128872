//! Products with weights kept as stored.
//!
//! `out[m, n]` is a chain of fused multiply-adds in f32, starting from zero, over pairs of inputs from the first on,
//! in each pair the second input first: one chain an output, whatever the number of rows, the threads or the level. So
//! results are equal, bit for bit, in all of these; but for levels where a sum of products of bf16 is below 2⁻¹²⁶, which
//! instructions for those take for zero. Beside weights in bf16 the activations are rounded to bf16, too:
//! machines that have dot products of them multiply twice as fast.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod dot;
mod element;
mod portable;
mod sweep;
#[cfg(test)]
mod tests;
mod way;

use crate::matrix::Kind;
use crate::scratch::{Word, with_scratch};
use crate::{Buf, Level, Matrix, Pool, int8};
pub(crate) use element::{Element, PAIR, PANEL, rounded};
use half::{bf16, f16};
pub(crate) use sweep::{Panels, RowTiles, Sweep};
use way::Way;

/// What a kernel multiplies: a tile of rows with some panels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile<'a, X> {
    /// Pairs of inputs.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "plain loops follow the slices"))]
    steps: usize,
    /// As its [`Way`] packed it.
    x: &'a [X],
    panels: Panels<'a>,
}

impl<X> Tile<'_, X> {
    /// Steps of `step` bytes of a panel, and how far ahead of them weights are asked for: until near the end, then.
    #[cfg(target_arch = "x86_64")]
    fn steps_and_ahead(&self, step: usize) -> [(usize, usize); 2] {
        let near_end = self.steps.saturating_sub(self.panels.ahead[0] / step);
        [(near_end, self.panels.ahead[0]), (self.steps - near_end, self.panels.ahead[1])]
    }
}

/// Writes `[rows][panels][32]`. Unsafe to call: the machine must have the level, and the lengths must fit.
type Kernel<X> = unsafe fn(&Tile<'_, X>, &mut [f32]);

/// Whether products with weights in bf16 are computed by dot products.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_dots(level: Level) -> bool {
    Way::dots(level).is_some()
}

/// `out = x · wᵀ`.
pub fn gemm(level: Level, pool: &Pool, w: &Matrix, x: &Buf, out: &mut Buf) {
    assert!(level <= Level::detect(), "this machine does not have {level:?}");
    assert_eq!(x.cols(), w.cols(), "inputs");
    assert_eq!((out.rows(), out.cols()), (x.rows(), w.rows()), "the output's shape");
    match w.kind() {
        _ if x.rows() == 0 || w.rows() == 0 => {}
        _ if w.cols() == 0 => out.data_mut().fill(0.0),
        Kind::F32 => multiply(Way::sums::<f32>(level), pool, w, x, out),
        Kind::F16 => multiply(Way::sums::<f16>(level), pool, w, x, out),
        Kind::Bf16 => match Way::dots(level) {
            Some(dots) => multiply(dots, pool, w, x, out),
            None => multiply(Way::sums::<bf16>(level), pool, w, x, out),
        },
        Kind::Int8 => int8::multiply(level, pool, w, x, out),
    }
}

fn multiply<X: Word>(way: Way<X>, pool: &Pool, w: &Matrix, x: &Buf, out: &mut Buf) {
    let (tiles, steps) = (RowTiles::new(x.rows(), way.highest_tile), x.cols().div_ceil(PAIR));
    let row = way.inputs_a_step * steps;
    with_scratch(x.rows() * row, |packed: &mut [X]| {
        let pieces = crate::pool::Pieces::new(packed);
        pool.run(tiles.count(), &|tile| {
            let rows = tiles.rows(tile);
            // SAFETY: tiles are disjoint ranges of rows, and each is taken once.
            let packed = unsafe { pieces.take(rows.start * row..rows.end * row) };
            (way.pack)(x, rows, packed);
        });
        let packed = &*packed;
        let step = (way.panels_at_once)(tiles.highest());
        let sweep = Sweep { matrix: w, tiles, row_bytes: 4 * row, step };
        sweep.run(pool, out, &|tile, panels, result| {
            let rows = tiles.rows(tile);
            let kernel = (way.kernel)(rows.len(), panels.count);
            let tile = Tile { steps, x: &packed[rows.start * row..rows.end * row], panels };
            assert_eq!(panels.bytes.len(), panels.count * w.panel_bytes());
            assert_eq!(result.len(), rows.len() * panels.count * PANEL);
            // SAFETY: `gemm` asserted the level, and `Way::dots` asked for more where it needs it. The kernel was
            // chosen for this number of rows and panels, and reads and writes as much as the slices hold: `x` was cut
            // to the steps of these rows, the others were asserted above.
            unsafe { kernel(&tile, result) };
        });
    });
}
