//! The suite that every back end passes.

use anyhow::{Result, bail};
use octavo_backend::Backend;
use octavo_backend::conformance::{BITS, Tolerance, properties};
use octavo_cuda::{Cuda, Options};
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(super) fn open(number: usize, deterministic: bool) -> Result<Cuda> {
    let cache = super::kernel_cache();
    Ok(Cuda::open(number, Options { deterministic, cache, ..Options::default() })?)
}

pub(super) fn device_name(number: usize) -> Result<String> {
    Ok(open(number, false)?.name())
}

pub(super) fn run(number: usize, deterministic: bool) -> Result<()> {
    let cuda = open(number, deterministic)?;
    let mut failed = 0;
    for (name, property) in properties::<Cuda>() {
        if !deterministic && BITS.contains(&name) {
            continue;
        }
        let result = catch_unwind(AssertUnwindSafe(|| property(&cuda, Tolerance::BF16)));
        println!("{name}: {}", if result.is_ok() { "ok" } else { "FAILED" });
        failed += usize::from(result.is_err());
    }
    if failed > 0 {
        bail!("{failed} properties do not hold");
    }
    Ok(())
}
