//! Octavo on the CPU.
//!
//! Kernels for AVX-512, AVX2 and any machine, chosen when the program runs. A safe function checks its operands and
//! hands raw pointers to a small unsafe one that computes.

mod act;
mod aligned;
mod arena;
mod attention;
mod backend;
mod buf;
pub mod ceiling;
mod choose;
mod codec;
mod embed;
mod exp;
mod gemm;
mod int8;
mod keys;
mod lanes;
mod level;
mod matrix;
mod norm;
mod pages;
mod pool;
mod rotate;
mod scratch;
mod simd;

pub use act::gated;
pub use arena::{Arena, RowAt};
pub use attention::attention;
pub use backend::Cpu;
pub use buf::Buf;
pub use choose::choose;
pub use embed::{embed, pick_rows};
pub use gemm::gemm;
pub use level::Level;
pub use matrix::Matrix;
pub use norm::{Norm, add_rms_norm, rms_norm};
pub use pages::{copy_pages, gather, scatter, zero_pages};
pub use pool::Pool;
pub use rotate::{angles, rotate_and_store};
