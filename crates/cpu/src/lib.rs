//! Octavo on the CPU.
//!
//! Kernels for AVX-512, AVX2 and any machine, chosen when the program runs. A safe function checks its operands and
//! hands raw pointers to a small unsafe one that computes.

mod buf;
mod level;
mod pool;

pub use buf::Buf;
pub use level::Level;
pub use pool::Pool;
