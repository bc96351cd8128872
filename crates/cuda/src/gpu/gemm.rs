//! Products by cuBLASLt. For the sizes of recorded steps the algorithm is chosen once and kept: the fastest of those
//! that the library proposes, or a kernel of ours. Otherwise, and where bits matter more, it is the first proposed.

use crate::device::{OwnWay, Product};
use crate::precision::Precision;
use crate::steps::rung;
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtMatmulAlgo_t, cublasLtMatmulDescAttributes_t,
    cublasLtMatmulPreferenceAttributes_t, cudaDataType,
};
use cudarc::driver::result as driver;
use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream};
use octavo_backend::BackendError;
use std::collections::HashMap;
use std::ffi::c_void;

const WORKSPACE: usize = 32 << 20;
/// Rows for which the algorithm is chosen where it may not depend on them.
const USUAL_ROWS: usize = 64;

/// Algorithms that are tried.
const TRIED: usize = 16;
/// How often each.
const TRIES: usize = 4;
/// More than a device's cache holds: written between tries, so that each finds its weights in memory.
const COLD: usize = 96 << 20;

/// How much slower than the library's a kernel of ours may be, which in a step starts before the one before it has ended,
/// and how much where that is most of its time: for so few rows, or so few weights.
const OWN_MARGIN: f32 = 1.1;
const SMALL_MARGIN: f32 = 1.25;
const SMALL_ROWS: usize = 8;
const SMALL_WEIGHTS: usize = 8 << 20;
/// Up to so many rows it may also be slower by so many milliseconds, whatever the product: that is what an algorithm of the
/// library costs a step beyond its own time, as nothing overlaps it.
const SEVERAL_ROWS: usize = 32;
const ALONE: f32 = 0.006;

/// A shape for which one algorithm does: rows are rounded up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Shape {
    rows: usize,
    outputs: usize,
    cols: usize,
    precision: Precision,
    out_precision: Precision,
    deterministic: bool,
    /// Of recorded steps, which come again and again: only those are worth the time of trying.
    recurs: bool,
    /// Whether there is another way than the library's.
    has_own: bool,
}

/// How products of a shape are computed.
#[derive(Clone, Copy)]
enum Way {
    Library(cublasLtMatmulAlgo_t),
    /// By a kernel of ours.
    Own,
}

pub(super) struct Gemm {
    handle: sys::cublasLtHandle_t,
    workspace: u64,
    chosen: HashMap<Shape, Way>,
}

// SAFETY: a handle that may be used from any thread, one at a time (it lies behind a mutex).
unsafe impl Send for Gemm {}

/// Descriptors of one product, destroyed together.
struct Descriptors {
    product: sys::cublasLtMatmulDesc_t,
    w: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
}

impl Gemm {
    /// The workspace comes with the first product.
    pub(super) fn new() -> Result<Self, CublasError> {
        Ok(Self { handle: result::create_handle()?, workspace: 0, chosen: HashMap::new() })
    }

    /// # Safety
    /// The addresses have room for the shapes, on the device that is current.
    pub(super) unsafe fn multiply(
        &mut self,
        p: Product,
        own: Option<OwnWay<'_>>,
        stream: CUstream,
    ) -> Result<bool, BackendError> {
        // Rows of whole 16-byte units; others are rare and small.
        if !p.cols.is_multiple_of(8) || !p.outputs.is_multiple_of(8) {
            return Ok(false);
        }
        if self.workspace == 0 {
            // SAFETY: kept for as long as the process lives.
            self.workspace = unsafe { cudarc::driver::result::malloc_sync(WORKSPACE) }
                .map_err(super::failed("allocating the workspace of products"))?;
        }
        // SAFETY: the caller's promise.
        match unsafe { self.run(p, own, stream) } {
            Ok(done) => Ok(done),
            Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => Ok(false),
            Err(error) => Err(BackendError::Device(format!("a product of {p:?}: {error}"))),
        }
    }

    /// Whether it was done.
    /// # Safety
    /// As for `multiply`.
    unsafe fn run(
        &mut self,
        p: Product,
        own: Option<OwnWay<'_>>,
        stream: CUstream,
    ) -> Result<bool, CublasError> {
        let rounded = rung(p.rows).unwrap_or(p.rows.next_power_of_two());
        let rows = if p.deterministic { USUAL_ROWS } else { rounded };
        let recurs = !p.deterministic && rung(p.rows) == Some(p.rows);
        let Product { outputs, cols, precision, out_precision, deterministic, .. } = p;
        let has_own = own.is_some();
        let shape = Shape { rows, outputs, cols, precision, out_precision, deterministic, recurs, has_own };
        let way = match self.chosen.get(&shape) {
            Some(way) => *way,
            None => {
                let proposed = self.proposed(shape)?;
                let way = match recurs {
                    // SAFETY: the caller's promise.
                    true => unsafe { self.fastest(p, &shape, &proposed, own, stream) },
                    false => Way::Library(proposed[0]),
                };
                self.chosen.insert(shape, way);
                way
            }
        };
        match way {
            Way::Own => Ok(false),
            // SAFETY: the caller's promise.
            Way::Library(algorithm) => unsafe { self.run_by(p, &shape, &algorithm, stream) }.map(|()| true),
        }
    }

    /// # Safety
    /// As for `multiply`.
    unsafe fn run_by(
        &self,
        p: Product,
        shape: &Shape,
        algorithm: &cublasLtMatmulAlgo_t,
        stream: CUstream,
    ) -> Result<(), CublasError> {
        let descriptors = Descriptors::new(p.rows, shape)?;
        let (one, zero) = (1.0f32, 0.0f32);
        // SAFETY: descriptors of the product's shapes, the caller's addresses, numbers that outlive the call.
        unsafe {
            result::matmul(
                self.handle,
                descriptors.product,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                p.w as *const c_void,
                descriptors.w,
                p.x as *const c_void,
                descriptors.x,
                p.out as *const c_void,
                descriptors.out,
                p.out as *mut c_void,
                descriptors.out,
                algorithm,
                self.workspace as *mut c_void,
                WORKSPACE,
                stream.cast(),
            )
        }
    }

    /// The one that takes the least time for this product.
    /// # Safety
    /// As for `multiply`.
    unsafe fn fastest(
        &self,
        p: Product,
        shape: &Shape,
        proposed: &[cublasLtMatmulAlgo_t],
        own: Option<OwnWay<'_>>,
        stream: CUstream,
    ) -> Way {
        let mut best = (f32::INFINITY, Way::Library(proposed[0]));
        let Some(clock) = Clock::new(stream) else { return best.1 };
        // One that does not run is not chosen; an error that lasts is met by the product itself.
        for algorithm in proposed {
            // SAFETY: the caller's promise.
            let time = clock.least(|| unsafe { self.run_by(p, shape, algorithm, stream) }.ok());
            if time.is_some_and(|time| time < best.0) {
                best = (time.unwrap_or(best.0), Way::Library(*algorithm));
            }
        }
        let time = own.and_then(|own| clock.least(|| own().ok()));
        let is_small = p.rows <= SMALL_ROWS || p.outputs * p.cols <= SMALL_WEIGHTS;
        let margin = if is_small { SMALL_MARGIN } else { OWN_MARGIN };
        let alone = if p.rows <= SEVERAL_ROWS { ALONE } else { 0.0 };
        let most = (margin * best.0).max(best.0 + alone);
        if time.is_some_and(|time| time < most) { Way::Own } else { best.1 }
    }

    /// What the library proposes, the likeliest first; at least one.
    fn proposed(&self, shape: Shape) -> Result<Vec<cublasLtMatmulAlgo_t>, CublasError> {
        use cublasLtMatmulPreferenceAttributes_t as Attribute;
        let d = Descriptors::new(shape.rows, &shape)?;
        let preference = result::create_matmul_pref()?;
        let workspace = WORKSPACE;
        // A sum in parts keeps them apart and adds them in one order, whatever the rows.
        let parts_apart = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        let mut found: Vec<sys::cublasLtMatmulHeuristicResult_t> = Vec::with_capacity(TRIED);
        let mut count = 0;
        // SAFETY: live descriptors; attributes of the sizes that the library documents; room for as many results as
        // are asked for, of which `count` are written; destroyed once.
        unsafe {
            let set = |attribute, value: *const c_void, bytes| {
                result::set_matmul_pref_attribute(preference, attribute, value, bytes)
            };
            let mut ready =
                set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const workspace).cast(), 8);
            if shape.deterministic {
                let attribute = Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
                ready = ready.and_then(|()| set(attribute, (&raw const parts_apart).cast(), 4));
            }
            let asked = ready.and_then(|()| {
                sys::cublasLtMatmulAlgoGetHeuristic(
                    self.handle,
                    d.product,
                    d.w,
                    d.x,
                    d.out,
                    d.out,
                    preference,
                    TRIED as i32,
                    found.as_mut_ptr(),
                    &mut count,
                )
                .result()
            });
            result::destroy_matmul_pref(preference)?;
            asked?;
            found.set_len(count as usize);
        }
        let algorithms: Vec<_> = found.iter().map(|one| one.algo).collect();
        if algorithms.is_empty() {
            return Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED));
        }
        Ok(algorithms)
    }
}

/// The device's clock on a stream, and memory to empty its cache with.
struct Clock {
    stream: CUstream,
    start: CUevent,
    end: CUevent,
    cold: u64,
}

impl Clock {
    /// `None` where there is no memory for it.
    fn new(stream: CUstream) -> Option<Self> {
        let timed = CUevent_flags::CU_EVENT_DEFAULT;
        let (start, end) = (driver::event::create(timed).ok()?, driver::event::create(timed).ok()?);
        // SAFETY: freed in the order of the stream by `drop`.
        let cold = unsafe { driver::malloc_async(stream, COLD) }.ok()?;
        Some(Self { stream, start, end, cold })
    }

    /// Milliseconds of the quickest of some runs; `None` if one failed.
    fn least(&self, run: impl Fn() -> Option<()>) -> Option<f32> {
        let once = || {
            // SAFETY: live events and stream, as much memory as is written.
            unsafe {
                driver::memset_d8_async(self.cold, 0, COLD, self.stream).ok()?;
                driver::event::record(self.start, self.stream).ok()?;
                run()?;
                driver::event::record(self.end, self.stream).ok()?;
                driver::event::synchronize(self.end).ok()?;
                driver::event::elapsed(self.start, self.end).ok()
            }
        };
        let times: Option<Vec<f32>> = (0..TRIES).map(|_| once()).collect();
        times?.into_iter().reduce(f32::min)
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed here alone.
        unsafe {
            let _ = driver::free_async(self.cold, self.stream);
            let _ = driver::event::destroy(self.start);
            let _ = driver::event::destroy(self.end);
        }
    }
}

impl Descriptors {
    /// The library counts columns first: `outᵀ[outputs, rows] = w[cols, outputs]ᵀ · x[cols, rows]`.
    fn new(rows: usize, shape: &Shape) -> Result<Self, CublasError> {
        let [input, output] = [shape.precision, shape.out_precision].map(|precision| match precision {
            Precision::F32 => cudaDataType::CUDA_R_32F,
            Precision::Bf16 => cudaDataType::CUDA_R_16BF,
            Precision::F16 => cudaDataType::CUDA_R_16F,
        });
        let (outputs, cols) = (shape.outputs as u64, shape.cols as u64);
        let product =
            result::create_matmul_desc(cublasComputeType_t::CUBLAS_COMPUTE_32F, cudaDataType::CUDA_R_32F)?;
        // CUBLAS_OP_T.
        let transpose = 1i32;
        let attribute = cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        // SAFETY: a live descriptor, and an attribute of four bytes.
        unsafe {
            result::set_matmul_desc_attribute(product, attribute, (&raw const transpose).cast(), 4)?;
        }
        Ok(Self {
            product,
            w: result::create_matrix_layout(input, cols, outputs, cols as i64)?,
            x: result::create_matrix_layout(input, cols, rows as u64, cols as i64)?,
            out: result::create_matrix_layout(output, outputs, rows as u64, outputs as i64)?,
        })
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed here alone; an error would mean that they were not live.
        unsafe {
            let _ = result::destroy_matmul_desc(self.product);
            for layout in [self.w, self.x, self.out] {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}
