//! `octavo bench serving`: many requests at once, through the whole engine.

use super::measure::{Samples, progress};
use super::report::{Goal, Report, Table};
use super::serving_load::{Ran, Rig, RigArgs, Tokenish, Variant, config, run as run_load};
use anyhow::Result;
use octavo_engine::{EngineConfig, Request};
use octavo_types::{Bytes, Tokens};
use serde::Serialize;
use std::time::Duration;

/// Do pages serve a burst faster than slots in the same memory, and does sharing help those who wait?
///
/// A model of Qwen3-0.6B's geometry with random weights. Three loads: a burst of requests (prompts of 128 to 384
/// tokens, 128 to 256 generated) in the memory of 8 slots of 4096 tokens, with 8 contiguous sequences and with 24 in
/// pages; 32 requests that share their first 1000 tokens, with the prefix cache and without; and a prompt of 8192
/// tokens that arrives while 8 requests decode. The cache's memory is taken from the system before the clock starts, as
/// by `serve --commit-kv`. On a CPU it takes about ten minutes and 12 GiB of memory. JSON keys:
/// paged_over_contiguous, paged_over_contiguous_decode, paged_over_contiguous_predicted, ttft_speedup_shared_prefix,
/// p99_itl_ms, and what they were computed from.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    rig: RigArgs,
    /// Requests in the burst
    #[arg(long, default_value_t = 48, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    requests: u32,
    /// The longest gap between tokens while the long prompt is read
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    max_itl_ms: u64,
}

/// How large the loads are.
struct Sizes {
    prompt: (u32, u32),
    generated: (u32, u32),
    slot: u32,
    shared: u32,
    sharers: u32,
    long: u32,
}

impl Sizes {
    fn new(quick: bool) -> Self {
        if quick {
            Self { prompt: (8, 24), generated: (8, 16), slot: 256, shared: 64, sharers: 8, long: 192 }
        } else {
            Self {
                prompt: (128, 384),
                generated: (128, 256),
                slot: 4096,
                shared: 1000,
                sharers: 32,
                long: 8192,
            }
        }
    }
}

const SLOTS: u32 = 8;
const PAGED_BATCH: u32 = 24;

/// One side of the burst.
#[derive(Debug, Serialize)]
struct Burst {
    batch: u32,
    /// Memory for keys and values.
    kv_bytes: u64,
    seconds: f64,
    tokens_per_s: f64,
    /// Steps that read no prompt.
    decode_tokens_per_s: f64,
    /// A step of a full batch that reads no prompt.
    decode_step_ms: f64,
    prefill_seconds: f64,
    mean_ttft_ms: f64,
    tokens: usize,
}

#[derive(Debug, Serialize)]
struct Figures {
    paged_over_contiguous: f64,
    paged_over_contiguous_decode: f64,
    paged_over_contiguous_predicted: f64,
    ttft_speedup_shared_prefix: f64,
    ttft_shared_prefix_ms: [f64; 2],
    p99_itl_ms: f64,
    max_itl_ms: u64,
    contiguous: Burst,
    paged: Burst,
}

pub(super) fn run(args: &Args) -> Result<Report> {
    let quick = args.rig.quick();
    let sizes = Sizes::new(quick);
    let requests = if quick { args.requests.min(12) } else { args.requests };
    let bar = progress(5);
    let rig = Rig::new(&args.rig)?;
    let [contiguous, paged] = [(true, SLOTS), (false, PAGED_BATCH)].map(|(contiguous, batch)| {
        bar.inc(1);
        burst(&rig, &sizes, requests, contiguous, batch)
    });
    let (contiguous, paged) = (contiguous?, paged?);
    let [cold, shared] = [false, true].map(|prefix_cache| {
        bar.inc(1);
        shared_prefix(&rig, &sizes, prefix_cache)
    });
    let (cold, shared) = (cold?, shared?);
    bar.inc(1);
    let p99_itl_ms = long_prompt(&rig, &sizes, Duration::from_millis(args.max_itl_ms))?;
    bar.finish_and_clear();
    let figures = Figures {
        paged_over_contiguous: contiguous.seconds / paged.seconds,
        paged_over_contiguous_decode: paged.decode_tokens_per_s / contiguous.decode_tokens_per_s,
        paged_over_contiguous_predicted: contiguous.predicted(requests) / paged.predicted(requests),
        ttft_speedup_shared_prefix: cold / shared,
        ttft_shared_prefix_ms: [cold * 1e3, shared * 1e3],
        p99_itl_ms,
        max_itl_ms: args.max_itl_ms,
        contiguous,
        paged,
    };
    let question = "do pages serve a burst faster than slots in the same memory, and does sharing help?";
    let conditions = format!("{}, {requests} requests", rig.conditions());
    let goals = if args.rig.is_usual() { figures.goals(args.rig.on_gpu()) } else { Vec::new() };
    Report::new("serving", question, conditions, &figures, figures.tables(), goals)
}

/// All requests at once.
fn burst(rig: &Rig, sizes: &Sizes, requests: u32, contiguous: bool, batch: u32) -> Result<Burst> {
    let engine = config(batch, sizes.slot);
    let variant = Variant { contiguous, prefix_cache: !contiguous, tokens: SLOTS * sizes.slot, engine };
    let mut engine = rig.engine(&variant)?;
    let mut random = Tokenish::new(rig.vocab());
    let load = (0..requests).map(|_| {
        let len = random.between(sizes.prompt.0, sizes.prompt.1);
        let generated = random.between(sizes.generated.0, sizes.generated.1);
        (0, Request::new(random.prompt(len), generated))
    });
    let ran = run_load(&mut engine, load.collect(), &|| {})?;
    Ok(Burst::new(batch, engine.cache().settings().bytes(), &ran))
}

/// Mean time to the first token of requests that begin alike, in seconds.
fn shared_prefix(rig: &Rig, sizes: &Sizes, prefix_cache: bool) -> Result<f64> {
    let engine = config(sizes.sharers, sizes.slot);
    let tokens = 2 * sizes.sharers * (sizes.shared + 64);
    let mut engine = rig.engine(&Variant { contiguous: false, prefix_cache, tokens, engine })?;
    let mut random = Tokenish::new(rig.vocab());
    let prefix = random.prompt(sizes.shared);
    let load = (0..sizes.sharers).map(|_| {
        let prompt = [prefix.clone(), random.prompt(16)].concat();
        (0, Request::new(prompt, 4))
    });
    let ran = run_load(&mut engine, load.collect(), &|| {})?;
    Ok(ran.lives.iter().map(|life| life.ttft()).sum::<f64>() / ran.lives.len() as f64)
}

/// The 99th percentile of gaps between tokens of running requests while a long prompt is read, in milliseconds.
fn long_prompt(rig: &Rig, sizes: &Sizes, max_itl: Duration) -> Result<f64> {
    let max_len = sizes.long + sizes.slot;
    let engine = EngineConfig { max_itl: Some(max_itl), ..config(SLOTS + 1, max_len) };
    let variant = Variant { contiguous: false, prefix_cache: true, tokens: 2 * max_len, engine };
    let mut engine = rig.engine(&variant)?;
    let mut random = Tokenish::new(rig.vocab());
    // They decode until the long prompt has been read, however small its pieces are.
    let generated = sizes.long.min(sizes.slot - 64) / 2;
    let mut load: Vec<_> = (0..SLOTS).map(|_| (0, Request::new(random.prompt(32), generated))).collect();
    load.push((u64::from(8 * SLOTS), Request::new(random.prompt(sizes.long), 1)));
    let ran = run_load(&mut engine, load, &|| {})?;
    let long = ran.lives.last().expect("it was sent");
    let (from, to) = (long.sent, long.tokens.first().copied().unwrap_or(ran.seconds));
    let mut gaps: Vec<f64> = Vec::new();
    for life in &ran.lives[..SLOTS as usize] {
        let pairs = life.tokens.windows(2).filter(|pair| pair[1] > from && pair[1] <= to);
        gaps.extend(pairs.map(|pair| pair[1] - pair[0]));
    }
    gaps.sort_by(f64::total_cmp);
    Ok(gaps.get(gaps.len() * 99 / 100).copied().unwrap_or(0.0) * 1e3)
}

impl Burst {
    fn new(batch: u32, kv_bytes: Bytes, ran: &Ran) -> Self {
        let tokens: usize = ran.lives.iter().map(|life| life.tokens.len()).sum();
        let decodes = || ran.steps.iter().filter(|(step, _)| step.prompt_tokens == Tokens::ZERO);
        let decoding: f64 = decodes().map(|(_, seconds)| seconds).sum();
        let decoded: usize = decodes().map(|(step, _)| step.sequences).sum();
        let mut full = Samples::default();
        decodes().filter(|(step, _)| step.sequences == batch as usize).for_each(|(_, s)| full.push(s * 1e3));
        let largest = decodes().map(|(step, seconds)| (step.sequences, seconds * 1e3));
        let decode_step_ms = if decodes().any(|(step, _)| step.sequences == batch as usize) {
            full.median()
        } else {
            largest.max_by_key(|(sequences, _)| *sequences).map_or(0.0, |(_, ms)| ms)
        };
        Self {
            batch,
            kv_bytes: kv_bytes.0,
            seconds: ran.seconds,
            tokens_per_s: tokens as f64 / ran.seconds,
            decode_tokens_per_s: decoded as f64 / decoding,
            decode_step_ms,
            prefill_seconds: ran.seconds - decoding,
            mean_ttft_ms: ran.lives.iter().map(|life| life.ttft() * 1e3).sum::<f64>()
                / ran.lives.len() as f64,
            tokens,
        }
    }

    /// Seconds that this machine's own step times promise: reading the prompts, then full batches only.
    fn predicted(&self, requests: u32) -> f64 {
        let steps = (self.tokens as f64 - f64::from(requests)) / f64::from(self.batch);
        self.prefill_seconds + steps * self.decode_step_ms / 1e3
    }
}

impl Figures {
    fn tables(&self) -> Vec<Table> {
        let headings =
            ["cache", "batch", "seconds", "tokens/s", "decoding tokens/s", "decode step ms", "mean TTFT ms"];
        let mut table = Table::new("The burst, in the same memory", headings);
        for (name, side) in [("contiguous", &self.contiguous), ("pages", &self.paged)] {
            table.row([
                name.to_owned(),
                side.batch.to_string(),
                format!("{:.1}", side.seconds),
                format!("{:.1}", side.tokens_per_s),
                format!("{:.1}", side.decode_tokens_per_s),
                format!("{:.1}", side.decode_step_ms),
                format!("{:.0}", side.mean_ttft_ms),
            ]);
        }
        table.note(format!(
            "pages over contiguous: {:.2}x in all, {:.2}x decoding, {:.2}x by step times",
            self.paged_over_contiguous,
            self.paged_over_contiguous_decode,
            self.paged_over_contiguous_predicted
        ));
        let mut other = Table::new("Sharing and long prompts", ["load", "figure"]);
        let [cold, shared] = self.ttft_shared_prefix_ms;
        other.row(["mean TTFT without the prefix cache".to_owned(), format!("{cold:.0} ms")]);
        other.row(["mean TTFT with it".to_owned(), format!("{shared:.0} ms")]);
        other.row([
            "p99 gap between tokens beside a long prompt".to_owned(),
            format!("{:.0} ms", self.p99_itl_ms),
        ]);
        vec![table, other]
    }

    fn goals(&self, on_gpu: bool) -> Vec<Goal> {
        if on_gpu {
            return vec![Goal::at_least(1.8, self.paged_over_contiguous, "the burst in pages 1.8x or more")];
        }
        let of_prediction = self.paged_over_contiguous / self.paged_over_contiguous_predicted;
        let limit = self.max_itl_ms as f64;
        vec![
            Goal::at_least(1.32, self.paged_over_contiguous_decode, "decoding in pages 1.32x or more"),
            Goal::at_least(0.9, of_prediction, "the whole at 0.9 or more of what step times predict"),
            Goal::at_least(5.0, self.ttft_speedup_shared_prefix, "a shared prefix: first tokens 5x sooner"),
            Goal::at_most(limit, self.p99_itl_ms, format!("p99 gap between tokens within {limit} ms")),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::serving_load::Life;
    use super::*;
    use octavo_engine::StepReport;

    #[test]
    fn a_burst_is_told_in_tokens_a_second_and_milliseconds() {
        let step = |sequences, prompt, seconds| {
            let report = StepReport { sequences, prompt_tokens: Tokens(prompt), ..StepReport::default() };
            (report, seconds)
        };
        let steps = vec![step(2, 30, 4.0), step(2, 0, 1.0), step(2, 0, 3.0), step(1, 0, 1.0)];
        let life = |sent, tokens: &[f64]| Life { sent, tokens: tokens.to_vec() };
        let lives = vec![life(0.0, &[4.0, 5.0, 8.0, 9.0]), life(2.0, &[4.0, 5.0, 8.0])];
        let burst = Burst::new(2, Bytes(7), &Ran { seconds: 14.0, steps, lives });
        assert_eq!((burst.tokens, burst.tokens_per_s), (7, 0.5));
        // Five tokens in the five seconds of the steps that read no prompt; those of two took two seconds.
        assert_eq!((burst.decode_tokens_per_s, burst.decode_step_ms), (1.0, 2000.0));
        assert_eq!((burst.prefill_seconds, burst.mean_ttft_ms), (9.0, 3000.0));
        // The first token of both came with the prompts; the other five in steps of two.
        assert_eq!(burst.predicted(2), 9.0 + 2.5 * 2.0);
    }
}
