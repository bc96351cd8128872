//! From a machine of which nothing is known to a device that runs kernels.

use super::Gpu;
use super::compile::Compiler;
use super::gemm::Gemm;
use crate::backend::{Cuda, Options};
use crate::device::Processors;
use cudarc::driver::sys::{CUdevice_attribute, CUmemPool_attribute, CUresult};
use cudarc::driver::{CudaContext, DriverError, result};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

/// bf16 products and asynchronous copies came with 8.0.
const OLDEST: (i32, i32) = (8, 0);

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "no NVIDIA driver: libcuda.so.1 cannot be loaded. Install the driver (nvidia-smi shows whether it works; in a \
         container, pass --gpus all), or use --device cpu"
    )]
    NoDriver,
    #[error("no CUDA device {ordinal}: the driver knows {count}. Choose one of them, or use --device cpu")]
    NoDevice { ordinal: usize, count: usize },
    #[error("{name} has compute capability {major}.{minor}; 8.0 or newer is needed. Use --device cpu")]
    TooOld { name: String, major: i32, minor: i32 },
    #[error(
        "{library} cannot be loaded: install the CUDA {version} libraries (pip install {package}) and put their \
         folder into LD_LIBRARY_PATH, or use --device cpu"
    )]
    NoLibrary { library: &'static str, version: &'static str, package: &'static str },
    #[error(
        "the driver answered: {0}. Is it older than CUDA 13.0 needs (driver 580)? Use --device cpu until it works"
    )]
    Driver(DriverError),
    #[error("cuBLASLt answered: {0}")]
    Blas(String),
}

impl OpenError {
    /// Whether there is a GPU, which for some other reason cannot be used.
    pub fn has_device(&self) -> bool {
        !matches!(self, Self::NoDriver | Self::NoDevice { count: 0, .. })
    }
}

impl From<DriverError> for OpenError {
    fn from(error: DriverError) -> Self {
        match error.0 {
            CUresult::CUDA_ERROR_NO_DEVICE => Self::NoDevice { ordinal: 0, count: 0 },
            CUresult::CUDA_ERROR_STUB_LIBRARY => Self::NoDriver,
            _ => Self::Driver(error),
        }
    }
}

impl Cuda {
    /// Opens a device of this machine.
    pub fn open(ordinal: usize, options: Options) -> Result<Self, OpenError> {
        let Options { deterministic, cache, graphs } = options;
        Ok(Self::on(Arc::new(Gpu::open(ordinal, cache)?), deterministic, graphs))
    }

    /// Whether there is a device to open, and what is needed for it. Nothing is opened yet.
    pub fn find(ordinal: usize) -> Result<(), OpenError> {
        check_driver()?;
        let count = CudaContext::device_count()? as usize;
        if ordinal >= count {
            return Err(OpenError::NoDevice { ordinal, count });
        }
        check_libraries()
    }
}

impl Gpu {
    pub(super) fn open(ordinal: usize, cache: Option<PathBuf>) -> Result<Self, OpenError> {
        Cuda::find(ordinal)?;
        let context = CudaContext::new(ordinal)?;
        let name = context.name()?;
        let (major, minor) = context.compute_capability()?;
        if (major, minor) < OLDEST {
            return Err(OpenError::TooOld { name, major, minor });
        }
        // SAFETY: there is one stream, and all memory is used in its order.
        unsafe { context.disable_event_tracking() };
        keep_freed_memory(&context)?;
        let stream = context.new_stream()?;
        let attribute = |attribute| context.attribute(attribute).map(|value| value as usize);
        let processors = Processors {
            count: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        };
        let gemm = Gemm::new().map_err(|error| OpenError::Blas(error.to_string()))?;
        Ok(Self {
            context,
            stream,
            name: format!("{name} (cuda:{ordinal})"),
            processors,
            capability: (major, minor),
            compiler: Compiler::new((major, minor), cache),
            functions: Mutex::new(HashMap::new()),
            rehearsal: Mutex::default(),
            gemm: Mutex::new(gemm),
            moves: AtomicU64::new(0),
        })
    }
}

/// What is freed stays with the process for the next allocation, instead of going back to the driver.
fn keep_freed_memory(context: &CudaContext) -> Result<(), DriverError> {
    let threshold = u64::MAX;
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the device's own pool, and an attribute of eight bytes.
    unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device())?;
        result::mem_pool::set_attribute(pool, attribute, (&raw const threshold).cast_mut().cast())
    }
}

/// cudarc panics where a library is missing, so that it is asked first.
fn check_driver() -> Result<(), OpenError> {
    // SAFETY: loads a library, whose initialisers are NVIDIA's.
    if unsafe { cudarc::driver::sys::is_culib_present() } { Ok(()) } else { Err(OpenError::NoDriver) }
}

/// The same for what is needed beside the driver, where there is a device.
fn check_libraries() -> Result<(), OpenError> {
    // SAFETY: as above.
    let [compiler, blas] =
        unsafe { [cudarc::nvrtc::sys::is_culib_present(), cudarc::cublaslt::sys::is_culib_present()] };
    let missing = |library, package| OpenError::NoLibrary { library, version: "13", package };
    match (compiler, blas) {
        (false, _) => Err(missing("libnvrtc.so (the run-time compiler)", "nvidia-cuda-nvrtc")),
        (_, false) => Err(missing("libcublasLt.so (matrix products)", "nvidia-cublas")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_gpu_did_is_worth_a_note() {
        assert!(!OpenError::NoDriver.has_device());
        assert!(!OpenError::from(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)).has_device());
        assert!(OpenError::NoDevice { ordinal: 3, count: 1 }.has_device());
        assert!(OpenError::from(DriverError(CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)).has_device());
    }

    #[test]
    fn a_machine_without_a_driver_is_told_what_to_do() {
        match Cuda::open(0, Options::default()) {
            Err(error @ OpenError::NoDriver) => {
                let message = error.to_string();
                assert!(
                    message.contains("Install the driver") && message.contains("--device cpu"),
                    "{message}"
                );
            }
            Err(other) => println!("{other}"),
            Ok(cuda) => println!("there is a device: {cuda:?}"),
        }
    }
}
