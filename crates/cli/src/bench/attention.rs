//! `octavo bench attention`: one decode step of attention alone.

use super::gpu::{self, DeviceArgs};
use super::machine::{Machine, MachineArgs, percent};
use super::measure::{SEED, progress, rounds_in_turn};
use super::report::{Goal, Report, Table};
use super::sequences::{Sequences, Step};
use anyhow::Result;
use octavo_backend::{AttentionSpec, Heads, Random, Rows};
use octavo_cpu::{Buf, attention};
use octavo_types::{KvDtype, KvSpec, PageSize};
use serde::Serialize;
use std::collections::BTreeMap;
use std::convert::Infallible;

/// Does attention read pages as fast as memory can be read, and as fast as it reads contiguous keys and values?
///
/// One token each of as many sequences as make 1 GiB of keys and values; context 4096, 4 query heads a KV head,
/// head dimension 128. Pages of 16 tokens in random order, one page a sequence, f16, reading memory, and
/// multiply-adds in f32 run in turn, for each precision; quotients of times are medians of the rounds' quotients. Takes
/// 4 GiB of memory. On a GPU: the rows on which other
/// engines were measured, with the read ceiling of the same run. JSON keys:
/// paged_over_contiguous (time, the worst), fraction_of_read_bandwidth (paged, by precision), tokens_over_f16
/// (by precision), read_bandwidth_gb_s, cells.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Quotients near 1 need many.
const ROUNDS: u32 = 100;
const HEADS: Heads = Heads { q: 32, kv: 8, dim: 128 };
const CODECS: [(&str, KvDtype); 4] =
    [("f16", KvDtype::F16), ("bf16", KvDtype::Bf16), ("int8", KvDtype::Int8), ("fp8", KvDtype::Fp8)];

/// How much is measured.
struct Plan {
    bytes: usize,
    context: u32,
}

impl Plan {
    fn new(quick: bool) -> Self {
        if quick { Self { bytes: 4 << 20, context: 256 } } else { Self { bytes: 1 << 30, context: 4096 } }
    }
}

/// Whose turn it is.
#[derive(Clone, Copy)]
enum Turn {
    Read,
    Fma,
    F16,
    Contiguous,
    Paged,
}

#[derive(Debug, Serialize)]
struct Cell {
    codec: &'static str,
    /// Of the pages, with what belongs to quantised ones.
    bytes: usize,
    sequences: usize,
    read_bandwidth_gb_s: f64,
    gb_s: f64,
    gb_s_contiguous: f64,
    fraction_of_read_bandwidth: f64,
    gflops: f64,
    fraction_of_fma_peak: f64,
    paged_over_contiguous: f64,
    tokens_per_s: f64,
    tokens_over_f16: f64,
}

#[derive(Debug, Serialize)]
struct Figures {
    paged_over_contiguous: f64,
    fraction_of_read_bandwidth: BTreeMap<&'static str, f64>,
    tokens_over_f16: BTreeMap<&'static str, f64>,
    read_bandwidth_gb_s: f64,
    context: u32,
    cells: Vec<Cell>,
}

pub(super) fn run(args: &Args) -> Result<Report> {
    if let Some(bench) = args.device.open(&args.machine)? {
        return gpu::attention::run(&bench);
    }
    let machine = Machine::new(&args.machine, ROUNDS);
    let plan = Plan::new(args.machine.quick());
    let bar = progress(CODECS.len() as u64);
    let mut f16 = Work::new(&plan, KvDtype::F16, PageSize::DEFAULT)?;
    let mut cells = Vec::new();
    for (name, dtype) in CODECS {
        bar.set_message(name);
        cells.push(measure(&machine, &plan, &mut f16, name, dtype)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let figures = Figures::new(&plan, cells);
    let conditions = format!(
        "{} MiB of keys and values, context {}, 4 query heads a KV head, {}",
        plan.bytes >> 20,
        plan.context,
        machine.conditions()
    );
    let question =
        "does attention read pages as fast as memory can be read, and as contiguous keys and values?";
    Report::new("attention", question, conditions, &figures, figures.tables(), figures.goals())
}

fn measure(
    machine: &Machine,
    plan: &Plan,
    f16: &mut Work,
    codec: &'static str,
    dtype: KvDtype,
) -> Result<Cell> {
    let whole = PageSize::new(plan.context).expect("a context is not empty");
    let mut slots = Work::new(plan, dtype, whole)?;
    let mut cache = Work::new(plan, dtype, PageSize::DEFAULT)?;
    let turns = [Turn::Read, Turn::Fma, Turn::F16, Turn::Contiguous, Turn::Paged];
    let measured = rounds_in_turn(machine.rounds, turns, |turn| {
        Ok::<_, Infallible>(match turn {
            Turn::Read => machine.read_bandwidth(),
            Turn::Fma => machine.fma_peak(),
            Turn::F16 => f16.seconds_a_token(machine),
            Turn::Contiguous => slots.seconds_a_token(machine),
            Turn::Paged => cache.seconds_a_token(machine),
        })
    });
    let [read, fma, f16, contiguous, paged] = measured.unwrap_or_else(|never| match never {});
    let (read_bandwidth_gb_s, peak, seconds) = (read.median(), fma.median(), paged.median());
    let (bytes, sequences) = (cache.cache.bytes(), cache.cache.tables.len());
    let gflops = (4 * HEADS.q * HEADS.dim) as f64 * f64::from(plan.context) / seconds / 1e9;
    let gb_s = |seconds: f64| bytes as f64 / sequences as f64 / seconds / 1e9;
    Ok(Cell {
        codec,
        bytes,
        sequences,
        read_bandwidth_gb_s,
        gb_s: gb_s(seconds),
        gb_s_contiguous: gb_s(contiguous.median()),
        fraction_of_read_bandwidth: gb_s(seconds) / read_bandwidth_gb_s,
        gflops,
        fraction_of_fma_peak: gflops / peak,
        paged_over_contiguous: paged.over(&contiguous),
        tokens_per_s: 1.0 / seconds,
        tokens_over_f16: f16.over(&paged),
    })
}

/// One step, to be repeated.
struct Work {
    cache: Sequences,
    step: Step,
    qkv: Buf,
    out: Buf,
}

impl Work {
    fn new(plan: &Plan, dtype: KvDtype, page_size: PageSize) -> Result<Self> {
        let spec = KvSpec::full_attention(1, HEADS.kv as u32, HEADS.dim as u32, dtype, page_size)?;
        let pages_each = page_size.tokens().0.max(plan.context) / page_size.tokens().0;
        let sequences = (plan.bytes as u64).div_ceil(u64::from(pages_each) * spec.page_bytes().0) as usize;
        let cache = Sequences::new(&spec, &vec![plan.context as usize; sequences])?;
        let step = Step { sequences: 0..sequences, start: plan.context as usize - 1, rows_each: 1 };
        let mut qkv = Buf::new(sequences, HEADS.qkv_cols());
        let values = Random::new(SEED).values(sequences * HEADS.qkv_cols(), 1.0);
        qkv.data_mut().copy_from_slice(&values);
        Ok(Self { cache, step, qkv, out: Buf::new(sequences, HEADS.q * HEADS.dim) })
    }

    fn seconds_a_token(&mut self, machine: &Machine) -> f64 {
        let (spans, tables) = (self.step.spans(), self.cache.tables(self.step.sequences.clone()));
        let tokens = vec![0; spans.len()];
        let rows = Rows::new(&tokens, &spans);
        let spec = AttentionSpec { heads: HEADS, scale: 0.088, window: None, layer: 0 };
        let (cpu, arena) = (&machine.cpu, &self.cache.arena);
        let step =
            || attention(cpu.level(), cpu.pool(), &self.qkv, &spec, rows, &tables, arena, &mut self.out);
        machine.seconds(step) / spans.len() as f64
    }
}

impl Figures {
    fn new(plan: &Plan, cells: Vec<Cell>) -> Self {
        let by_codec = |share: fn(&Cell) -> f64| cells.iter().map(|cell| (cell.codec, share(cell))).collect();
        let bandwidth: f64 = cells.iter().map(|cell| cell.read_bandwidth_gb_s).sum();
        Self {
            paged_over_contiguous: cells.iter().map(|cell| cell.paged_over_contiguous).fold(0.0, f64::max),
            fraction_of_read_bandwidth: by_codec(|cell| cell.fraction_of_read_bandwidth),
            tokens_over_f16: by_codec(|cell| cell.tokens_over_f16),
            read_bandwidth_gb_s: bandwidth / cells.len() as f64,
            context: plan.context,
            cells,
        }
    }

    fn tables(&self) -> Vec<Table> {
        let headings = [
            "precision",
            "GB/s",
            "read GB/s",
            "of bandwidth",
            "GFLOP/s",
            "of peak",
            "paged / contiguous",
            "tokens/s",
            "over f16",
        ];
        let mut table = Table::new("Attention of one layer over pages of 16 tokens", headings);
        for cell in &self.cells {
            table.row([
                cell.codec.to_owned(),
                format!("{:.1}", cell.gb_s),
                format!("{:.1}", cell.read_bandwidth_gb_s),
                percent(cell.fraction_of_read_bandwidth),
                format!("{:.0}", cell.gflops),
                percent(cell.fraction_of_fma_peak),
                format!("{:.3}", cell.paged_over_contiguous),
                format!("{:.0}", cell.tokens_per_s),
                format!("{:.2}x", cell.tokens_over_f16),
            ]);
        }
        vec![table]
    }

    fn goals(&self) -> Vec<Goal> {
        let worst = "pages take at most 1.05x the time of contiguous keys and values, in any precision";
        let mut goals = vec![
            Goal::at_most(1.05, self.paged_over_contiguous, worst),
            Goal::at_least(
                0.7,
                self.fraction_of_read_bandwidth["f16"],
                "f16 at 0.70 or more of the read bandwidth",
            ),
        ];
        for codec in ["int8", "fp8"] {
            let goal = format!("{codec} at 1.5x the tokens a second of f16 or more");
            goals.push(Goal::at_least(1.5, self.tokens_over_f16[codec], goal));
        }
        goals
    }
}
