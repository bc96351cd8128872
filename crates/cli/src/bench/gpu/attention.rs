//! `octavo bench attention --device cuda`: the rows that other engines were measured on.

use super::{GEMMA_1B, Geometry, LLAMA_3B, QWEN_4B, QWEN_06B};
use crate::bench::machine::percent;
use crate::bench::measure::progress;
use crate::report::{Goal, Report, Table};
use anyhow::Result;
use octavo_backend::Backend;
use octavo_cuda::bench::{AttentionCase, Bench, Measured, Tuning};
use octavo_types::KvDtype;
use serde::Serialize;

/// Geometry, batch, context, and the best paged time measured on an H200, in microseconds.
type Row = (Geometry, usize, usize, f64);

const ROWS: [Row; 21] = [
    (LLAMA_3B, 1, 4096, 15.3),
    (LLAMA_3B, 24, 512, 21.4),
    (LLAMA_3B, 64, 4096, 252.0),
    (LLAMA_3B, 256, 1024, 264.0),
    (LLAMA_3B, 8, 32768, 253.0),
    (LLAMA_3B, 1, 200_000, 200.0),
    (QWEN_4B, 24, 512, 21.4),
    (QWEN_4B, 64, 4096, 251.0),
    (QWEN_4B, 8, 32768, 256.0),
    (QWEN_4B, 1, 200_000, 199.0),
    (GEMMA_1B, 24, 512, 14.0),
    (GEMMA_1B, 64, 4096, 75.4),
    (GEMMA_1B, 256, 1024, 73.1),
    (GEMMA_1B, 8, 32768, 76.8),
    (GEMMA_1B, 1, 200_000, 69.1),
    (QWEN_06B, 1, 4096, 13.8),
    (QWEN_06B, 24, 512, 21.2),
    (QWEN_06B, 64, 4096, 252.0),
    (QWEN_06B, 256, 1024, 261.0),
    (QWEN_06B, 8, 32768, 255.0),
    (QWEN_06B, 1, 200_000, 200.0),
];
/// What the quantised caches are compared at.
const CODECS: [KvDtype; 4] = [KvDtype::Bf16, KvDtype::F16, KvDtype::Fp8, KvDtype::Int8];
const GIGABYTE: usize = 1_000_000_000;

#[derive(Debug, Serialize)]
struct Cell {
    geometry: &'static str,
    dtype: &'static str,
    batch: usize,
    context: usize,
    us: f64,
    gb_s: f64,
    floor_us: f64,
    fraction_of_read_bandwidth: f64,
    /// The best paged time known; none where nobody published one.
    best_known_us: Option<f64>,
    /// The largest difference from plain arithmetic among some results.
    error: Option<f64>,
    bytes: usize,
}

#[derive(Debug, Serialize)]
struct Figures {
    device: String,
    read_bandwidth_gb_s: f64,
    rows_at_or_under_best: usize,
    rows: usize,
    worst_fraction_of_a_gigabyte: f64,
    fp8_over_bf16: f64,
    int8_over_bf16: f64,
    cells: Vec<Cell>,
}

pub(in crate::bench) fn run(bench: &Bench) -> Result<Report> {
    let read = bench.read_ceiling(1 << 30)?;
    let bar = progress((ROWS.len() + CODECS.len()) as u64);
    let mut cells = Vec::new();
    for (geometry, batch, context, best) in ROWS {
        bar.set_message(geometry.name);
        cells.push(measure(bench, read, geometry, KvDtype::Bf16, (batch, context), Some(best))?);
        bar.inc(1);
    }
    for dtype in CODECS {
        bar.set_message(dtype.name());
        cells.push(measure(bench, read, LLAMA_3B, dtype, (64, 4096), None)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let figures = Figures::new(bench.cuda().name(), read, cells);
    let conditions = format!(
        "{}{}, one layer, pages of 16 tokens in random order, rotated beyond the cache, medians of 30 replays",
        figures.device,
        if bench.deterministic() { ", deterministic" } else { "" }
    );
    let question = "does decode attention read pages as fast as the device reads memory?";
    Report::new("attention", question, conditions, &figures, figures.tables(), figures.goals())
}

fn measure(
    bench: &Bench,
    read: f64,
    geometry: Geometry,
    dtype: KvDtype,
    (batch, context): (usize, usize),
    best_known_us: Option<f64>,
) -> Result<Cell> {
    let heads = geometry.config()?.heads();
    let case = AttentionCase { heads, dtype, page_size: 16, batch, context, rows: 1, resident: false };
    let Measured { micros: us, bytes, error } = bench.attention(&case, &[Tuning::default()])?.remove(0)?;
    let floor_us = bytes as f64 / read * 1e6;
    Ok(Cell {
        geometry: geometry.name,
        dtype: dtype.name(),
        batch,
        context,
        us,
        gb_s: bytes as f64 / us / 1e3,
        floor_us,
        fraction_of_read_bandwidth: floor_us / us,
        best_known_us,
        error,
        bytes,
    })
}

impl Figures {
    fn new(device: String, read: f64, cells: Vec<Cell>) -> Self {
        let compared = || cells.iter().filter_map(|cell| Some((cell, cell.best_known_us?)));
        let large = cells.iter().filter(|cell| cell.bytes >= GIGABYTE);
        let of = |dtype: &str| {
            cells
                .iter()
                .rfind(|cell| cell.dtype == dtype && cell.best_known_us.is_none())
                .map_or(0.0, |c| c.us)
        };
        Self {
            device,
            read_bandwidth_gb_s: read / 1e9,
            rows_at_or_under_best: compared().filter(|(cell, best)| cell.us <= *best).count(),
            rows: compared().count(),
            worst_fraction_of_a_gigabyte: large.map(|c| c.fraction_of_read_bandwidth).fold(1.0, f64::min),
            fp8_over_bf16: of("bf16") / of("fp8"),
            int8_over_bf16: of("bf16") / of("int8"),
            cells,
        }
    }

    fn tables(&self) -> Vec<Table> {
        let title = format!("Decode attention of one layer; reading {:.0} GB/s", self.read_bandwidth_gb_s);
        let headings = [
            "geometry",
            "precision",
            "batch x context",
            "us",
            "GB/s",
            "of ceiling",
            "floor us",
            "best known us",
        ];
        let mut table = Table::new(title, headings);
        for cell in &self.cells {
            table.row([
                cell.geometry.to_owned(),
                cell.dtype.to_owned(),
                format!("{} x {}", cell.batch, cell.context),
                format!("{:.1}", cell.us),
                format!("{:.0}", cell.gb_s),
                percent(cell.fraction_of_read_bandwidth),
                format!("{:.1}", cell.floor_us),
                cell.best_known_us.map_or("-".into(), |best| format!("{best:.1}")),
            ]);
        }
        vec![table]
    }

    fn goals(&self) -> Vec<Goal> {
        let (under, rows) = (self.rows_at_or_under_best as f64, self.rows as f64);
        vec![
            Goal::at_least(rows, under, format!("all {rows} rows at or under the best paged time known")),
            Goal::at_least(
                0.94,
                self.worst_fraction_of_a_gigabyte,
                "0.94 of the read ceiling or more where a gigabyte is read",
            ),
            Goal::at_least(1.7, self.fp8_over_bf16, "fp8 at 1.7x the tokens of bf16 or more"),
            Goal::at_least(1.7, self.int8_over_bf16, "int8 at 1.7x the tokens of bf16 or more"),
        ]
    }
}
