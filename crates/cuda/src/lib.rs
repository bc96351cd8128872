//! Octavo on NVIDIA GPUs.
//!
//! Nothing of CUDA is needed to build this crate or to run a program that has it: the driver, the compiler (NVRTC)
//! and the matrix library (cuBLASLt) are loaded when a device is opened, and [`Cuda::open`] says what is missing.
//! Kernels are the CUDA C++ texts in `cu/`, compiled for the device that is there and kept on disk.
//!
//! *Precision.* Where sums are kept, numbers are f32: the residual stream, the results of products, angles. What
//! the tensor cores read has sixteen bits: the results of norms, gates and attention, in the type of the weights
//! (bf16 or f16; f32 weights become bf16). Products and attention sum in f32.
//! Of many rows, results of products that only a gate or the residual stream reads have sixteen bits, too, unless
//! bits may not depend on the batch.
//!
//! *Bits.* With [`Options::deterministic`] a row's results do not depend on its neighbours: one algorithm for each
//! matrix and no sum in parts whose number depends on the batch. Without, sizes of parts and algorithms follow the
//! batch, which is faster.
//!
//! *Tests.* All of it but the driver's calls runs without a GPU: the same kernel texts compile with g++ against
//! `cu/emulation.h`, and the tests run the conformance suite on a device made of that.

mod arena;
mod attention;
mod backend;
mod batch;
mod blocks;
mod choose;
mod dense;
mod device;
#[cfg(test)]
mod emulated;
mod gpu;
mod kernels;
mod load;
mod memory;
mod pages;
mod plan;
mod precision;
mod several;
mod stage;
mod steps;
mod stream;
mod values;

pub use arena::CudaArena;
pub use backend::{Cuda, Only, Options};
pub use blocks::{BlocksError, CudaBlocks, Element};
pub use gpu::OpenError;
pub use gpu::bench;
pub use values::{CudaBuf, CudaMatrix, CudaVector};

/// Conversions of E4M3 came with this compute capability.
pub const FIRST_WITH_FP8: (i32, i32) = (8, 9);
/// The most query heads that may share a key-value head.
pub const MAX_GROUP: usize = 16;
