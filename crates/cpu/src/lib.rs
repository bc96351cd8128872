//! Octavo on the CPU.
//!
//! Kernels for AVX-512, AVX2 and any machine, chosen when the program runs. A safe function checks its operands and
//! hands raw pointers to a small unsafe one that computes.

mod aligned;
mod buf;
pub mod ceiling;
mod gemm;
mod int8;
mod lanes;
mod level;
mod matrix;
mod pool;
mod scratch;

pub use buf::Buf;
pub use gemm::gemm;
pub use level::Level;
pub use matrix::Matrix;
pub use pool::Pool;
