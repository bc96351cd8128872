//! What measuring whole steps takes: weights and pages made on the device, and the cost of a kernel.

use super::{Bench, FILL, FillArgs};
use crate::arena::CudaArena;
use crate::backend::{Cuda, Only};
use crate::device::Grid;
use crate::memory::{Memory, launch};
use crate::precision::Precision;
use crate::stream::FEW_ROWS;
use crate::values::CudaMatrix;
use octavo_backend::{BackendError, TensorRef};

/// Kernels whose replay is measured together.
const KERNELS: usize = 256;
/// Random weights are this large at most.
const WEIGHT: f32 = 0.03;

impl Bench {
    /// The back end by itself.
    pub fn into_cuda(self) -> Cuda {
        self.cuda
    }

    /// From here on the weights of models that are loaded are random, and made on the device.
    pub fn invent_weights(&self) {
        self.cuda.invents.set(true);
    }

    /// Random keys and values in all pages.
    pub fn fill_pages(&self, arena: &CudaArena) -> Result<(), BackendError> {
        self.fill_arena(arena, arena.pages())
    }

    /// Microseconds of a kernel that does nothing, among others of a graph.
    pub fn kernel_cost(&self) -> Result<f64, BackendError> {
        let out = Memory::new(&self.cuda.device, 4)?;
        let args = random_fill(out.address(), 1, 1.0);
        let time = self.time(|| {
            (0..KERNELS).try_for_each(|_| {
                // SAFETY: one element, for which there is room.
                unsafe { launch(&*self.gpu, FILL, Grid::new(1, 1, 32), &args) }
            })
        })?;
        Ok(time / KERNELS as f64)
    }

    /// Only work of this kind is launched from here on, and steps are recorded anew; `None` for all of it.
    pub fn restrict(&self, only: Option<Only>) {
        self.cuda.only.set(only);
        self.cuda.steps.borrow_mut().forget();
    }

    /// Microseconds of a product by the kernel for few rows, if there is one for so many; weights rotated beyond the cache.
    pub fn few_rows(&self, rows: usize, outputs: usize, cols: usize) -> Result<Option<f64>, BackendError> {
        let Some(cut) = self.cuda.cut(rows, outputs, cols).filter(|_| rows <= FEW_ROWS) else {
            return Ok(None);
        };
        // SAFETY: `product_by` allocates for these shapes.
        self.product_by(rows, outputs, cols, &|product| unsafe { self.cuda.multiply_few(product, cut) })
            .map(Some)
    }

    /// Microseconds of the step that was replayed last, by the device's clock.
    pub fn last_step(&self) -> Result<f64, BackendError> {
        self.median(&mut || self.cuda.steps.borrow().replay_again())
    }
}

fn random_fill(out: u64, count: u64, size: f32) -> FillArgs {
    let precision = Precision::Bf16 as i32;
    FillArgs { out, count, seed: 3, precision, size, tail_word: 0, page_words: 1, tail: 0 }
}

impl Cuda {
    /// In the shape of the parts.
    pub(crate) fn invented_matrix(&self, parts: &[TensorRef<'_>]) -> Result<CudaMatrix, BackendError> {
        let (rows, cols) = (parts.iter().map(TensorRef::rows).sum(), parts[0].cols());
        let memory = Memory::new(&self.device, rows * cols * 2)?.kept();
        let args = random_fill(memory.address(), (rows * cols) as u64, WEIGHT);
        // SAFETY: so many elements were allocated just now.
        unsafe { launch(&*self.device, FILL, Grid::new(8 * self.device.processors().count, 1, 256), &args)? };
        Ok(CudaMatrix { rows, cols, precision: Precision::Bf16, memory })
    }
}
