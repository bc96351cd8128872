//! `octavo bench decode`: one token a step for one sequence or several.

use super::machine::{Machine, MachineArgs, ROUNDS, percent};
use super::measure::in_turn;
use super::random_model::{Geometry, load};
use super::report::{Goal, Report, Table};
use super::sequences::{Sequences, Step};
use anyhow::Result;
use octavo_backend::WeightFormat;
use octavo_cpu::Cpu;
use octavo_model::Model;
use octavo_types::{KvDtype, PageSize};
use serde::Serialize;

/// Does decoding read the weights as fast as memory can be read, and share that reading among sequences?
///
/// Steps of a model of Qwen3-0.6B's geometry with random weights, from tokens to logits: 1 and 16 sequences
/// with weights in bf16 and in int8, and one 4096 tokens deep; keys and values in f16. They run in turn with
/// reading memory, with multiply-adds in f32 and with dot products of bf16 (where the machine has none: the
/// former). Takes 4 GiB of memory. JSON keys: fraction_of_read_bandwidth
/// (1 sequence, bf16), batch_16_over_1 and batch_16_over_1_at_ceilings (time, bf16), int8_over_bf16 (tokens a
/// second, 1 sequence), tokens_per_s, tokens_per_s_batch_16, tokens_per_s_deep, tokens_per_s_int8 and
/// tokens_per_s_int8_batch_16, read_bandwidth_gb_s, fma_peak_gflops, bf16_peak_gflops,
/// cells.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    machine: MachineArgs,
}

const BATCH: usize = 16;

/// How deep sequences are.
#[derive(Clone, Copy)]
struct Plan {
    depth: usize,
    deep: usize,
}

impl Plan {
    fn new(quick: bool) -> Self {
        if quick { Self { depth: 8, deep: 64 } } else { Self { depth: 64, deep: 4096 } }
    }

    /// Sequences 0 to 15 are shallow, the last one is deep.
    fn lengths(self) -> Vec<usize> {
        let mut lengths = vec![self.depth + 1; BATCH];
        lengths.push(self.deep + 1);
        lengths
    }
}

/// One kind of step.
#[derive(Debug, Clone, Copy)]
struct Kind {
    weights: WeightFormat,
    batch: usize,
    deep: bool,
}

const KINDS: [Kind; 5] = [
    Kind { weights: WeightFormat::AsStored, batch: 1, deep: false },
    Kind { weights: WeightFormat::AsStored, batch: BATCH, deep: false },
    Kind { weights: WeightFormat::AsStored, batch: 1, deep: true },
    Kind { weights: WeightFormat::Int8, batch: 1, deep: false },
    Kind { weights: WeightFormat::Int8, batch: BATCH, deep: false },
];

impl Kind {
    fn step(self, plan: Plan) -> Step {
        let sequences = if self.deep { BATCH..BATCH + 1 } else { 0..self.batch };
        Step { sequences, start: self.depth(plan), rows_each: 1 }
    }

    fn depth(self, plan: Plan) -> usize {
        if self.deep { plan.deep } else { plan.depth }
    }
}

#[derive(Debug, Serialize)]
struct Cell {
    weights: &'static str,
    batch: usize,
    depth: usize,
    ms: f64,
    tokens_per_s: f64,
    /// Of weights, keys and values that a step must read at least once.
    bytes: f64,
    gb_s: f64,
    fraction_of_read_bandwidth: f64,
    gflops: f64,
    fraction_of_fma_peak: f64,
    fraction_of_bf16_peak: f64,
}

impl Cell {
    /// What either ceiling allows.
    fn least_ms(&self) -> f64 {
        self.ms * self.fraction_of_read_bandwidth.max(self.fraction_of_bf16_peak)
    }
}

/// What the machine can do, in GB/s and GFLOP/s.
#[derive(Debug, Clone, Copy, Serialize)]
struct Ceilings {
    read_bandwidth_gb_s: f64,
    fma_peak_gflops: f64,
    bf16_peak_gflops: f64,
}

/// Whose turn it is.
#[derive(Clone, Copy)]
enum Turn {
    Read,
    Fma,
    Bf16,
    /// Index into [`KINDS`].
    Step(usize),
}

#[rustfmt::skip]
const TURNS: [Turn; 3 + KINDS.len()] = [
    Turn::Read, Turn::Fma, Turn::Bf16,
    Turn::Step(0), Turn::Step(1), Turn::Step(2), Turn::Step(3), Turn::Step(4),
];

#[derive(Debug, Serialize)]
struct Figures {
    fraction_of_read_bandwidth: f64,
    batch_16_over_1: f64,
    /// The same for steps that take no longer than the ceilings make them.
    batch_16_over_1_at_ceilings: f64,
    int8_over_bf16: f64,
    tokens_per_s: f64,
    tokens_per_s_batch_16: f64,
    tokens_per_s_deep: f64,
    tokens_per_s_int8: f64,
    tokens_per_s_int8_batch_16: f64,
    #[serde(flatten)]
    ceilings: Ceilings,
    cells: [Cell; KINDS.len()],
}

pub(super) fn run(args: &Args) -> Result<Report> {
    let machine = Machine::new(&args.machine, ROUNDS);
    let geometry = Geometry::new(args.machine.quick());
    let plan = Plan::new(args.machine.quick());
    let mut work = Work::new(&machine, &geometry, plan)?;
    let measured = in_turn(machine.rounds, TURNS, |turn| {
        Ok::<_, anyhow::Error>(match turn {
            Turn::Read => machine.read_bandwidth(),
            Turn::Fma => machine.fma_peak(),
            Turn::Bf16 => machine.bf16_peak(),
            Turn::Step(kind) => work.sample(&machine, KINDS[kind])?,
        })
    })?;
    let [read_bandwidth_gb_s, fma_peak_gflops, bf16_peak_gflops, seconds @ ..] = measured;
    let ceilings = Ceilings { read_bandwidth_gb_s, fma_peak_gflops, bf16_peak_gflops };
    let cells = std::array::from_fn(|i| work.cell(&geometry, KINDS[i], seconds[i], ceilings));
    let figures = Figures::new(cells, ceilings);
    let conditions = format!("{} geometry, random weights, {}", geometry.name, machine.conditions());
    let question =
        "does decoding read the weights as fast as memory can be read, and share that among sequences?";
    Report::new("decode", question, conditions, &figures, figures.tables(), figures.goals())
}

/// The model in both formats, and its sequences.
struct Work {
    plan: Plan,
    bf16: Model<Cpu>,
    int8: Model<Cpu>,
    cache: Sequences,
    logits: Vec<f32>,
}

impl Work {
    fn new(machine: &Machine, geometry: &Geometry, plan: Plan) -> Result<Self> {
        let config = geometry.config()?;
        let spec = config.kv_spec(KvDtype::F16, PageSize::DEFAULT, None)?;
        let weights = geometry.weights(machine.pool())?;
        let bf16 = load(machine, &config, &spec, &weights, WeightFormat::AsStored)?;
        let int8 = load(machine, &config, &spec, &weights, WeightFormat::Int8)?;
        let cache = Sequences::new(&spec, &plan.lengths())?;
        Ok(Self { plan, bf16, int8, cache, logits: Vec::new() })
    }

    /// Seconds of a step.
    fn sample(&mut self, machine: &Machine, kind: Kind) -> Result<f64> {
        let model = if kind.weights == WeightFormat::Int8 { &mut self.int8 } else { &mut self.bf16 };
        self.cache.run(machine, model, &kind.step(self.plan), &mut self.logits)
    }

    fn cell(&self, geometry: &Geometry, kind: Kind, seconds: f64, ceilings: Ceilings) -> Cell {
        let layout = self.cache.arena.layout();
        let (depth, batch) = (kind.depth(self.plan), kind.batch);
        let a_token = layout.page_bytes() / layout.page_size;
        let bytes = geometry.bytes_read(self.bf16.config(), kind.weights) + (a_token * depth * batch) as f64;
        let gb_s = bytes / seconds / 1e9;
        let gflops = 2.0 * self.bf16.config().parameters() as f64 * batch as f64 / seconds / 1e9;
        Cell {
            weights: if kind.weights == WeightFormat::Int8 { "int8" } else { "bf16" },
            batch,
            depth,
            ms: seconds * 1e3,
            tokens_per_s: batch as f64 / seconds,
            bytes,
            gb_s,
            fraction_of_read_bandwidth: gb_s / ceilings.read_bandwidth_gb_s,
            gflops,
            fraction_of_fma_peak: gflops / ceilings.fma_peak_gflops,
            fraction_of_bf16_peak: gflops / ceilings.bf16_peak_gflops,
        }
    }
}

impl Figures {
    fn new(cells: [Cell; KINDS.len()], ceilings: Ceilings) -> Self {
        let [one, batch, deep, int8, int8_batch] = &cells;
        Self {
            fraction_of_read_bandwidth: one.fraction_of_read_bandwidth,
            batch_16_over_1: batch.ms / one.ms,
            batch_16_over_1_at_ceilings: batch.least_ms() / one.least_ms(),
            int8_over_bf16: int8.tokens_per_s / one.tokens_per_s,
            tokens_per_s: one.tokens_per_s,
            tokens_per_s_batch_16: batch.tokens_per_s,
            tokens_per_s_deep: deep.tokens_per_s,
            tokens_per_s_int8: int8.tokens_per_s,
            tokens_per_s_int8_batch_16: int8_batch.tokens_per_s,
            ceilings,
            cells,
        }
    }

    fn tables(&self) -> Vec<Table> {
        let Ceilings { read_bandwidth_gb_s: read, fma_peak_gflops: fma, bf16_peak_gflops: bf16 } =
            self.ceilings;
        let title = format!(
            "One token a sequence; at most {read:.1} GB/s, {fma:.0} GFLOP/s in f32 and {bf16:.0} in bf16"
        );
        #[rustfmt::skip]
        let headings = [
            "weights", "sequences", "depth", "ms", "tokens/s", "GB/s", "of bandwidth", "GFLOP/s", "of f32 peak",
            "of bf16 peak",
        ];
        let mut table = Table::new(title, headings);
        for cell in &self.cells {
            table.row([
                cell.weights.to_owned(),
                cell.batch.to_string(),
                cell.depth.to_string(),
                format!("{:.1}", cell.ms),
                format!("{:.1}", cell.tokens_per_s),
                format!("{:.1}", cell.gb_s),
                percent(cell.fraction_of_read_bandwidth),
                format!("{:.1}", cell.gflops),
                percent(cell.fraction_of_fma_peak),
                percent(cell.fraction_of_bf16_peak),
            ]);
        }
        vec![table]
    }

    fn goals(&self) -> Vec<Goal> {
        let read = self.fraction_of_read_bandwidth;
        let batch = format!(
            "16 sequences take less than 2.5x the time of one (the ceilings allow {:.2}x)",
            self.batch_16_over_1_at_ceilings
        );
        vec![
            Goal::at_least(0.8, read, "one sequence reads at 0.80 or more of the read bandwidth (bf16)"),
            Goal::at_most(2.5, self.batch_16_over_1, batch),
            Goal::at_least(
                1.5,
                self.int8_over_bf16,
                "int8 gives one sequence 1.5x the tokens a second of bf16",
            ),
        ]
    }
}
