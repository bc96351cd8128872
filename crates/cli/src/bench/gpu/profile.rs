//! Where the time of a step goes: each kind of work replayed by itself.

use super::world::Sequences;
use crate::report::Table;
use anyhow::Result;
use octavo_backend::Heads;
use octavo_cuda::bench::Bench;
use octavo_cuda::{Cuda, Only};
use octavo_model::{Model, ModelConfig};
use serde::Serialize;

/// One kind of work in a step.
#[derive(Debug, Serialize)]
pub(super) struct Part {
    what: &'static str,
    /// All of it in one step.
    us: f64,
    kernels: usize,
    /// Of weights, keys and values.
    bytes: u64,
    /// A product by the library, and by the kernel for few rows.
    library_us: Option<f64>,
    few_rows_us: Option<f64>,
}

/// The products of a layer and of the head: name, outputs, columns.
fn products(config: &ModelConfig) -> [(&'static str, usize, usize); 5] {
    let Heads { q, dim, .. } = config.heads();
    let (hidden, mlp) = (config.hidden(), config.intermediate());
    [
        ("qkv", config.heads().qkv_cols(), hidden),
        ("o", hidden, q * dim),
        ("gate_up", 2 * mlp, hidden),
        ("down", hidden, mlp),
        ("head", config.vocab(), hidden),
    ]
}

pub(super) fn run(
    bench: &Bench,
    model: &mut Model<Cuda>,
    sequences: &mut Sequences,
    rows: usize,
) -> Result<Vec<Part>> {
    let config = model.config().clone();
    let kernels = ["embed", "angles", "norm", "rotate", "attention", "gated", "choose"];
    let kernels = kernels.map(|name| (name, Only::Kernel(name), None));
    let products = products(&config).map(|(name, n, k)| (name, Only::Product(n, k), Some((n, k))));
    let mut parts = Vec::new();
    for (what, only, shape) in kernels.into_iter().chain(products) {
        bench.restrict(Some(only));
        sequences.decode(bench, model)?;
        sequences.decode(bench, model)?;
        let us = bench.last_step()?;
        let kernels = bench.cuda().replays().1;
        let times = if what == "head" { 1 } else { config.layers().len() as u64 };
        let bytes = match (what, shape) {
            ("attention", _) => sequences.bytes,
            (_, Some((n, k))) => 2 * (n * k) as u64 * times,
            _ => 0,
        };
        let library_us = shape.map(|(n, k)| bench.product(rows, n, k)).transpose()?;
        let few_rows_us = shape.map(|(n, k)| bench.few_rows(rows, n, k)).transpose()?.flatten();
        parts.push(Part { what, us, kernels, bytes, library_us, few_rows_us });
    }
    bench.restrict(None);
    Ok(parts)
}

pub(super) fn table(title: String, parts: &[Part], read: f64) -> Table {
    let headings =
        ["work", "us a step", "kernels", "us each", "GB/s", "over floor", "library us", "few rows us"];
    let mut table = Table::new(title, headings);
    for part in parts {
        let floor = part.bytes as f64 / read * 1e6;
        let or_dash = |figure: Option<f64>| figure.map_or("-".into(), |us| format!("{us:.1}"));
        table.row([
            part.what.to_owned(),
            format!("{:.0}", part.us),
            part.kernels.to_string(),
            format!("{:.1}", part.us / part.kernels.max(1) as f64),
            format!("{:.0}", part.bytes as f64 / part.us / 1e3),
            if part.bytes > 0 { format!("{:.2}x", part.us / floor) } else { "-".into() },
            or_dash(part.library_us),
            or_dash(part.few_rows_us),
        ]);
    }
    table.note(format!("in all {:.0} us", parts.iter().map(|part| part.us).sum::<f64>()));
    table
}
