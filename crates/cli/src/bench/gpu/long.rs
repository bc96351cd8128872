//! `octavo bench long`: a very long prompt in chunks, and decoding behind it.

use super::{open, world};
use crate::bench::measure::{Samples, progress};
use crate::report::{Goal, Report, Table};
use anyhow::{Result, bail};
use octavo::Device;
use octavo_backend::Backend;
use octavo_cuda::Cuda;
use octavo_engine::{Engine, EngineConfig, Event, Events, ModelRunner, Request};
use octavo_kv::Settings;
use octavo_model::ModelConfig;
use octavo_types::{Bytes, KvDtype, PageSize, Pages, Timestamp, Tokens};
use serde::Serialize;
use serde_json::json;
use std::time::Instant;

/// Does a prompt of 200 000 tokens fit four gigabytes of keys and values, without a spike of memory, and decode?
///
/// Through the whole engine: 24 layers, 8 query and 2 KV heads, head dimension 128, keys and values in fp8, random
/// weights. Memory is what the device reports as used, looked at after every step. JSON keys: kv_bytes,
/// peak_bytes, weights_and_kv_bytes, spike_bytes, prefill_seconds, prefill_tokens_per_s, decode_ms, tokens.
#[derive(Debug, clap::Args)]
pub(in crate::bench) struct Args {
    /// Which GPU: cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "cuda")]
    device: Device,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(64..=1_000_000))]
    tokens: u32,
    /// Prompt tokens in one step
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(16..=100_000))]
    chunk: u32,
}

/// Tokens generated behind the prompt.
const GENERATED: u32 = 64;
/// What keys and values may take.
const MOST: u64 = 4_000_000_000;

#[derive(Debug, Serialize)]
struct Figures {
    device: String,
    tokens: u32,
    kv_bytes: u64,
    /// Used on the device at most, beyond what was used before anything was loaded.
    peak_bytes: u64,
    /// The same before the first step.
    weights_and_kv_bytes: u64,
    /// By how much the most used after the first step was exceeded.
    spike_bytes: u64,
    prefill_seconds: f64,
    prefill_tokens_per_s: f64,
    decode_ms: f64,
}

pub(in crate::bench) fn run(args: &Args) -> Result<Report> {
    let Some(bench) = open(args.device, false, true)? else {
        bail!("a CPU reads 200 000 tokens in an hour: this bench is for --device cuda");
    };
    // Another handle on the device, to look at its memory from outside of the engine.
    let Some(eye) = open(args.device, false, true)? else { bail!("a GPU") };
    let eye = eye.into_cuda();
    let before = eye.free_memory()?;
    let config = config(args.tokens + GENERATED)?;
    let spec = config.kv_spec(KvDtype::Fp8, PageSize::DEFAULT, None)?;
    let model = world::load(&bench, &config, &spec)?;
    let total = spec.page_size().pages_for(Tokens(args.tokens + GENERATED)) + Pages(1);
    let kv_bytes = u64::from(total.0) * spec.page_bytes().0;
    let runner = ModelRunner::new(bench.into_cuda(), model, &spec, total)?;
    let engine = EngineConfig {
        chunk: (Tokens(args.chunk), Tokens(args.chunk)),
        prompt_share: 1.0,
        ..EngineConfig::new(1, Tokens(args.tokens + GENERATED))
    };
    let settings = Settings { total, ..Settings::for_model(&spec, Bytes(kv_bytes)) };
    let mut engine = Engine::new(engine, settings, Box::new(runner), None)?;
    let figures = drive(&mut engine, args.tokens, &eye, before, kv_bytes, config.vocab() as u32)?;
    let conditions = format!("{}, fp8, {} prompt tokens a step", figures.device, args.chunk);
    let question = "does a very long prompt fit, without a spike of memory, and decode?";
    Report::new("long", question, conditions, &figures, figures.tables(), figures.goals())
}

/// One request to its end.
fn drive(
    engine: &mut Engine,
    tokens: u32,
    eye: &Cuda,
    before: Bytes,
    kv_bytes: u64,
    vocab: u32,
) -> Result<Figures> {
    let used = || Ok::<u64, anyhow::Error>(before.0.saturating_sub(eye.free_memory()?.0));
    let weights_and_kv_bytes = used()?;
    let prompt = (0..tokens).map(|i| i.wrapping_mul(2_654_435_761) % vocab).collect();
    let accepted = engine.intake().accept(Request::new(prompt, GENERATED))?;
    engine.submit(accepted);
    let bar = progress(u64::from(tokens));
    let (start, mut events) = (Instant::now(), Events::new());
    let (mut prefill_seconds, mut decode, mut used_by_step) = (None, Samples::default(), Vec::new());
    while engine.has_work() {
        let at = start.elapsed();
        let step = engine.step(Timestamp(at.as_micros() as u64), &mut events);
        used_by_step.push(used()?);
        if step.prompt_tokens == Tokens::ZERO && step.tokens > 0 {
            decode.push((start.elapsed() - at).as_secs_f64() * 1e3);
        }
        bar.inc(u64::from(step.prompt_tokens.0));
        for (_, event) in events.drain(..) {
            match event {
                Event::Token(_) => _ = prefill_seconds.get_or_insert(start.elapsed().as_secs_f64()),
                Event::Failed(failure) => bail!("the request failed: {failure}"),
                _ => {}
            }
        }
    }
    bar.finish_and_clear();
    let prefill_seconds = prefill_seconds.unwrap_or(f64::INFINITY);
    let peak_bytes = used_by_step.iter().copied().max().unwrap_or(0);
    let first = used_by_step.first().copied().unwrap_or(0);
    Ok(Figures {
        device: eye.name(),
        tokens,
        kv_bytes,
        peak_bytes,
        weights_and_kv_bytes,
        spike_bytes: peak_bytes.saturating_sub(first),
        prefill_seconds,
        prefill_tokens_per_s: f64::from(tokens) / prefill_seconds,
        decode_ms: decode.median(),
    })
}

fn config(max_len: u32) -> Result<ModelConfig> {
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 24, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 32_000, "max_position_embeddings": max_len,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    });
    Ok(ModelConfig::from_json(&config.to_string())?)
}

impl Figures {
    fn tables(&self) -> Vec<Table> {
        let mut table = Table::new(format!("A prompt of {} tokens", self.tokens), ["what", "figure"]);
        let gb = |bytes: u64| format!("{:.2} GB", bytes as f64 / 1e9);
        for (what, figure) in [
            ("keys and values", gb(self.kv_bytes)),
            ("weights, keys and values", gb(self.weights_and_kv_bytes)),
            ("peak of the device's memory", gb(self.peak_bytes)),
            ("above what the first step used", gb(self.spike_bytes)),
            ("reading the prompt", format!("{:.2} s", self.prefill_seconds)),
            ("prompt tokens a second", format!("{:.0}", self.prefill_tokens_per_s)),
            ("a token behind it", format!("{:.2} ms", self.decode_ms)),
        ] {
            table.row([what.to_owned(), figure]);
        }
        vec![table]
    }

    fn goals(&self) -> Vec<Goal> {
        vec![
            Goal::at_most(MOST as f64 / 1e9, self.kv_bytes as f64 / 1e9, "keys and values within 4 GB"),
            Goal::at_most(
                0.5,
                self.spike_bytes as f64 / 1e9,
                "at most 0.5 GB more than after the first step",
            ),
        ]
    }
}
