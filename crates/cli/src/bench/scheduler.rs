//! `octavo bench scheduler`: what the engine itself costs a step.

use super::measure::{Samples, progress};
use super::null_runner::NullRunner;
use super::report::{Goal, Report, Table};
use anyhow::Result;
use octavo_engine::{Engine, EngineConfig, Events, Request, StepReport};
use octavo_kv::Settings;
use octavo_types::{Pages, Timestamp, Tokens};
use serde::Serialize;
use std::time::Duration;

/// What does a step cost beside the model, with many sequences decoding?
///
/// The whole engine over a model that computes nothing, prefix cache on: every sequence decodes one token a step.
/// Planning, laying the batch out and publishing what was computed are the scheduler; choosing tokens from a
/// vocabulary of 151 936 and making text of them are reported beside it. JSON keys: us_per_step_256, cells (for each
/// number of sequences: plan_us, publish_us, scheduler_us, sample_us).
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Tokens each sequence has before it is measured
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(16..=8192))]
    context: u32,
    /// A few steps of few sequences, to see that everything works; the figures mean little
    #[arg(long)]
    quick: bool,
}

#[derive(Debug, Serialize)]
struct Cell {
    sequences: u32,
    /// Plan and commit.
    plan_us: f64,
    publish_us: f64,
    scheduler_us: f64,
    scheduler_p99_us: f64,
    /// Choosing tokens, text, events.
    sample_us: f64,
}

#[derive(Debug, Serialize)]
struct Figures {
    us_per_step_256: f64,
    context: u32,
    cells: Vec<Cell>,
}

const VOCAB: usize = 151_936;
/// Of the built-in tokenizer, so that there is text to make.
const WINNER: usize = 300;

pub(super) fn run(args: &Args) -> Result<Report> {
    let (sizes, steps): (&[u32], u32) = if args.quick { (&[4, 256], 20) } else { (&[1, 16, 64, 256], 400) };
    let bar = progress(sizes.len() as u64);
    let mut cells = Vec::new();
    for &sequences in sizes {
        cells.push(measure(sequences, args.context, steps)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let us_per_step_256 = cells.last().expect("there are sizes").scheduler_us;
    let figures = Figures { us_per_step_256, context: args.context, cells };
    let question = "what does a step cost beside the model, with many sequences decoding?";
    let conditions = format!("context {}, medians of {steps} steps, prefix cache on", args.context);
    let goal = "256 sequences: under 50 us a step for plan, commit and publish";
    let goals = vec![Goal::at_most(50.0, us_per_step_256, goal)];
    Report::new("scheduler", question, conditions, &figures, vec![figures.table()], goals)
}

impl Figures {
    fn table(&self) -> Table {
        let headings = ["sequences", "plan + commit us", "publish us", "scheduler us", "p99 us", "sample + text us"];
        let mut table = Table::new("Microseconds a step", headings);
        for cell in &self.cells {
            let figures = [cell.plan_us, cell.publish_us, cell.scheduler_us, cell.scheduler_p99_us, cell.sample_us];
            table.row([cell.sequences.to_string()].into_iter().chain(figures.map(|us| format!("{us:.1}"))));
        }
        table
    }
}

/// Steps in which every sequence decodes one token.
fn measure(sequences: u32, context: u32, steps: u32) -> Result<Cell> {
    let mut engine = engine(sequences, context, steps)?;
    let mut events = Events::new();
    let mut step = |engine: &mut Engine, at: u32| {
        events.clear();
        engine.step(Timestamp(u64::from(at) * 20_000), &mut events)
    };
    // Everything admitted and every prompt read.
    let read = |engine: &Engine| {
        engine.cache().sequences().count() == sequences as usize
            && engine.cache().sequences().all(|(_, sequence)| sequence.prompt().len().0 > context)
    };
    let mut at = 0;
    while !read(&engine) {
        step(&mut engine, at);
        at += 1;
    }
    let times: Vec<StepReport> = (0..steps).map(|n| step(&mut engine, at + n)).collect();
    Ok(Cell::new(sequences, &times))
}

fn engine(sequences: u32, context: u32, steps: u32) -> Result<Engine> {
    let len = context + 2 * steps + sequences + 64;
    let config = EngineConfig {
        chunk: (Tokens(1 << 20), Tokens(1 << 20)),
        ..EngineConfig::new(sequences, Tokens(len))
    };
    let settings = Settings::new(Pages(2 * sequences * len.div_ceil(16)));
    let tokenizer = octavo::Source::BuiltIn.tokenizer()?;
    let runner = Box::new(NullRunner::new(VOCAB, WINNER));
    let mut engine = Engine::new(config, settings, runner, Some(tokenizer))?;
    for n in 0..sequences {
        let prompt = (0..context).map(|token| (token * 31 + n) % 1000).collect();
        let accepted = engine.intake().accept(Request::new(prompt, len))?;
        engine.submit(accepted);
    }
    Ok(engine)
}

impl Cell {
    fn new(sequences: u32, times: &[StepReport]) -> Self {
        let median = |part: &dyn Fn(&StepReport) -> Duration| {
            let mut samples = Samples::default();
            times.iter().for_each(|times| samples.push(part(times).as_secs_f64() * 1e6));
            samples.median()
        };
        let mut all: Vec<Duration> = times.iter().map(|times| times.plan + times.publish).collect();
        all.sort_unstable();
        Self {
            sequences,
            plan_us: median(&|times| times.plan),
            publish_us: median(&|times| times.publish),
            scheduler_us: median(&|times| times.plan + times.publish),
            scheduler_p99_us: all[all.len() * 99 / 100].as_secs_f64() * 1e6,
            sample_us: median(&|times| times.sample),
        }
    }
}
