//! Octavo on the CPU.
//!
//! Kernels for AVX-512, AVX2 and any machine, chosen when the program runs. A safe function checks its operands and
//! hands raw pointers to a small unsafe one that computes.

mod arena;
mod attention;
mod buf;
mod codec;
mod level;
mod pages;
mod pool;
mod rotate;
mod simd;

pub use arena::Arena;
pub use attention::attention;
pub use buf::Buf;
pub use level::Level;
pub use pages::{copy_pages, gather, zero_pages};
pub use pool::Pool;
pub use rotate::{angles, rotate_and_store};
