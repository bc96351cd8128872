//! The native half of the Python package `octavo`.
//!
//! It binds and checks; what it binds to is in the other crates. Names and defaults that people meet are in
//! `python/octavo`, whose classes wrap these. Two rules hold everywhere: nothing waits for a lock while it holds the
//! GIL and could need it again, and no thread of the engine ever touches Python, so that the interpreter may end
//! whenever it likes.

mod allocator;
mod arena;
mod attention;
mod dlpack;
mod dtype;
mod engine;
mod errors;
mod ints;
mod manager;
mod options;
mod prefix;
mod run;
mod sampling;
mod stats;
mod table;
mod tensor;
mod waker;

use pyo3::prelude::*;

#[pymodule(gil_used = true)]
mod _octavo {
    use super::*;

    #[pymodule_export]
    use allocator::BlockAllocator;
    #[pymodule_export]
    use arena::Arena;
    #[pymodule_export]
    use attention::attention;
    #[pymodule_export]
    use dtype::dtype_name;
    #[pymodule_export]
    use engine::Engine;
    #[pymodule_export]
    use manager::Manager;
    #[pymodule_export]
    use prefix::Prefixes;
    #[pymodule_export]
    use run::Run;
    #[pymodule_export]
    use table::BlockTable;
    #[pymodule_export]
    use tensor::CacheTensor;
    #[pymodule_export]
    use waker::Waker;

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "as Python has it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
