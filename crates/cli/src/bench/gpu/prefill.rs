//! `octavo bench prefill --device cuda`: a long prompt against the peak of the matrix library.

use super::LLAMA_3B;
use super::world::{self, Sequences};
use crate::bench::machine::percent;
use crate::report::{Goal, Report, Table};
use anyhow::Result;
use octavo_backend::Backend;
use octavo_cuda::bench::Bench;
use octavo_model::ModelConfig;
use octavo_types::KvDtype;
use serde::Serialize;

const PROMPT: u32 = 8192;
const CHUNKS: [u32; 2] = [8192, 2048];

#[derive(Debug, Serialize)]
struct Cell {
    chunk: u32,
    ms: f64,
    tokens_per_s: f64,
    tflops: f64,
    fraction_of_peak: f64,
}

#[derive(Debug, Serialize)]
struct Figures {
    device: String,
    fraction_of_peak: f64,
    peak_tflops: f64,
    tokens: u32,
    cells: Vec<Cell>,
}

pub(in crate::bench) fn run(bench: &Bench) -> Result<Report> {
    let size = 8192;
    let peak = 2.0 * (size as f64).powi(3) / bench.product(size, size, size)? / 1e6;
    let config = LLAMA_3B.config()?;
    let spec = world::spec(&config, KvDtype::Bf16)?;
    let mut model = world::load(bench, &config, &spec)?;
    let mut sequences = Sequences::new(bench, &spec, 1, PROMPT)?;
    let work = operations(&config, f64::from(PROMPT));
    let mut cells = Vec::new();
    for chunk in CHUNKS {
        let us = bench.median(&mut || sequences.prefill(bench, &mut model, PROMPT, chunk))?;
        let tflops = work / us / 1e6;
        cells.push(Cell {
            chunk,
            ms: us / 1e3,
            tokens_per_s: f64::from(PROMPT) / us * 1e6,
            tflops,
            fraction_of_peak: tflops / peak,
        });
    }
    let figures = Figures {
        device: bench.cuda().name(),
        fraction_of_peak: cells[0].fraction_of_peak,
        peak_tflops: peak,
        tokens: PROMPT,
        cells,
    };
    let conditions = format!("{} geometry, random weights, {}", LLAMA_3B.name, figures.device);
    let question = "how near does reading a prompt come to the peak of the matrix library?";
    Report::new("prefill", question, conditions, &figures, figures.tables(), figures.goals())
}

/// Floating-point operations that reading `n` tokens cannot do without: of the last layer, only what the last token's
/// logits need; of attention, only what each token may see.
fn operations(config: &ModelConfig, n: f64) -> f64 {
    let heads = config.heads();
    let (hidden, mlp, q) =
        (config.hidden() as f64, config.intermediate() as f64, (heads.q * heads.dim) as f64);
    let layers = config.layers().len() as f64;
    let qkv = 2.0 * hidden * heads.qkv_cols() as f64;
    let rest = 2.0 * hidden * (q + 3.0 * mlp);
    let attention = 4.0 * q * n * (n + 1.0) / 2.0;
    layers * (n * qkv + attention) + (layers - 1.0) * n * rest + rest + 2.0 * hidden * config.vocab() as f64
}

impl Figures {
    fn tables(&self) -> Vec<Table> {
        let title =
            format!("A prompt of {} tokens; products at {:.0} TFLOP/s", self.tokens, self.peak_tflops);
        let mut table = Table::new(title, ["tokens a step", "ms", "tokens/s", "TFLOP/s", "of peak"]);
        for cell in &self.cells {
            table.row([
                cell.chunk.to_string(),
                format!("{:.1}", cell.ms),
                format!("{:.0}", cell.tokens_per_s),
                format!("{:.0}", cell.tflops),
                percent(cell.fraction_of_peak),
            ]);
        }
        vec![table]
    }

    fn goals(&self) -> Vec<Goal> {
        vec![Goal::at_least(0.6, self.fraction_of_peak, "0.60 or more of the library's peak")]
    }
}
