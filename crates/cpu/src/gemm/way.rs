use super::{Element, Kernel, PAIR, portable};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512, dot};
use crate::{Buf, Level};
use std::ops::Range;

/// How a product is computed: by which kernels, over activations packed how.
#[derive(Clone, Copy)]
pub(super) struct Way<X> {
    /// Rows that a kernel holds in registers beside the weights.
    pub(super) highest_tile: usize,
    /// Packed activations of a row for each pair of inputs.
    pub(super) inputs_a_step: usize,
    /// Lays the rows of a tile side by side, `[step][inputs a step][rows]`, so that a kernel reads one stream.
    pub(super) pack: fn(&Buf, Range<usize>, &mut [X]),
    /// Panels that a kernel walks at once for a tile so high: few rows leave registers for more, and memory is read
    /// faster in several streams.
    pub(super) panels_at_once: fn(usize) -> usize,
    /// For so many rows and panels.
    pub(super) kernel: fn(usize, usize) -> Kernel<X>,
}

impl Way<f32> {
    /// Multiply-adds.
    pub(super) fn sums<W: Element>(level: Level) -> Self {
        let (pack, inputs_a_step) = (widened::<W> as fn(&Buf, Range<usize>, &mut [f32]), PAIR);
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Self {
                highest_tile: 12,
                inputs_a_step,
                pack,
                panels_at_once: panels_of_512,
                kernel: avx512::kernel::<W>,
            },
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Self {
                highest_tile: 6,
                inputs_a_step,
                pack,
                panels_at_once: |rows| if rows == 1 { 2 } else { 1 },
                kernel: avx2::kernel::<W>,
            },
            _ => Self {
                highest_tile: 2,
                inputs_a_step,
                pack,
                panels_at_once: |_| 1,
                kernel: portable::kernel::<W>,
            },
        }
    }
}

impl Way<u32> {
    /// Dot products of pairs of bf16, if the machine has them.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn dots(level: Level) -> Option<Self> {
        (level == Level::Avx512 && dot::available()).then_some(Self {
            highest_tile: 12,
            inputs_a_step: 1,
            pack: dot::pack,
            panels_at_once: panels_of_512,
            kernel: dot::kernel,
        })
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn dots(_: Level) -> Option<Self> {
        None
    }
}

#[cfg(target_arch = "x86_64")]
fn panels_of_512(rows: usize) -> usize {
    match rows {
        1..=2 => 4,
        3..=6 => 2,
        _ => 1,
    }
}

/// Activations as they are, rounded to what the weights ask for; a missing last input is zero.
fn widened<W: Element>(x: &Buf, rows: Range<usize>, packed: &mut [f32]) {
    let height = rows.len();
    if !x.cols().is_multiple_of(PAIR) {
        packed[(x.cols() * height)..].fill(0.0);
    }
    for (i, row) in rows.enumerate() {
        for (slot, value) in packed[i..].iter_mut().step_by(height).zip(x.row(row)) {
            *slot = W::round(*value);
        }
    }
}
