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
/// Planning, laying the batch out and publishing what was computed are the scheduler. Choosing tokens from a
/// vocabulary of 151 936 and making text of them are reported beside it; so is the scheduler right after that, when
/// its own data has left the caches. JSON keys: us_per_step_256, us_per_step_256_cold, cells (for each number of
/// sequences: plan_us, publish_us, scheduler_us, scheduler_p99_us, scheduler_cold_us, sample_us).
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
    /// After a step that read hundreds of megabytes of logits.
    scheduler_cold_us: f64,
    /// Choosing tokens, text, events.
    sample_us: f64,
}

#[derive(Debug, Serialize)]
struct Figures {
    us_per_step_256: f64,
    us_per_step_256_cold: f64,
    context: u32,
    cells: Vec<Cell>,
}

const VOCAB: usize = 151_936;
/// Few enough that choosing leaves the caches alone.
const SMALL_VOCAB: usize = 1024;
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
    let last = cells.last().expect("there are sizes");
    let (us_per_step_256, us_per_step_256_cold) = (last.scheduler_us, last.scheduler_cold_us);
    let figures = Figures { us_per_step_256, us_per_step_256_cold, context: args.context, cells };
    let question = "what does a step cost beside the model, with many sequences decoding?";
    let conditions = format!("context {}, medians of {steps} steps, prefix cache on", args.context);
    let goal = "256 sequences: under 50 us a step for plan, commit and publish";
    let goals = vec![Goal::at_most(50.0, us_per_step_256, goal)];
    Report::new("scheduler", question, conditions, &figures, vec![figures.table()], goals)
}

impl Figures {
    fn table(&self) -> Table {
        let headings =
            ["sequences", "plan + commit", "publish", "scheduler", "p99", "scheduler, cold", "sample + text"];
        let mut table = Table::new("Microseconds a step", headings);
        for cell in &self.cells {
            let Cell { plan_us, publish_us, scheduler_us, scheduler_p99_us, .. } = *cell;
            let rest = [cell.scheduler_cold_us, cell.sample_us];
            let figures = [plan_us, publish_us, scheduler_us, scheduler_p99_us, rest[0], rest[1]];
            table.row([cell.sequences.to_string()].into_iter().chain(figures.map(|us| format!("{us:.1}"))));
        }
        table
    }
}

fn measure(sequences: u32, context: u32, steps: u32) -> Result<Cell> {
    let warm = decode(sequences, context, steps, SMALL_VOCAB)?;
    let cold = decode(sequences, context, steps, VOCAB)?;
    Ok(Cell::new(sequences, &warm, &cold))
}

/// Steps in which every sequence decodes one token.
fn decode(sequences: u32, context: u32, steps: u32, vocab: usize) -> Result<Vec<StepReport>> {
    let mut engine = engine(sequences, context, steps, vocab)?;
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
    Ok((0..steps).map(|n| step(&mut engine, at + n)).collect())
}

fn engine(sequences: u32, context: u32, steps: u32, vocab: usize) -> Result<Engine> {
    let len = context + 2 * steps + sequences + 64;
    let config = EngineConfig {
        chunk: (Tokens(1 << 20), Tokens(1 << 20)),
        ..EngineConfig::new(sequences, Tokens(len))
    };
    let settings = Settings::new(Pages(2 * sequences * len.div_ceil(16)));
    let tokenizer = octavo::Source::BuiltIn.tokenizer()?;
    let runner = Box::new(NullRunner::new(vocab, WINNER));
    let mut engine = Engine::new(config, settings, runner, Some(tokenizer))?;
    for n in 0..sequences {
        let prompt = (0..context).map(|token| (token * 31 + n) % 1000).collect();
        let accepted = engine.intake().accept(Request::new(prompt, len))?;
        engine.submit(accepted);
    }
    Ok(engine)
}

impl Cell {
    fn new(sequences: u32, warm: &[StepReport], cold: &[StepReport]) -> Self {
        let median = |steps: &[StepReport], part: &dyn Fn(&StepReport) -> Duration| {
            let mut samples = Samples::default();
            steps.iter().for_each(|step| samples.push(part(step).as_secs_f64() * 1e6));
            samples.median()
        };
        let scheduler = |step: &StepReport| step.plan + step.publish;
        let mut all: Vec<Duration> = warm.iter().map(scheduler).collect();
        all.sort_unstable();
        Self {
            sequences,
            plan_us: median(warm, &|step| step.plan),
            publish_us: median(warm, &|step| step.publish),
            scheduler_us: median(warm, &scheduler),
            scheduler_p99_us: all[all.len() * 99 / 100].as_secs_f64() * 1e6,
            scheduler_cold_us: median(cold, &scheduler),
            sample_us: median(cold, &|step| step.sample),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_has_medians_of_parts_and_the_99th_percentile_of_the_scheduler() {
        let step = |us: u64| StepReport {
            plan: Duration::from_micros(us),
            publish: Duration::from_micros(2 * us),
            sample: Duration::from_micros(5 * us),
            ..StepReport::default()
        };
        let warm: Vec<_> = (1..=201).map(step).collect();
        let cold: Vec<_> = (10..=30).map(step).collect();
        let cell = Cell::new(4, &warm, &cold);
        let figures = [cell.plan_us, cell.publish_us, cell.scheduler_us, cell.scheduler_p99_us];
        assert_eq!(figures.map(f64::round), [101.0, 202.0, 303.0, 597.0]);
        assert_eq!([cell.scheduler_cold_us, cell.sample_us].map(f64::round), [60.0, 100.0]);
    }
}
