//! `octavo bench offline`: many requests at once, and how many tokens a second come out.

use super::measure::progress;
use super::report::{Goal, Report, Table};
use super::serving_load::{Ran, Rig, RigArgs, Tokenish, Variant, run as run_load};
use anyhow::{Result, bail};
use octavo_engine::{EngineConfig, Request, StepReport};
use octavo_types::Tokens;
use serde::Serialize;
use std::time::Duration;

/// How many tokens a second does the whole engine generate when nothing is waited for?
///
/// All requests are there at once; prompts and outputs have lengths drawn uniformly, the same in every run, and nothing
/// ends early. A model of Qwen3-0.6B's geometry with random weights, the likeliest token each time, memory for all of
/// them. On a GPU that is 256 requests of 100 to 1024 tokens and as many generated, what other engines publish
/// figures for. JSON keys: tokens_per_s, seconds, prompt_tokens, output_tokens, steps, and seconds of the steps' parts.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    rig: RigArgs,
    /// Requests
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    requests: u32,
    /// The shortest prompt, and output
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=4_000))]
    min_len: u32,
    /// The longest prompt, and output
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=4_000))]
    max_len: u32,
    /// Sequences that run at once
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    max_batch: u32,
    /// The most prompt tokens in one step
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u32).range(16..=100_000))]
    chunk: u32,
}

#[derive(Debug, Serialize)]
struct Figures {
    tokens_per_s: f64,
    seconds: f64,
    prompt_tokens: u64,
    output_tokens: u64,
    steps: usize,
    /// Steps that read prompts.
    seconds_reading: f64,
    seconds_planning: f64,
    seconds_running: f64,
    seconds_publishing: f64,
    seconds_choosing: f64,
}

pub(super) fn run(args: &Args) -> Result<Report> {
    if args.min_len > args.max_len {
        bail!("--min-len is above --max-len");
    }
    let (requests, lengths) =
        if args.rig.quick() { (6, (4, 12)) } else { (args.requests, (args.min_len, args.max_len)) };
    let rig = Rig::new(&args.rig)?;
    let mut random = Tokenish::new(rig.vocab());
    let load: Vec<_> = (0..requests)
        .map(|_| {
            let (prompt, output) =
                (random.between(lengths.0, lengths.1), random.between(lengths.0, lengths.1));
            (0, Request::new(random.prompt(prompt), output))
        })
        .collect();
    let total = |of: &dyn Fn(&Request) -> u64| load.iter().map(|(_, request)| of(request)).sum::<u64>();
    let prompt_tokens = total(&|request| request.prompt.len() as u64);
    let output_tokens = total(&|request| u64::from(request.max_tokens));
    let max_len = 2 * lengths.1 + 16;
    let tokens = u32::try_from(prompt_tokens + output_tokens)?.saturating_add(32 * requests);
    let engine = EngineConfig {
        prompt_share: 1.0,
        chunk: (Tokens(args.chunk), Tokens(args.chunk)),
        max_waiting: requests as usize,
        ..EngineConfig::new(args.max_batch, Tokens(max_len))
    };
    let mut engine = rig.engine(&Variant { contiguous: false, prefix_cache: false, tokens, engine })?;
    // Whatever is compiled, chosen or recorded when it is first met.
    let bar = progress(output_tokens);
    bar.set_message("warming up");
    run_load(&mut engine, load.clone(), &|| bar.tick())?;
    bar.set_message("tokens");
    let ran = run_load(&mut engine, load, &|| bar.tick())?;
    bar.finish_and_clear();
    let figures = Figures::new(&ran, prompt_tokens, output_tokens);
    let conditions = format!(
        "{}, {requests} requests of {} to {} tokens, batch {}",
        rig.conditions(),
        lengths.0,
        lengths.1,
        args.max_batch
    );
    let question = "how many tokens a second does the whole engine generate?";
    let goals = if args.rig.on_gpu() && args.rig.is_usual() { figures.goals() } else { Vec::new() };
    Report::new("offline", question, conditions, &figures, figures.tables(), goals)
}

impl Figures {
    fn new(ran: &Ran, prompt_tokens: u64, output_tokens: u64) -> Self {
        let sum = |part: fn(&StepReport) -> Duration| {
            ran.steps.iter().map(|(step, _)| part(step)).sum::<Duration>().as_secs_f64()
        };
        let reading = ran.steps.iter().filter(|(step, _)| step.prompt_tokens > Tokens::ZERO);
        Self {
            tokens_per_s: output_tokens as f64 / ran.seconds,
            seconds: ran.seconds,
            prompt_tokens,
            output_tokens,
            steps: ran.steps.len(),
            seconds_reading: reading.map(|(_, seconds)| seconds).sum(),
            seconds_planning: sum(|step| step.plan),
            seconds_running: sum(|step| step.run),
            seconds_publishing: sum(|step| step.publish),
            seconds_choosing: sum(|step| step.sample),
        }
    }

    fn tables(&self) -> Vec<Table> {
        let mut table = Table::new("All requests to their end", ["what", "figure"]);
        let seconds = |seconds: f64| format!("{seconds:.2} s");
        for (what, figure) in [
            ("output tokens a second", format!("{:.0}", self.tokens_per_s)),
            ("seconds", seconds(self.seconds)),
            ("prompt tokens", self.prompt_tokens.to_string()),
            ("output tokens", self.output_tokens.to_string()),
            ("steps", self.steps.to_string()),
            ("steps that read prompts", seconds(self.seconds_reading)),
            ("planning", seconds(self.seconds_planning)),
            ("running", seconds(self.seconds_running)),
            ("publishing", seconds(self.seconds_publishing)),
            ("taking tokens", seconds(self.seconds_choosing)),
        ] {
            table.row([what.to_owned(), figure]);
        }
        vec![table]
    }

    fn goals(&self) -> Vec<Goal> {
        vec![Goal::at_least(25_000.0, self.tokens_per_s, "more than 25 000 output tokens a second")]
    }
}
