//! `octavo bench gemm`: products of activations and weights.

use super::machine::{Machine, MachineArgs, ROUNDS, percent};
use super::measure::{SEED, in_turn, progress};
use super::random_model::{Geometry, matrix};
use super::report::{Goal, Report, Table};
use anyhow::Result;
use octavo_backend::{Random, WeightFormat};
use octavo_cpu::{Buf, Matrix, gemm};
use serde::Serialize;
use std::convert::Infallible;

/// How near do products come to what the machine can do?
///
/// The products of Qwen3-0.6B, of 1, 16, 64 and 512 rows, with weights in bf16 and in int8, beside the read
/// bandwidth, the peak of multiply-adds in f32 and that of dot products of bf16 (where the machine has none: the
/// former), all run in turn on the same threads. Products go through more weights than the caches hold. Those in
/// bf16 and in int8 can be faster than multiply-adds in f32. Takes up to 2 GiB of memory. JSON keys:
/// fraction_of_read_bandwidth (a layer, 1 row, bf16), fraction_of_fma_peak and fraction_of_bf16_peak (a layer, 512
/// rows, bf16), read_bandwidth_gb_s, fma_peak_gflops, bf16_peak_gflops, cells.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    machine: MachineArgs,
}

const ROWS: [usize; 4] = [1, 16, 64, 512];
const FORMATS: [(&str, WeightFormat); 2] = [("bf16", WeightFormat::AsStored), ("int8", WeightFormat::Int8)];
/// Bytes of weights that products cycle through: more than the last cache holds.
const CYCLED: usize = 256 << 20;
const CYCLED_QUICK: usize = 1 << 16;
const HEAD: &str = "head";

/// Whose turn it is.
#[derive(Clone, Copy)]
enum Turn {
    Read,
    Fma,
    Bf16,
    /// Index into [`ROWS`].
    Rows(usize),
}

#[derive(Debug, Serialize)]
struct Cell {
    product: &'static str,
    outputs: usize,
    inputs: usize,
    weights: &'static str,
    rows: usize,
    ms: f64,
    gflops: f64,
    fraction_of_fma_peak: f64,
    fraction_of_bf16_peak: f64,
    gb_s: f64,
    fraction_of_read_bandwidth: f64,
    #[serde(skip)]
    ceilings: [f64; 3],
}

#[derive(Debug, Serialize)]
struct Figures {
    fraction_of_read_bandwidth: f64,
    fraction_of_fma_peak: f64,
    fraction_of_bf16_peak: f64,
    read_bandwidth_gb_s: f64,
    fma_peak_gflops: f64,
    bf16_peak_gflops: f64,
    cells: Vec<Cell>,
}

pub(super) fn run(args: &Args) -> Result<Report> {
    let machine = Machine::new(&args.machine, ROUNDS);
    let geometry = Geometry::new(args.machine.quick());
    let products = geometry.products();
    let bar = progress((products.len() * FORMATS.len()) as u64);
    let mut cells = Vec::new();
    for (product, shape) in products {
        for format in FORMATS {
            bar.set_message(format!("{product}, {}", format.0));
            let cycled = if args.machine.quick() { CYCLED_QUICK } else { CYCLED };
            cells.extend(Products::new(&machine, shape, format.1, cycled).cells(&machine, product, format.0));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let figures = Figures::new(cells);
    let conditions = format!("{} geometry, {}", geometry.name, machine.conditions());
    let question = "how near do products come to what the machine can do?";
    Report::new("gemm", question, conditions, &figures, figures.tables(), figures.goals())
}

/// Equal products with different weights, one after another.
struct Products {
    weights: Vec<Matrix>,
    /// Activations and results for each of [`ROWS`].
    bufs: Vec<(Buf, Buf)>,
    next: usize,
}

impl Products {
    fn new(machine: &Machine, shape: [usize; 2], format: WeightFormat, cycled: usize) -> Self {
        let make = || matrix(machine.pool(), shape, format);
        let mut weights = vec![make()];
        weights.extend((1..cycled.div_ceil(weights[0].bytes())).map(|_| make()));
        let mut random = Random::new(SEED);
        let bufs = ROWS.map(|rows| {
            let mut x = Buf::new(rows, shape[1]);
            x.data_mut().copy_from_slice(&random.values(rows * shape[1], 1.0));
            (x, Buf::new(rows, shape[0]))
        });
        Self { weights, bufs: bufs.into(), next: 0 }
    }

    fn cells(&mut self, machine: &Machine, product: &'static str, weights: &'static str) -> Vec<Cell> {
        let rows = [Turn::Rows(0), Turn::Rows(1), Turn::Rows(2), Turn::Rows(3)];
        let turns = [Turn::Read, Turn::Fma, Turn::Bf16, rows[0], rows[1], rows[2], rows[3]];
        let measured = in_turn(machine.rounds, turns, |turn| Ok::<_, Infallible>(self.sample(machine, turn)));
        let [bandwidth, peak, bf16_peak, seconds @ ..] = measured.unwrap_or_else(|never| match never {});
        let [outputs, inputs] = [self.weights[0].rows(), self.weights[0].cols()];
        let cell = |(rows, seconds): (usize, f64)| {
            let gflops = 2.0 * (rows * outputs * inputs) as f64 / seconds / 1e9;
            let gb_s = self.weights[0].bytes() as f64 / seconds / 1e9;
            let (fraction_of_fma_peak, fraction_of_read_bandwidth) = (gflops / peak, gb_s / bandwidth);
            let fraction_of_bf16_peak = gflops / bf16_peak;
            let (ms, ceilings) = (seconds * 1e3, [bandwidth, peak, bf16_peak]);
            #[rustfmt::skip]
            let cell = Cell {
                product, outputs, inputs, weights, rows, ms, gflops, fraction_of_fma_peak,
                fraction_of_bf16_peak, gb_s, fraction_of_read_bandwidth, ceilings,
            };
            cell
        };
        ROWS.into_iter().zip(seconds).map(cell).collect()
    }

    /// GB/s, GFLOP/s, or seconds a product.
    fn sample(&mut self, machine: &Machine, turn: Turn) -> f64 {
        let Self { weights, bufs, next } = self;
        match turn {
            Turn::Read => machine.read_bandwidth(),
            Turn::Fma => machine.fma_peak(),
            Turn::Bf16 => machine.bf16_peak(),
            Turn::Rows(which) => {
                let (x, out) = &mut bufs[which];
                machine.seconds(|| {
                    *next = (*next + 1) % weights.len();
                    gemm(machine.cpu.level(), machine.pool(), &weights[*next], x, out);
                })
            }
        }
    }
}

impl Figures {
    fn new(cells: Vec<Cell>) -> Self {
        // Of a layer's products together: the mean, weighted by their time.
        let of_a_layer = |rows: usize, share: fn(&Cell) -> f64| {
            let layer = |cell: &&Cell| cell.rows == rows && cell.weights == "bf16" && cell.product != HEAD;
            let (sum, time) = cells
                .iter()
                .filter(layer)
                .fold((0.0, 0.0), |(sum, time), cell| (sum + share(cell) * cell.ms, time + cell.ms));
            sum / time
        };
        let ceiling =
            |which: usize| cells.iter().map(|cell| cell.ceilings[which]).sum::<f64>() / cells.len() as f64;
        Self {
            fraction_of_read_bandwidth: of_a_layer(ROWS[0], |cell| cell.fraction_of_read_bandwidth),
            fraction_of_fma_peak: of_a_layer(ROWS[3], |cell| cell.fraction_of_fma_peak),
            fraction_of_bf16_peak: of_a_layer(ROWS[3], |cell| cell.fraction_of_bf16_peak),
            read_bandwidth_gb_s: ceiling(0),
            fma_peak_gflops: ceiling(1),
            bf16_peak_gflops: ceiling(2),
            cells,
        }
    }

    fn tables(&self) -> Vec<Table> {
        let title = format!(
            "Products; at most {:.1} GB/s, {:.0} GFLOP/s in f32 and {:.0} in bf16",
            self.read_bandwidth_gb_s, self.fma_peak_gflops, self.bf16_peak_gflops
        );
        #[rustfmt::skip]
        let headings = [
            "product", "out x in", "weights", "rows", "ms", "GFLOP/s", "of f32 peak", "of bf16 peak", "GB/s",
            "of bandwidth",
        ];
        let mut table = Table::new(title, headings);
        for cell in &self.cells {
            table.row([
                cell.product.to_owned(),
                format!("{} x {}", cell.outputs, cell.inputs),
                cell.weights.to_owned(),
                cell.rows.to_string(),
                format!("{:.3}", cell.ms),
                format!("{:.1}", cell.gflops),
                percent(cell.fraction_of_fma_peak),
                percent(cell.fraction_of_bf16_peak),
                format!("{:.1}", cell.gb_s),
                percent(cell.fraction_of_read_bandwidth),
            ]);
        }
        vec![table]
    }

    fn goals(&self) -> Vec<Goal> {
        let Self { fraction_of_read_bandwidth: read, fraction_of_fma_peak: peak, .. } = *self;
        vec![
            Goal::at_least(0.8, read, "1 row at 0.80 or more of the read bandwidth (a layer, bf16)"),
            Goal::at_least(0.7, peak, "512 rows at 0.70 or more of the multiply-add peak (a layer, bf16)"),
        ]
    }
}
