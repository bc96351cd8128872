//! Products by cuBLASLt. For the sizes of recorded steps the algorithm is chosen once and kept: the fastest of those
//! that the library proposes, or a kernel of ours. Otherwise, and where bits matter more, it is the first proposed.

use super::clock::Clock;
use crate::device::{OwnWay, Product};
use crate::precision::Precision;
use crate::steps::rung;
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtMatmulAlgo_t, cublasLtMatmulDescAttributes_t,
    cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayoutAttribute_t, cudaDataType,
};
use cudarc::driver::sys::CUstream;
use octavo_backend::BackendError;
use std::collections::HashMap;
use std::ffi::c_void;

const WORKSPACE: usize = 32 << 20;
/// Rows for which the algorithm is chosen where it may not depend on them.
const USUAL_ROWS: usize = 64;

/// Algorithms that are tried.
const TRIED: usize = 16;
/// Parts of the columns whose products are tried, as a batch of them, if there is room for their sums: with few outputs
/// one part keeps few processors busy. The library adds parts up in a kernel of its own; ours do while they read them.
const IN_PARTS: usize = 2;
/// How much slower a product may be that is not in parts.
const WHOLE_MARGIN: f32 = 1.04;

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
    /// Of the sizes of recorded steps, and not in a step that is not recorded: only those are worth the time of trying.
    recurs: bool,
    /// Whether there is another way than the library's.
    has_own: bool,
    /// Room for sums of parts.
    most_parts: usize,
}

/// One of the library's, and how much of the workspace it takes for the rows of its shape.
#[derive(Clone, Copy)]
struct Algorithm {
    how: cublasLtMatmulAlgo_t,
    workspace: usize,
}

/// How products of a shape are computed.
#[derive(Clone, Copy)]
enum Way {
    /// In so many parts.
    Library(Algorithm, usize),
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

    /// Gives back what it has, once.
    /// # Safety
    /// The device is current, has ended all products, and is asked for none any more.
    pub(super) unsafe fn release(&mut self) {
        // SAFETY: created in `new` and `multiply`, and the caller's promise. An error would leave nothing to do.
        unsafe {
            let _ = result::destroy_handle(self.handle);
            if self.workspace != 0 {
                let _ = cudarc::driver::result::free_sync(self.workspace);
            }
        }
    }

    /// # Safety
    /// The addresses have room for the shapes, on the device that is current.
    pub(super) unsafe fn multiply(
        &mut self,
        p: Product,
        own: Option<OwnWay<'_>>,
        stream: CUstream,
    ) -> Result<Option<usize>, BackendError> {
        // Rows of whole 16-byte units; others are rare and small.
        if !p.cols.is_multiple_of(8) || !p.outputs.is_multiple_of(8) {
            return Ok(None);
        }
        if self.workspace == 0 {
            // SAFETY: kept until `release`.
            self.workspace = unsafe { cudarc::driver::result::malloc_sync(WORKSPACE) }
                .map_err(super::failed("allocating the workspace of products"))?;
        }
        // SAFETY: the caller's promise.
        match unsafe { self.run(p, own, stream) } {
            Ok(done) => Ok(done),
            // Where bits may not depend on the rows, what is done for some is done for all.
            Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) if !p.deterministic => {
                Ok(None)
            }
            Err(error) => Err(BackendError::Device(format!("a product of {p:?}: {error}"))),
        }
    }

    /// In how many parts it was done, if it was.
    /// # Safety
    /// As for `multiply`.
    unsafe fn run(
        &mut self,
        p: Product,
        own: Option<OwnWay<'_>>,
        stream: CUstream,
    ) -> Result<Option<usize>, CublasError> {
        let rounded = rung(p.rows).unwrap_or(p.rows.next_power_of_two());
        let rows = if p.deterministic { USUAL_ROWS } else { rounded };
        let recurs = p.recurs && !p.deterministic && rung(p.rows) == Some(p.rows);
        let Product { outputs, cols, precision, out_precision, deterministic, most_parts, .. } = p;
        let shape = Shape {
            rows,
            outputs,
            cols,
            precision,
            out_precision,
            deterministic,
            recurs,
            has_own: own.is_some(),
            most_parts,
        };
        let way = match self.chosen.get(&shape) {
            Some(way) => *way,
            None => {
                let proposed = self.proposed(&shape, 1)?;
                if proposed.is_empty() {
                    return Ok(None);
                }
                let way = match recurs {
                    // SAFETY: the caller's promise.
                    true => unsafe { self.fastest(p, &shape, &proposed, own, stream) },
                    false => Way::Library(proposed[0], 1),
                };
                self.chosen.insert(shape, way);
                way
            }
        };
        match way {
            Way::Own => Ok(None),
            Way::Library(algorithm, parts) => {
                // SAFETY: the caller's promise.
                unsafe { self.run_by(p, &shape, parts, &algorithm, stream) }.map(|()| Some(parts))
            }
        }
    }

    /// As many rows at a time as there is workspace for. There is for those that the shape has: only where an algorithm
    /// must do for more are there several times.
    /// # Safety
    /// As for `multiply`.
    unsafe fn run_by(
        &self,
        p: Product,
        shape: &Shape,
        parts: usize,
        algorithm: &Algorithm,
        stream: CUstream,
    ) -> Result<(), CublasError> {
        let most = shape.rows * (WORKSPACE / algorithm.workspace.max(1)).max(1);
        assert!(parts == 1 || p.rows <= most, "parts of all rows lie together");
        let bytes = |precision: Precision, elements: usize| (elements * precision.bytes()) as u64;
        (0..p.rows).step_by(most).try_for_each(|first| {
            let slice = Product {
                rows: most.min(p.rows - first),
                x: p.x + bytes(p.precision, first * p.cols),
                out: p.out + bytes(p.out_precision, first * p.outputs),
                ..p
            };
            // SAFETY: rows of those that the caller promised.
            unsafe { self.run_slice(slice, shape, parts, &algorithm.how, stream) }
        })
    }

    /// # Safety
    /// As for `multiply`.
    unsafe fn run_slice(
        &self,
        p: Product,
        shape: &Shape,
        parts: usize,
        algorithm: &cublasLtMatmulAlgo_t,
        stream: CUstream,
    ) -> Result<(), CublasError> {
        let descriptors = Descriptors::new(p.rows, shape, parts)?;
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
        proposed: &[Algorithm],
        own: Option<OwnWay<'_>>,
        stream: CUstream,
    ) -> Way {
        let whole = proposed[0];
        let Some(clock) = Clock::new(stream) else { return Way::Library(whole, 1) };
        // SAFETY: the caller's promise.
        let (mut time, algorithm) = unsafe { self.quickest(p, shape, 1, proposed, &clock) };
        let mut best = Way::Library(algorithm.unwrap_or(whole), 1);
        if IN_PARTS <= shape.most_parts && shape.cols.is_multiple_of(8 * IN_PARTS) {
            let proposed = self.proposed(shape, IN_PARTS).unwrap_or_default();
            // SAFETY: the caller's promise, and there is room for the parts.
            let (in_parts, algorithm) = unsafe { self.quickest(p, shape, IN_PARTS, &proposed, &clock) };
            if let Some(algorithm) = algorithm.filter(|_| WHOLE_MARGIN * in_parts < time) {
                (time, best) = (in_parts, Way::Library(algorithm, IN_PARTS));
            }
        }
        let own_time = own.and_then(|own| clock.least(|| own().ok()));
        let is_small = p.rows <= SMALL_ROWS || p.outputs * p.cols <= SMALL_WEIGHTS;
        let margin = if is_small { SMALL_MARGIN } else { OWN_MARGIN };
        let alone = if p.rows <= SEVERAL_ROWS { ALONE } else { 0.0 };
        let most = (margin * time).max(time + alone);
        if own_time.is_some_and(|own| own < most) { Way::Own } else { best }
    }

    /// Milliseconds of the quickest of those proposed, of which one that does not run is not chosen: an error that lasts
    /// is met by the product itself.
    /// # Safety
    /// As for `multiply`.
    unsafe fn quickest(
        &self,
        p: Product,
        shape: &Shape,
        parts: usize,
        proposed: &[Algorithm],
        clock: &Clock,
    ) -> (f32, Option<Algorithm>) {
        let mut best = (f32::INFINITY, None);
        for algorithm in proposed {
            // SAFETY: the caller's promise.
            let run = || unsafe { self.run_by(p, shape, parts, algorithm, clock.stream()) }.ok();
            if let Some(time) = clock.least(run).filter(|time| *time < best.0) {
                best = (time, Some(*algorithm));
            }
        }
        best
    }

    /// What the library proposes, the likeliest first.
    fn proposed(&self, shape: &Shape, parts: usize) -> Result<Vec<Algorithm>, CublasError> {
        use cublasLtMatmulPreferenceAttributes_t as Attribute;
        let d = Descriptors::new(shape.rows, shape, parts)?;
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
            match asked {
                Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => return Ok(Vec::new()),
                asked => asked?,
            }
            found.set_len(count as usize);
        }
        Ok(found.iter().map(|one| Algorithm { how: one.algo, workspace: one.workspaceSize }).collect())
    }
}

impl Descriptors {
    /// The library counts columns first: `outᵀ[outputs, rows] = w[cols, outputs]ᵀ · x[cols, rows]`.
    /// The sums of `parts` stretches of the columns follow each other.
    fn new(rows: usize, shape: &Shape, parts: usize) -> Result<Self, CublasError> {
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
        let layout = |precision, [inner, outer]: [u64; 2], line: u64, next: i64| {
            let layout = result::create_matrix_layout(precision, inner, outer, line as i64)?;
            let parts = parts as i32;
            // SAFETY: a live descriptor, and attributes of four and eight bytes.
            unsafe {
                use cublasLtMatrixLayoutAttribute_t as Attribute;
                let set = |attribute, value, bytes| {
                    result::set_matrix_layout_attribute(layout, attribute, value, bytes)
                };
                set(Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (&raw const parts).cast(), 4)?;
                let next = (&raw const next).cast();
                set(Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, next, 8)?;
            }
            Ok(layout)
        };
        let part = cols / parts as u64;
        Ok(Self {
            product,
            w: layout(input, [part, outputs], cols, part as i64)?,
            x: layout(input, [part, rows as u64], cols, part as i64)?,
            out: layout(output, [outputs, rows as u64], outputs, rows as i64 * outputs as i64)?,
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
