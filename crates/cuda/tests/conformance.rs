//! The suite on the GPU of this machine; where there is none, a line says so.

use octavo_backend::conformance::{Tolerance, run_all};
use octavo_cuda::{Cuda, Options};

#[test]
fn the_gpu_passes_the_suite() {
    match Cuda::open(0, Options { deterministic: true, ..Options::default() }) {
        Ok(cuda) => run_all(&cuda, Tolerance::BF16),
        Err(error) => println!("not run: {error}"),
    }
}
