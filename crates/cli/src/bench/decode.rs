//! `octavo bench decode`: one token a step for one sequence or several.

use super::machine::{Machine, MachineArgs, percent};
use super::measure::{in_turn, progress};
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
/// Steps of a model of Qwen3-0.6B's geometry with random weights, from tokens to logits: 1 and 16 sequences with
/// weights in bf16 and in int8, and one 4096 tokens deep; keys and values in f16. They and reading memory run in
/// turn. Takes 4 GiB of memory. JSON keys: fraction_of_read_bandwidth (1 sequence, bf16), batch_16_over_1 (time,
/// bf16), int8_over_bf16 (tokens a second, 1 sequence), tokens_per_s, tokens_per_s_batch_16, tokens_per_s_deep,
/// tokens_per_s_int8 and tokens_per_s_int8_batch_16, read_bandwidth_gb_s, cells.
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
    /// Weights, keys and values that a step must read at least once.
    bytes: f64,
    gb_s: f64,
    fraction_of_read_bandwidth: f64,
}

#[derive(Debug, Serialize)]
struct Figures {
    fraction_of_read_bandwidth: f64,
    batch_16_over_1: f64,
    int8_over_bf16: f64,
    tokens_per_s: f64,
    tokens_per_s_batch_16: f64,
    tokens_per_s_deep: f64,
    tokens_per_s_int8: f64,
    tokens_per_s_int8_batch_16: f64,
    read_bandwidth_gb_s: f64,
    cells: [Cell; KINDS.len()],
}

pub(super) fn run(args: &Args) -> Result<Report> {
    let machine = Machine::new(&args.machine);
    let geometry = Geometry::new(args.machine.quick);
    let plan = Plan::new(args.machine.quick);
    let mut work = Work::new(&machine, &geometry, plan)?;
    let bar = progress(u64::from(machine.rounds) + 1);
    bar.set_message("decoding");
    let turns = [None, Some(0), Some(1), Some(2), Some(3), Some(4)];
    let [bandwidth, seconds @ ..] = in_turn(machine.rounds, turns, |turn: Option<usize>| match turn {
        None => {
            bar.inc(1);
            Ok::<_, anyhow::Error>(machine.read_bandwidth())
        }
        Some(kind) => work.sample(&machine, KINDS[kind]),
    })?;
    bar.finish_and_clear();
    let cells = std::array::from_fn(|i| work.cell(&geometry, KINDS[i], seconds[i], bandwidth));
    let figures = Figures::new(cells, bandwidth);
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
        let model = match kind.weights {
            WeightFormat::AsStored => &mut self.bf16,
            WeightFormat::Int8 => &mut self.int8,
        };
        self.cache.run(machine, model, &kind.step(self.plan), &mut self.logits)
    }

    fn cell(&self, geometry: &Geometry, kind: Kind, seconds: f64, bandwidth: f64) -> Cell {
        let layout = self.cache.arena.layout();
        let (depth, batch) = (kind.depth(self.plan), kind.batch);
        let a_token = layout.page_bytes() / layout.page_size;
        let bytes = geometry.bytes_read(self.bf16.config(), kind.weights) + (a_token * depth * batch) as f64;
        let gb_s = bytes / seconds / 1e9;
        Cell {
            weights: if kind.weights == WeightFormat::Int8 { "int8" } else { "bf16" },
            batch,
            depth,
            ms: seconds * 1e3,
            tokens_per_s: batch as f64 / seconds,
            bytes,
            gb_s,
            fraction_of_read_bandwidth: gb_s / bandwidth,
        }
    }
}

impl Figures {
    fn new(cells: [Cell; KINDS.len()], read_bandwidth_gb_s: f64) -> Self {
        let [one, batch, deep, int8, int8_batch] = &cells;
        Self {
            fraction_of_read_bandwidth: one.fraction_of_read_bandwidth,
            batch_16_over_1: batch.ms / one.ms,
            int8_over_bf16: int8.tokens_per_s / one.tokens_per_s,
            tokens_per_s: one.tokens_per_s,
            tokens_per_s_batch_16: batch.tokens_per_s,
            tokens_per_s_deep: deep.tokens_per_s,
            tokens_per_s_int8: int8.tokens_per_s,
            tokens_per_s_int8_batch_16: int8_batch.tokens_per_s,
            read_bandwidth_gb_s,
            cells,
        }
    }

    fn tables(&self) -> Vec<Table> {
        let title = format!("One token a sequence; memory reads {:.1} GB/s", self.read_bandwidth_gb_s);
        let headings = ["weights", "sequences", "depth", "ms", "tokens/s", "GB/s", "of bandwidth"];
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
            ]);
        }
        vec![table]
    }

    fn goals(&self) -> Vec<Goal> {
        let read = self.fraction_of_read_bandwidth;
        vec![
            Goal::at_least(0.8, read, "one sequence reads at 0.80 or more of the read bandwidth (bf16)"),
            Goal::at_most(2.5, self.batch_16_over_1, "16 sequences take less than 2.5x the time of one"),
            Goal::at_least(
                1.5,
                self.int8_over_bf16,
                "int8 gives one sequence 1.5x the tokens a second of bf16",
            ),
        ]
    }
}
