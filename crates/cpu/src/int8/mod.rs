//! Products with weights of eight bits.
//!
//! **Weights** are quantised when they are packed, as [`weights`](octavo_backend::weights) defines: for each output and
//! each group of 64 inputs (the last one may be shorter), `scale = amax / 127` in f32, `q = w / scale` rounded to the
//! nearest, ties to even.
//!
//! **Activations** are quantised at each product, in the same groups of each row: `scale = amax / 127`,
//! `q = x * (127 / amax)`, rounded likewise. So an activation is off by at most half its scale, 1/254 of the largest
//! in its group. Groups whose largest is below 1e-30 count as zero; one with an infinity or a NaN yields NaN.
//!
//! **Products** of a group are summed as integers, exactly; `out += sum * (scale of w * scale of x)` is one fused
//! multiply-add a group, in order. So results are equal, bit for bit, for any batch, any threads and all levels.
//!
//! ```text
//!   panel:  for each group  [32] scales, f32;  [inputs / 4][32 outputs][4 inputs] of q + 128, u8
//!   tile:   for each group  [rows] scales;  [rows] offsets;  [inputs / 4][rows][4 inputs] of q, i8
//! ```
//!
//! The weights' 128 makes them unsigned, as the dot-product instruction wants one side; the offset, -128 times the
//! sum of the row's group, takes it out again. Missing inputs are zeros.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod pack;
mod portable;
mod quantise;

use crate::gemm::{PANEL, Panels, RowTiles, Sweep};
use crate::pool::Pieces;
use crate::scratch::with_scratch;
use crate::{Buf, Level, Matrix, Pool};
pub(crate) use pack::{pack_panel, panel_bytes, read_row};

/// Inputs that share a scale.
const GROUP: usize = 64;
/// Bytes of a panel's scales of one group, and of its weights of four inputs.
const LINE: usize = PANEL * 4;

/// What a kernel multiplies: a tile of rows with some panels.
#[derive(Clone, Copy, Debug)]
struct Tile<'a> {
    k: usize,
    x: &'a [i32],
    panels: Panels<'a>,
}

/// Writes `[rows][panels][32]`. Unsafe to call: the machine must have the level, and the lengths must fit.
type Kernel = unsafe fn(&Tile<'_>, &mut [f32]);

/// The lengths of the groups of `k` inputs, in fours.
fn groups(k: usize) -> impl Iterator<Item = usize> {
    (0..k.div_ceil(GROUP)).map(move |group| GROUP.min(k - group * GROUP).div_ceil(4))
}

/// Words that a row of `k` quantised activations takes in a tile.
fn row_words(k: usize) -> usize {
    2 * k.div_ceil(GROUP) + k.div_ceil(4)
}

/// The instructions to use: dot products of bytes are not in every AVX-512.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Path {
    Portable,
    Avx2,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "found on x86-64 alone"))]
    Vnni,
}

impl Path {
    fn of(level: Level) -> Self {
        #[cfg(target_arch = "x86_64")]
        if level == Level::Avx512 && is_x86_feature_detected!("avx512vnni") {
            return Self::Vnni;
        }
        if level == Level::Portable { Self::Portable } else { Self::Avx2 }
    }

    fn highest_tile(self) -> usize {
        match self {
            Self::Vnni => 12,
            Self::Avx2 | Self::Portable => 2,
        }
    }

    fn panels_at_once(self, rows: usize) -> usize {
        match (self, rows) {
            (Self::Vnni, 1) => 4,
            (Self::Vnni, 2..=4) => 2,
            _ => 1,
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn kernel(self, rows: usize, panels: usize) -> Kernel {
        match self {
            Self::Vnni => avx512::kernel(rows, panels),
            Self::Avx2 => avx2::kernel(rows, panels),
            Self::Portable => portable::kernel(rows, panels),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn kernel(self, rows: usize, panels: usize) -> Kernel {
        portable::kernel(rows, panels)
    }
}

/// `out = x · wᵀ`; shapes and level have been checked.
pub(crate) fn multiply(level: Level, pool: &Pool, w: &Matrix, x: &Buf, out: &mut Buf) {
    let path = Path::of(level);
    let (k, words) = (x.cols(), row_words(x.cols()));
    let tiles = RowTiles::new(x.rows(), path.highest_tile());
    with_scratch(x.rows() * words, |packed: &mut [i32]| {
        quantise_all(level, pool, x, tiles, packed);
        let packed = &*packed;
        let sweep =
            Sweep { matrix: w, tiles, row_bytes: 4 * words, step: path.panels_at_once(tiles.highest()) };
        sweep.run(pool, out, &|tile, panels, result| {
            let rows = tiles.rows(tile);
            let kernel = path.kernel(rows.len(), panels.count);
            let tile = Tile { k, x: &packed[rows.start * words..rows.end * words], panels };
            assert_eq!(panels.bytes.len(), panels.count * panel_bytes(k));
            assert_eq!(result.len(), rows.len() * panels.count * PANEL);
            // SAFETY: `gemm` asserted the level and `Path::of` asked for more where it needs it. The kernel was chosen
            // for this number of rows and panels, and reads and writes as much as the slices hold.
            unsafe { kernel(&tile, result) };
        });
    });
}

fn quantise_all(level: Level, pool: &Pool, x: &Buf, tiles: RowTiles, packed: &mut [i32]) {
    let (words, pieces) = (row_words(x.cols()), Pieces::new(packed));
    pool.run(tiles.count(), &|tile| {
        let rows = tiles.rows(tile);
        // SAFETY: tiles are disjoint ranges of rows, and each is taken once.
        let packed = unsafe { pieces.take(rows.start * words..rows.end * words) };
        let height = rows.len();
        for (i, row) in rows.enumerate() {
            quantise::row(level, x.row(row), height, &mut packed[i..]);
        }
    });
}
