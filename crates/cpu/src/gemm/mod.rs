//! Products with weights kept as stored.
//!
//! `out[m, n]` is a chain of fused multiply-adds over `k` from 0 up, starting from zero, in f32: one chain an output,
//! whatever the number of rows, the threads or the level. So results are equal, bit for bit, in all of these.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod element;
mod portable;
mod sweep;

use crate::matrix::Kind;
use crate::scratch::with_scratch;
use crate::{Buf, Level, Matrix, Pool, int8};
pub(crate) use element::{Element, PANEL, column_at};
use half::{bf16, f16};
pub(crate) use sweep::{Panels, RowTiles, Sweep};

/// What a kernel multiplies: a tile of rows with some panels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile<'a> {
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "plain loops follow the slices"))]
    k: usize,
    /// `[k][rows]`
    x: &'a [f32],
    panels: Panels<'a>,
}

/// Writes `[rows][panels][32]`. Unsafe to call: the machine must have the level, and the lengths must fit.
type Kernel = unsafe fn(&Tile<'_>, &mut [f32]);

/// `out = x · wᵀ`.
pub fn gemm(level: Level, pool: &Pool, w: &Matrix, x: &Buf, out: &mut Buf) {
    assert!(level <= Level::detect(), "this machine does not have {level:?}");
    assert_eq!(x.cols(), w.cols(), "inputs");
    assert_eq!((out.rows(), out.cols()), (x.rows(), w.rows()), "the output's shape");
    match w.kind() {
        _ if x.rows() == 0 || w.rows() == 0 => {}
        _ if w.cols() == 0 => out.data_mut().fill(0.0),
        Kind::F32 => multiply::<f32>(level, pool, w, x, out),
        Kind::F16 => multiply::<f16>(level, pool, w, x, out),
        Kind::Bf16 => multiply::<bf16>(level, pool, w, x, out),
        Kind::Int8 => int8::multiply(level, pool, w, x, out),
    }
}

fn multiply<W: Element>(level: Level, pool: &Pool, w: &Matrix, x: &Buf, out: &mut Buf) {
    let (k, tiles) = (x.cols(), RowTiles::new(x.rows(), highest_tile(level)));
    with_scratch(if x.rows() > 1 { x.rows() * k } else { 0 }, |scratch| {
        let packed = if x.rows() > 1 { interleave(pool, x, tiles, scratch) } else { x.data() };
        let step = panels_at_once(level, tiles.highest());
        let sweep = Sweep { matrix: w, tiles, row_bytes: 4 * k, step };
        sweep.run(pool, out, &|tile, panels, result| {
            let rows = tiles.rows(tile);
            let kernel = choose::<W>(level, rows.len(), panels.count);
            let tile = Tile { k, x: &packed[rows.start * k..rows.end * k], panels };
            assert_eq!(panels.bytes.len(), panels.count * k * PANEL * size_of::<W>());
            assert_eq!(result.len(), rows.len() * panels.count * PANEL);
            // SAFETY: `gemm` asserted the level. The kernel was chosen for this number of rows and panels, and reads
            // and writes as much as the slices hold: `x` is k * rows long, the others were asserted above.
            unsafe { kernel(&tile, result) };
        });
    });
}

/// Lays the rows of each tile side by side: `[tile][k][rows of the tile]`, so that a kernel reads one stream.
fn interleave<'a>(pool: &Pool, x: &Buf, tiles: RowTiles, packed: &'a mut [f32]) -> &'a [f32] {
    let k = x.cols();
    let pieces = crate::pool::Pieces::new(packed);
    pool.run(tiles.count(), &|tile| {
        let rows = tiles.rows(tile);
        // SAFETY: tiles are disjoint ranges of rows, and each is taken once.
        let packed = unsafe { pieces.take(rows.start * k..rows.end * k) };
        let height = rows.len();
        for (i, row) in rows.enumerate() {
            for (slot, value) in packed[i..].iter_mut().step_by(height).zip(x.row(row)) {
                *slot = *value;
            }
        }
    });
    packed
}

/// Rows that a kernel of this level holds in registers beside the weights.
fn highest_tile(level: Level) -> usize {
    match level {
        Level::Avx512 => 12,
        Level::Avx2 => 6,
        Level::Portable => 2,
    }
}

/// Panels that a kernel walks at once for a tile so high: few rows leave registers for more, and memory is read
/// faster in several streams.
fn panels_at_once(level: Level, rows: usize) -> usize {
    match (level, rows) {
        (Level::Avx512, 1..=2) => 4,
        (Level::Avx512, 3..=6) => 2,
        (Level::Avx2, 1) => 2,
        _ => 1,
    }
}

#[cfg(target_arch = "x86_64")]
fn choose<W: Element>(level: Level, rows: usize, panels: usize) -> Kernel {
    match level {
        Level::Avx512 => avx512::kernel::<W>(rows, panels),
        Level::Avx2 => avx2::kernel::<W>(rows, panels),
        Level::Portable => portable::kernel::<W>(rows, panels),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn choose<W: Element>(_: Level, rows: usize, panels: usize) -> Kernel {
    portable::kernel::<W>(rows, panels)
}
