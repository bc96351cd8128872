//! The device that is there: driver, stream, kernels.

pub mod bench;
mod clock;
mod compile;
mod gemm;
mod graph;
mod open;
mod rehearsal;

pub use open::OpenError;

use crate::device::{Device, Grid, OwnWay, Processors, Product, Recorded};
use crate::kernels::Kernel;
use compile::Compiler;
use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchConfig, CUresult,
};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use gemm::Gemm;
use octavo_backend::BackendError;
use rehearsal::Rehearsal;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The first compute capability on which a kernel may start before the one before it has ended.
const FIRST_TO_OVERLAP: (i32, i32) = (9, 0);
/// Shared memory that any kernel may have without asking: 48 KiB with what it declares itself.
const SHARED_WITHOUT_ASKING: u32 = (48 - 8) << 10;

/// Of a processor's memory, how much is shared memory instead of cache: as much as there can be. Kernels that overlap
/// agree on it, as a processor changes it only when it has nothing to do.
const ALL_SHARED: i32 = 100;

/// Errors after which every call answers the same, until the process ends.
const STAYS: [CUresult; 13] = [
    CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
    CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
    CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
    CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
    CUresult::CUDA_ERROR_ASSERT,
    CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
    CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUresult::CUDA_ERROR_INVALID_PC,
    CUresult::CUDA_ERROR_LAUNCH_FAILED,
    CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
];

pub(crate) struct Gpu {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    name: String,
    processors: Processors,
    capability: (i32, i32),
    compiler: Compiler,
    functions: Mutex<HashMap<Kernel, Function>>,
    rehearsal: Mutex<Rehearsal>,
    gemm: Mutex<Gemm>,
    moves: AtomicU64,
}

/// An entry of a loaded module, which is never unloaded, and how much shared memory it may have.
#[derive(Clone, Copy)]
struct Function(CUfunction, u32);
// SAFETY: a handle that the driver may be given from any thread.
unsafe impl Send for Function {}

impl Gpu {
    fn function(&self, kernel: Kernel, shared: u32) -> Result<CUfunction, BackendError> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let function = match functions.get(&kernel) {
            Some(function) => *function,
            None => Function(self.load(kernel)?, SHARED_WITHOUT_ASKING),
        };
        if shared > function.1 {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function was loaded, and is never unloaded.
            unsafe { result::function::set_function_attribute(function.0, attribute, shared as i32) }
                .map_err(failed("asking for shared memory"))?;
        }
        functions.insert(kernel, Function(function.0, function.1.max(shared)));
        Ok(function.0)
    }

    fn load(&self, kernel: Kernel) -> Result<CUfunction, BackendError> {
        let image = match self.rehearsal().take(&kernel) {
            Some(image) => image,
            None => self.compiler.compile(&kernel)?,
        };
        let name = CString::new(kernel.entry()).expect("a name without zeros");
        // SAFETY: a whole image for this device, as the compiler gave it; the module lives as long as the process.
        unsafe {
            let module =
                result::module::load_data(image.as_ptr().cast()).map_err(failed("loading a kernel"))?;
            let function =
                result::module::get_function(module, name).map_err(failed("finding a kernel's entry"))?;
            if kernel.overlaps {
                let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
                result::function::set_function_attribute(function, attribute, ALL_SHARED)
                    .map_err(failed("dividing a processor's memory"))?;
            }
            Ok(function)
        }
    }

    fn rehearsal(&self) -> MutexGuard<'_, Rehearsal> {
        self.rehearsal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bind(&self) -> Result<(), BackendError> {
        self.context.bind_to_thread().map_err(failed("binding the context"))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // Whoever has memory of this device has the device, too, and recordings end with the back end: nothing is asked for
        // any more.
        if self.bind().and_then(|()| self.wait()).is_ok() {
            // SAFETY: bound and waited for just now.
            unsafe { self.gemm.get_mut().unwrap_or_else(PoisonError::into_inner).release() };
        }
    }
}

/// An error of the driver, with what was being done.
fn failed(what: &'static str) -> impl Fn(DriverError) -> BackendError {
    move |error| match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => BackendError::OutOfMemory(format!("{what}: {error}")),
        code if STAYS.contains(&code) => BackendError::Lost(format!("{what}: {error}")),
        _ => BackendError::Device(format!("{what}: {error}")),
    }
}

impl Device for Gpu {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn processors(&self) -> Processors {
        self.processors
    }

    fn capability(&self) -> (i32, i32) {
        self.capability
    }

    fn free_memory(&self) -> Result<u64, BackendError> {
        self.bind()?;
        let (free, _) = result::mem_get_info().map_err(failed("asking for free memory"))?;
        Ok(free as u64)
    }

    fn allocate(&self, bytes: usize) -> Result<u64, BackendError> {
        self.bind()?;
        // SAFETY: the memory is used in the order of this stream alone.
        unsafe { result::malloc_async(self.stream.cu_stream(), bytes) }.map_err(failed("allocating"))
    }

    unsafe fn release(&self, address: u64) {
        // An error here has been met by an earlier call, or the context is gone: there is no one to tell.
        let _ = self.bind();
        // SAFETY: the caller's promise; freed when the work before it is done.
        let _ = unsafe { result::free_async(address, self.stream.cu_stream()) };
    }

    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), BackendError> {
        self.bind()?;
        // SAFETY: the caller's promise; pageable memory is read before the call returns.
        unsafe { result::memcpy_htod_async(to, from, self.stream.cu_stream()) }.map_err(failed("uploading"))
    }

    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<(), BackendError> {
        self.bind()?;
        // SAFETY: the caller's promise; the stream is waited for before `to` is looked at.
        unsafe { result::memcpy_dtoh_async(to, from, self.stream.cu_stream()) }
            .map_err(failed("downloading"))?;
        self.stream.synchronize().map_err(failed("waiting for the device"))
    }

    unsafe fn zero(&self, at: u64, bytes: usize) -> Result<(), BackendError> {
        self.bind()?;
        // SAFETY: the caller's promise.
        unsafe { result::memset_d8_async(at, 0, bytes, self.stream.cu_stream()) }.map_err(failed("zeroing"))
    }

    unsafe fn launch(&self, kernel: Kernel, grid: Grid, args: *const c_void) -> Result<(), BackendError> {
        if self.rehearsal().note(kernel) {
            return Ok(());
        }
        self.bind()?;
        let function = self.function(kernel, grid.shared)?;
        let mut overlap = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = CUlaunchConfig {
            gridDimX: grid.blocks[0],
            gridDimY: grid.blocks[1],
            gridDimZ: 1,
            blockDimX: grid.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: grid.shared,
            hStream: self.stream.cu_stream(),
            attrs: &raw mut overlap,
            numAttrs: u32::from(kernel.overlaps && self.capability >= FIRST_TO_OVERLAP),
        };
        let mut params = [args.cast_mut()];
        // SAFETY: one parameter, of the size that the text was compiled for; a kernel that overlaps waits for the one
        // before it; the rest is the caller's promise.
        unsafe { sys::cuLaunchKernelEx(&config, function, params.as_mut_ptr(), std::ptr::null_mut()) }
            .result()
            .map_err(|error| BackendError::Device(format!("launching {}: {error}", kernel.name)))
    }

    unsafe fn multiply(
        &self,
        product: Product,
        own: Option<OwnWay<'_>>,
    ) -> Result<Option<usize>, BackendError> {
        if self.rehearsal().is_under_way() {
            return Ok(None);
        }
        self.bind()?;
        let mut gemm = self.gemm.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller's promise.
        unsafe { gemm.multiply(product, own, self.stream.cu_stream()) }
    }

    fn rehearse(&self, begins: bool) -> Result<(), BackendError> {
        let mut rehearsal = self.rehearsal();
        if begins {
            rehearsal.begin();
            return Ok(());
        }
        rehearsal.end(&self.compiler)
    }

    fn allocate_host(&self, bytes: usize) -> Result<*mut u8, BackendError> {
        self.bind()?;
        // SAFETY: freed by `release_host`.
        unsafe { result::malloc_host(bytes, 0) }
            .map(<*mut _>::cast)
            .map_err(failed("allocating pinned memory"))
    }

    unsafe fn release_host(&self, address: *mut u8, _: usize) {
        // As in `release`.
        let _ = self.bind();
        let _ = self.stream.synchronize();
        // SAFETY: the caller's promise, and no copy is under way.
        let _ = unsafe { result::free_host(address.cast()) };
    }

    unsafe fn upload_later(&self, to: u64, from: &[u8]) -> Result<(), BackendError> {
        // SAFETY: pinned bytes are read later, which the caller has promised to wait for.
        unsafe { self.upload(to, from) }
    }

    fn wait(&self) -> Result<(), BackendError> {
        self.stream.synchronize().map_err(failed("waiting for the device"))
    }

    fn record(&self) -> Result<(), BackendError> {
        graph::record(&self.stream)
    }

    fn recorded(&self) -> Result<Box<dyn Recorded>, BackendError> {
        graph::recorded(&self.stream)
    }

    fn note_move(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }
}
