//! Measurements on a device: times are medians of replays of a graph, by the device's own clock.

mod attention;
mod step;

pub use crate::kernels::ChunkOptions;
pub use crate::plan::Tuning;
pub use attention::{AttentionCase, Measured};

use super::{Gpu, OpenError, failed};
use crate::backend::{Cuda, Options};
use crate::device::{Device, Grid, Product};
use crate::kernels::Kernel;
use crate::memory::{Memory, launch};
use crate::precision::Precision;
use crate::stream::MOST_PARTS;
use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use octavo_backend::BackendError;
use std::sync::Arc;

/// Replays of which the median is taken.
const REPLAYS: usize = 30;

pub(crate) const READ: Kernel = Kernel::new::<ReadArgs>("read");
pub(crate) const FILL: Kernel = Kernel::new::<FillArgs>("fill");

#[repr(C)]
struct FillArgs {
    out: u64,
    count: u64,
    seed: u32,
    precision: i32,
    size: f32,
    tail_word: u32,
    page_words: u64,
    tail: u64,
}

#[repr(C)]
struct ReadArgs {
    from: u64,
    count: u64,
    out: u64,
}

/// A device and the back end on it.
#[derive(Debug)]
pub struct Bench {
    gpu: Arc<Gpu>,
    cuda: Cuda,
}

impl Bench {
    pub fn open(ordinal: usize, options: Options) -> Result<Self, OpenError> {
        let gpu = Arc::new(Gpu::open(ordinal, options.cache)?);
        let cuda = Cuda::on(gpu.clone(), options.deterministic, options.graphs);
        Ok(Self { gpu, cuda })
    }

    pub fn cuda(&self) -> &Cuda {
        &self.cuda
    }

    pub fn deterministic(&self) -> bool {
        self.cuda.deterministic()
    }

    /// Microseconds of what `run` launches: launched once, captured, replayed. It may not allocate the second time.
    pub fn time(&self, mut run: impl FnMut() -> Result<(), BackendError>) -> Result<f64, BackendError> {
        let stream = &self.gpu.stream;
        run()?;
        stream.synchronize().map_err(failed("the first run"))?;
        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
            .map_err(failed("starting a capture"))?;
        let captured = run();
        let graph = stream
            .end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
            .map_err(failed("ending a capture"))?
            .ok_or_else(|| BackendError::Device("nothing was captured".into()))?;
        captured?;
        self.median(&mut || graph.launch().map_err(failed("a replay")))
    }

    /// Microseconds of what `launch` puts on the stream, by the device's clock: the median of some calls.
    pub fn median(&self, launch: &mut dyn FnMut() -> Result<(), BackendError>) -> Result<f64, BackendError> {
        let event = || self.gpu.context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let (start, end) = (event().map_err(failed("an event"))?, event().map_err(failed("an event"))?);
        let mut times = Vec::new();
        for replay in 0..REPLAYS + 3 {
            start.record(&self.gpu.stream).map_err(failed("an event"))?;
            launch()?;
            end.record(&self.gpu.stream).map_err(failed("an event"))?;
            let time = start.elapsed_ms(&end).map_err(failed("waiting for an event"))?;
            if replay >= 3 {
                times.push(f64::from(time) * 1000.0);
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[REPLAYS / 2])
    }

    /// Bytes a second, of reading `bytes` once.
    pub fn read_ceiling(&self, bytes: usize) -> Result<f64, BackendError> {
        let memory = self.random(bytes / 2, Precision::Bf16)?;
        let out = Memory::new(&self.cuda.device, 4)?;
        let args = ReadArgs { from: memory.address(), count: (bytes / 16) as u64, out: out.address() };
        let mut best = f64::MAX;
        for blocks in [1, 2, 4] {
            let grid = Grid::new(blocks * self.gpu.processors().count, 1, 1024);
            best = best.min(self.time(|| {
                // SAFETY: the kernel reads `count` units of 16 bytes, which were allocated.
                unsafe { launch(&*self.gpu, READ, grid, &args) }
            })?);
        }
        Ok(bytes as f64 / best * 1e6)
    }

    /// Microseconds of a product `[rows, cols] · [outputs, cols]ᵀ` in bf16; weights rotated beyond the cache.
    pub fn product(&self, rows: usize, outputs: usize, cols: usize) -> Result<f64, BackendError> {
        self.product_by(rows, outputs, cols, &|product| {
            // SAFETY: `product_by` allocates for these shapes.
            match unsafe { self.gpu.multiply(product, None)? } {
                Some(_) => Ok(()),
                None => Err(BackendError::Unsupported {
                    what: format!("a product of {rows} rows and {cols} columns with {outputs} outputs"),
                    instead: "multiples of 8 are".into(),
                }),
            }
        })
    }

    fn product_by(
        &self,
        rows: usize,
        outputs: usize,
        cols: usize,
        multiply: &dyn Fn(Product) -> Result<(), BackendError>,
    ) -> Result<f64, BackendError> {
        let copies = (256usize << 20).div_ceil(outputs * cols * 2).clamp(1, 32);
        let weights = self.random(copies * outputs * cols, Precision::Bf16)?;
        let x = self.random(rows * cols, Precision::Bf16)?;
        let out = Memory::new(&self.cuda.device, MOST_PARTS * rows * outputs * 4)?;
        let time = self.time(|| {
            for copy in 0..copies {
                let product = Product {
                    x: x.address(),
                    w: weights.address() + (copy * outputs * cols * 2) as u64,
                    out: out.address(),
                    rows,
                    outputs,
                    cols,
                    precision: Precision::Bf16,
                    out_precision: Precision::F32,
                    deterministic: self.cuda.deterministic(),
                    most_parts: 1,
                    recurs: true,
                };
                multiply(product)?;
            }
            Ok(())
        })?;
        Ok(time / copies as f64)
    }

    /// `count` numbers in -1..1.
    fn random(&self, count: usize, precision: Precision) -> Result<Memory, BackendError> {
        let memory = Memory::new(&self.cuda.device, count * precision.bytes())?;
        self.fill(&FillArgs {
            out: memory.address(),
            count: count as u64,
            seed: 7,
            precision: precision as i32,
            size: 1.0,
            tail_word: 0,
            page_words: 1,
            tail: 0,
        })?;
        Ok(memory)
    }

    fn fill(&self, args: &FillArgs) -> Result<(), BackendError> {
        let grid = Grid::new(8 * self.gpu.processors().count, 1, 256);
        // SAFETY: callers allocate `count` elements.
        unsafe { launch(&*self.gpu, FILL, grid, args) }
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}
