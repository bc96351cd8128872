//! What the back end asks of a device: memory, copies, launches, products. There are two: the GPU, and in tests an
//! emulation of it.

use crate::kernels::Kernel;
use crate::precision::Precision;
use octavo_backend::BackendError;
use std::ffi::c_void;
use std::fmt;

/// Blocks and threads of a launch, and bytes of shared memory beyond what the kernel declares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: [u32; 2],
    pub(crate) threads: u32,
    pub(crate) shared: u32,
}

impl Grid {
    pub(crate) fn new(x: usize, y: usize, threads: u32) -> Self {
        let size = |n: usize| u32::try_from(n).expect("a grid of fewer than 2³² blocks");
        Self { blocks: [size(x), size(y)], threads, shared: 0 }
    }
}

/// The multiprocessors of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Processors {
    pub(crate) count: usize,
    /// Bytes of shared memory that a block may have; each has 1 KiB more.
    pub(crate) shared: usize,
}

impl Processors {
    /// Of an H200.
    #[cfg(test)]
    pub(crate) const MANY: Self = Self { count: 132, shared: 227 << 10 };
}

/// `out[rows, outputs] = x[rows, cols] · w[outputs, cols]ᵀ`; `x` and `w` in `precision`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub(crate) x: u64,
    pub(crate) w: u64,
    pub(crate) out: u64,
    pub(crate) rows: usize,
    pub(crate) outputs: usize,
    pub(crate) cols: usize,
    pub(crate) precision: Precision,
    pub(crate) out_precision: Precision,
    /// The sum of a result may not depend on the number of rows.
    pub(crate) deterministic: bool,
    /// How many parts of the sums `out` has room for, one after another.
    pub(crate) most_parts: usize,
    /// It may come again and again: finding out how it is fastest is worth some time.
    pub(crate) recurs: bool,
}

/// Launches a product by a kernel of ours.
pub(crate) type OwnWay<'a> = &'a dyn Fn() -> Result<(), BackendError>;

/// Launches that were recorded together.
pub(crate) trait Recorded: Send + fmt::Debug {
    /// Launches all of them again, with the arguments they had.
    fn replay(&self) -> Result<(), BackendError>;
    fn kernels(&self) -> usize;
}

/// Work runs in the order of the calls. Addresses are those of the device.
pub(crate) trait Device: Send + Sync {
    fn name(&self) -> String;
    fn processors(&self) -> Processors;
    /// Major and minor.
    fn capability(&self) -> (i32, i32);
    /// Bytes that could still be allocated.
    fn free_memory(&self) -> Result<u64, BackendError>;
    /// Memory whose contents are undefined.
    fn allocate(&self, bytes: usize) -> Result<u64, BackendError>;
    /// # Safety
    /// `address` came from `allocate` and is used by no later call.
    unsafe fn release(&self, address: u64);
    /// # Safety
    /// `to` has room for the bytes.
    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), BackendError>;
    /// Waits for all work before it.
    /// # Safety
    /// There are as many bytes at `from`.
    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<(), BackendError>;
    /// # Safety
    /// There are as many bytes at `at`.
    unsafe fn zero(&self, at: u64, bytes: usize) -> Result<(), BackendError>;
    /// # Safety
    /// `args` points to the arguments that the kernel's text declares, and what they point to is there.
    unsafe fn launch(&self, kernel: Kernel, grid: Grid, args: *const c_void) -> Result<(), BackendError>;
    /// By the matrix library, in some parts, whose number is returned; `None`, and nothing done, where it does not take
    /// the shape, or `own`, which is another way to the same product, was found faster.
    /// # Safety
    /// The addresses have room for the shapes.
    unsafe fn multiply(
        &self,
        product: Product,
        own: Option<OwnWay<'_>>,
    ) -> Result<Option<usize>, BackendError>;

    /// From `true` on, launches are noted and not run, and products are not done. With `false` that ends: whatever can be
    /// made ready for those launches is.
    fn rehearse(&self, begins: bool) -> Result<(), BackendError>;

    // Steps that are recorded and replayed.
    /// Memory of the host that the device reads by itself.
    fn allocate_host(&self, bytes: usize) -> Result<*mut u8, BackendError>;
    /// Waits for copies from it.
    /// # Safety
    /// As `allocate_host` gave it, and not used any more.
    unsafe fn release_host(&self, address: *mut u8, bytes: usize);
    /// As `upload`, but the bytes are read later.
    /// # Safety
    /// They are of `allocate_host` and stay as they are until somebody has waited; `to` has room for them.
    unsafe fn upload_later(&self, to: u64, from: &[u8]) -> Result<(), BackendError>;
    /// Waits for all work.
    fn wait(&self) -> Result<(), BackendError>;
    /// From here on launches and products are recorded and not run; nothing else may be asked for.
    fn record(&self) -> Result<(), BackendError>;
    /// The end of it.
    fn recorded(&self) -> Result<Box<dyn Recorded>, BackendError>;
    /// Memory that recordings may use was released.
    fn note_move(&self);
    /// How often that was so.
    fn moves(&self) -> u64;
}
