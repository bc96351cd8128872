//! The suite that every back end passes.

use anyhow::{Context, Result, bail, ensure};
use octavo_backend::conformance::{BITS, Tolerance, properties};
use octavo_backend::{Backend, TensorRef, WeightDtype, WeightFormat};
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
    if deterministic { many_rows(&cuda) } else { Ok(()) }
}

/// A product as large as those of prompts of real models has the bits of one of few rows. The suite's are small, because every
/// back end computes them.
fn many_rows(cuda: &Cuda) -> Result<()> {
    let [rows, outputs, cols] = [2050, 2560, 9728];
    let matrix = |rows: usize, seed: usize| {
        // A bf16 is the upper half of an f32. Sums of these depend on their order.
        let value = |i: usize| ((i * 37 + i / 1013 + seed) % 2003) as f32 / 2003.0 - 0.5;
        let bytes: Vec<u8> =
            (0..rows * cols).flat_map(|i| ((value(i).to_bits() >> 16) as u16).to_le_bytes()).collect();
        let tensor =
            TensorRef::new(WeightDtype::Bf16, rows, cols, &bytes).context("a tensor of its bytes")?;
        anyhow::Ok(cuda.matrix(&[tensor], WeightFormat::AsStored)?)
    };
    let (table, w) = (matrix(rows, 3)?, matrix(outputs, 11)?);
    let product = |of: std::ops::Range<usize>| {
        let ids: Vec<u32> = of.map(|row| row as u32).collect();
        let (mut x, mut out) = (cuda.buf(ids.len(), cols)?, cuda.buf(ids.len(), outputs)?);
        cuda.embed(&table, &ids, 1.0, &mut x)?;
        cuda.linear(&w, &x, &mut out)?;
        let mut values = Vec::new();
        cuda.read(&out, &mut values)?;
        anyhow::Ok(values)
    };
    let all = product(0..rows)?;
    for some in [0..1, 1000..1064, 1080..1100, rows - 1..rows] {
        let same = product(some.clone())? == all[some.start * outputs..some.end * outputs];
        ensure!(same, "rows {some:?} of a product of {rows} differ from those alone");
    }
    println!("products of many rows: ok");
    Ok(())
}
