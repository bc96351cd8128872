//! Products of few rows, where reading the weights is everything: by a kernel of ours that starts to read them before
//! the kernel before it has ended.

use crate::backend::Cuda;
use crate::device::{Grid, Processors, Product};
use crate::kernels::{Kernel, NumberOptions, StreamOptions};
use crate::memory::launch;
use crate::several;
use octavo_backend::{Activation, BackendError};

pub(crate) const STREAM: Kernel = Kernel::new::<StreamArgs>("stream").overlapping();

/// The most rows for which it may be faster than the library.
pub(crate) const FEW_ROWS: usize = 64;
/// The most parts of a product.
pub(crate) const MOST_PARTS: usize = 8;

// What follows is what steps on an H200 are fastest with. Products by themselves are faster in many parts and many small
// blocks, which leave no room for the kernels that come next.

/// Sixteens of outputs of a unit.
const SIXTEENS: usize = 2;
/// Of a block.
const WARPS: usize = 8;
/// Of a multiprocessor, if they fit.
const MOST_BLOCKS: usize = 2;
/// The most chunks of a warp that are copied ahead.
const DEEPEST: usize = 6;
/// Up to so many rows are loaded. More are copied like the weights, and parts of them take longer to add.
const LOADED_ROWS: usize = 8;
const MOST_PARTS_OF_MORE: usize = 4;
/// Shared memory that a block takes beyond what it asks for.
pub(crate) const RESERVED: usize = 1 << 10;

/// Of `cu/stream.cu` and of `cu/several.cu`.
#[repr(C)]
pub(crate) struct StreamArgs {
    x: u64,
    w: u64,
    out: u64,
    outputs: u32,
    cols: u32,
    act: i32,
    unused: i32,
}

/// How a product is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) kernel: Kernel,
    pub(crate) grid: Grid,
    /// Whose sums lie apart.
    pub(crate) parts: usize,
    /// What is written is what this makes of the product.
    pub(crate) gate: Option<Activation>,
}

impl Cut {
    /// Into so many parts, or as many as are best for 0; `None` where so many rows do not fit the shared memory.
    fn new(processors: Processors, parts: usize, shape: [usize; 3]) -> Option<Self> {
        let [rows, outputs, cols] = shape;
        let is_several = rows > LOADED_ROWS;
        if is_several
            && parts == 0
            && let Some(cut) = several::large(processors, shape)
        {
            return Some(cut);
        }
        let options = (1..=MOST_BLOCKS).rev().flat_map(|min_blocks| {
            let depths = (2..=DEEPEST).rev();
            depths.map(move |depth| StreamOptions {
                rows,
                sixteens: SIXTEENS,
                warps: WARPS,
                depth,
                min_blocks,
            })
        });
        let fits = |o: &StreamOptions| o.min_blocks * (o.shared() + RESERVED) <= processors.shared;
        let options = options.into_iter().find(fits)?;
        let most_parts = if is_several { MOST_PARTS_OF_MORE } else { MOST_PARTS };
        let chunks = cols.div_ceil(StreamOptions::CHUNK);
        let parts = if parts == 0 { 1..=most_parts.min(chunks) } else { parts..=parts };
        let tiles = outputs.div_ceil(16 * SIXTEENS);
        // In turns of a warp. Starting and ending a unit takes about one; a part takes others some time to add.
        let cost = |parts: &usize| {
            let rounds = (tiles * parts).div_ceil(options.min_blocks * processors.count);
            4 * rounds * (chunks.div_ceil(*parts).div_ceil(WARPS) + 1) + parts
        };
        let parts = parts.min_by_key(cost).expect("one part at least");
        if is_several && let Some(cut) = several::small(processors, parts, shape) {
            return Some(cut);
        }
        let blocks = (tiles * parts).min(options.min_blocks * processors.count);
        let grid = Grid::new(blocks, 1, 32 * options.warps as u32);
        let grid = Grid { shared: options.shared() as u32, ..grid };
        Some(Self { kernel: STREAM.with_stream(options), grid, parts, gate: None })
    }

    /// Of `[gate | up]`, which is in one part, what `act` makes of it.
    pub(crate) fn gated(self, act: Activation) -> Self {
        assert_eq!(self.parts, 1, "parts of what is gated");
        Self { kernel: self.kernel.gated(), gate: Some(act), ..self }
    }
}

impl Cuda {
    pub(crate) fn cut(&self, rows: usize, outputs: usize, cols: usize) -> Option<Cut> {
        Cut::new(self.device.processors(), self.tuning.get().product_parts, [rows, outputs, cols])
    }

    /// # Safety
    /// The addresses have room for the shapes, `out` for all parts; rows are whole units of 16 bytes.
    pub(crate) unsafe fn multiply_few(&self, p: Product, cut: Cut) -> Result<(), BackendError> {
        let args = StreamArgs {
            x: p.x,
            w: p.w,
            out: p.out,
            outputs: p.outputs as u32,
            cols: p.cols as u32,
            act: i32::from(cut.gate == Some(Activation::Gelu)),
            unused: 0,
        };
        // Where there is a gate, half as many outputs are written.
        let written = if cut.gate.is_some() { p.outputs / 2 } else { p.outputs };
        let numbers = NumberOptions { short: p.precision, fours: written.is_multiple_of(4) };
        // SAFETY: the caller's promise; what is beyond the last output or row is neither read nor written.
        unsafe {
            launch(&*self.device, cut.kernel.with_numbers(numbers).in_parts(cut.parts), cut.grid, &args)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::{Emulated, emulated};
    use crate::plan::Tuning;
    use octavo_backend::conformance::{self, Tolerance};
    use std::sync::Arc;

    #[test]
    fn small_products_are_cut_into_parts_and_large_ones_are_not() {
        let parts = |outputs, cols| Cut::new(Processors::MANY, 0, [24, outputs, cols]).expect("room").parts;
        // Of Qwen3-0.6B: o and down have too few outputs for all processors.
        assert_eq!([parts(1024, 2048), parts(1024, 3072)], [4, 4]);
        assert_eq!([parts(16_384, 3072), parts(151_936, 1024)], [1, 1]);
        assert_eq!(parts(8, 16), 1, "no more than there are chunks");
    }

    #[test]
    fn every_number_of_rows_fits_the_shared_memory() {
        for rows in 1..=FEW_ROWS {
            let cut = Cut::new(Processors::MANY, 0, [rows, 1024, 5120]).expect("room");
            let options = cut.kernel.stream.expect("not several's");
            let StreamOptions { depth, min_blocks, .. } = options;
            assert!(depth >= 2 && (rows > 32 || min_blocks == MOST_BLOCKS), "{rows}: {depth}, {min_blocks}");
        }
        let small = Processors { count: 40, shared: 99 << 10 };
        for (rows, outputs) in (1..=FEW_ROWS).flat_map(|rows| [(rows, 1024), (rows, 16_384)]) {
            let cut = Cut::new(small, 0, [rows, outputs, 5120]);
            assert!(cut.is_some() || rows > 24, "{rows} rows of a small device");
            assert!(cut.is_none_or(|cut| cut.grid.shared as usize + RESERVED <= small.shared), "{rows}");
        }
    }

    #[test]
    fn parts_of_a_product_add_up_to_it() {
        for product_parts in [1, 3, MOST_PARTS] {
            let cuda = emulated(false);
            cuda.tuning.set(Tuning { product_parts, ..Tuning::default() });
            conformance::linear_matches_the_reference(&cuda, Tolerance::BF16);
        }
    }

    #[test]
    fn a_small_device_multiplies_too() {
        let cuda = Cuda::on(Arc::new(Emulated::small()), false, true);
        conformance::linear_matches_the_reference(&cuda, Tolerance::BF16);
    }

    #[test]
    fn what_is_in_one_part_is_gated_at_once() {
        let cuda = emulated(false);
        cuda.tuning.set(Tuning { product_parts: 1, ..Tuning::default() });
        conformance::gated_products_match_the_reference(&cuda, Tolerance::BF16);
    }
}
