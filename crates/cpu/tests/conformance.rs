//! The CPU passes the suite at every level, with one thread and with several.

use octavo_cpu::{Cpu, Level};
use std::num::NonZeroUsize;

/// The level, or the best this machine has if it does not have that.
fn cpu(level: Level, threads: usize) -> Cpu {
    Cpu::new(NonZeroUsize::new(threads).expect("at least one"), level.min(Level::detect()))
}

mod portable {
    octavo_backend::conformance!(super::cpu(super::Level::Portable, 2));
}

mod avx2 {
    octavo_backend::conformance!(super::cpu(super::Level::Avx2, 2));
}

mod avx512 {
    octavo_backend::conformance!(super::cpu(super::Level::Avx512, 2));
}

mod one_thread {
    octavo_backend::conformance!(super::cpu(super::Level::Avx512, 1));
}
