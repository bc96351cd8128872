//! `octavo generate`: one prompt, one answer, in the terminal.

use crate::answer::Answer;
use crate::json::Json;
use crate::model_args::ModelArgs;
use anyhow::{Context, Result, bail};
use octavo::{FinishReason, Hub, Llm, Message, Output, Request, SamplingParams};
use serde_json::json;
use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Continue a prompt, or answer it
///
/// The text is printed as it comes; Ctrl-C ends it and keeps what is there (exit status 130). Without --model the built-in
/// model runs, which knows a little about Rust.
#[derive(Debug, clap::Args)]
pub(crate) struct Command {
    /// The prompt; `-` or nothing reads it from standard input
    prompt: Option<String>,
    /// Read the prompt from FILE; a byte order mark at its beginning and a line break at its end are not part of it, nor
    /// those of standard input
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompt_file: Option<PathBuf>,
    /// Wrap the prompt in the model's chat template, as the user's message
    #[arg(long)]
    chat: bool,
    /// System message, with --chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// The most tokens to generate
    #[arg(long, short = 'n', value_name = "N", default_value_t = 256)]
    max_tokens: u32,
    /// Go on past the end of text
    #[arg(long)]
    ignore_eos: bool,
    /// Write prompt_token_ids, token_ids, text, finish_reason and timings as one JSON object to FILE; `-` prints it
    /// instead of the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What is not given is as the model's makers would have it.
#[derive(Debug, clap::Args)]
pub(crate) struct SamplingArgs {
    /// 0 takes the likeliest token every time
    #[arg(long, value_name = "T", value_parser = checked(|params, temperature| params.temperature = temperature))]
    temperature: Option<f32>,
    /// Only the K likeliest tokens; 0 for all
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Only the likeliest tokens that make up this probability
    #[arg(long, value_name = "P", value_parser = checked(|params, top_p| params.top_p = top_p))]
    top_p: Option<f32>,
    /// Only tokens at least this fraction as likely as the likeliest
    #[arg(long, value_name = "P", value_parser = checked(|params, min_p| params.min_p = min_p))]
    min_p: Option<f32>,
    /// Above 1: less of what was said before
    #[arg(long, value_name = "FACTOR", value_parser = checked(|params, penalty| params.repetition_penalty = penalty))]
    repetition_penalty: Option<f32>,
    /// Subtracted from tokens that were generated
    #[arg(long, value_name = "X", value_parser = checked(|params, penalty| params.presence_penalty = penalty))]
    presence_penalty: Option<f32>,
    /// Subtracted for every time a token was generated
    #[arg(long, value_name = "X", value_parser = checked(|params, penalty| params.frequency_penalty = penalty))]
    frequency_penalty: Option<f32>,
    /// The same seed gives the same text [default: another one every time]
    #[arg(long)]
    seed: Option<u64>,
}

/// Takes a number if the engine does where `set` puts it.
fn checked(
    set: fn(&mut SamplingParams, f32),
) -> impl Fn(&str) -> Result<f32, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().map_err(|_| format!("`{text}` is no number"))?;
        let mut params = SamplingParams::default();
        set(&mut params, number);
        params.validate().map_err(|error| format!("it must be {}", error.range))?;
        Ok(number)
    }
}

impl SamplingArgs {
    pub(crate) fn over(&self, base: SamplingParams) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            seed: self.seed.unwrap_or_else(|| fastrand::u64(..)),
            ..base
        }
    }
}

/// Seconds from the start of the prompt to its end, and from there to the end of the text.
struct Timings {
    load: Duration,
    prefill: Duration,
    decode: Duration,
}

pub(crate) fn run(command: &Command, hub: &Hub) -> Result<()> {
    if command.system.is_some() && !command.chat {
        bail!("a system message is for a chat: leave out --chat=false or --system");
    }
    let text = command.read_prompt()?;
    let json = command.json.as_deref().map(Json::open).transpose()?;
    let start = Instant::now();
    let mut llm = command.model.load(hub)?;
    let load = start.elapsed();
    let prompt = command.encode(&llm, &text)?;
    let quiet = matches!(json, Some(Json::Printed));
    let request = Request {
        sampling: command.sampling.over(llm.default_sampling()),
        stop_tokens: if command.ignore_eos { Arc::default() } else { llm.stop_tokens().into() },
        ..Request::new(prompt.clone(), command.max_tokens)
    };
    let interrupted = crate::interrupt::flag()?;
    let Answer { output, prefill, decode } = crate::answer::run(&mut llm, request, quiet, &interrupted)?;
    let timings = Timings { load, prefill, decode };
    if let Some(json) = json {
        json.write(in_json(&llm, &prompt, &output, &timings))?;
    }
    // A script should not take a part for the whole.
    if output.finish == Some(FinishReason::Cancelled) && interrupted.load(Ordering::Relaxed) {
        std::process::exit(130);
    }
    Ok(())
}

/// Editors and `echo` end a text with a line break that is not meant, and some begin it with a byte order mark.
fn as_meant(text: &str) -> String {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.strip_suffix("\r\n").or_else(|| text.strip_suffix('\n')).unwrap_or(text).to_owned()
}

impl Command {
    fn read_prompt(&self) -> Result<String> {
        let input = self.prompt.as_deref() == Some("-");
        if let Some(prompt) = self.prompt.as_ref().filter(|_| !input) {
            return Ok(prompt.clone());
        }
        if let Some(path) = &self.prompt_file {
            let text =
                std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            return Ok(as_meant(&text));
        }
        if !input && std::io::stdin().is_terminal() {
            bail!("no prompt: give one as an argument, with --prompt-file, or on standard input");
        }
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        Ok(as_meant(&text))
    }

    fn encode(&self, llm: &Llm, text: &str) -> Result<Vec<u32>> {
        if !self.chat {
            return Ok(llm.encode_prompt(text)?);
        }
        let system = self.system.iter().map(|text| Message::new("system", text));
        let messages: Vec<Message> = system.chain([Message::new("user", text)]).collect();
        Ok(llm.encode_chat(&messages)?)
    }
}

fn in_json(llm: &Llm, prompt: &[u32], output: &Output, timings: &Timings) -> serde_json::Value {
    let rate = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
    json!({
        "model": llm.name(),
        "device": llm.device(),
        "prompt_token_ids": prompt,
        "token_ids": output.tokens,
        "text": output.text,
        "finish_reason": match output.finish {
            Some(FinishReason::Stop) => "stop",
            Some(FinishReason::Length) => "length",
            Some(FinishReason::Cancelled) | None => "cancelled",
        },
        "timings": {
            "load_seconds": timings.load.as_secs_f64(),
            "prefill_seconds": timings.prefill.as_secs_f64(),
            "decode_seconds": timings.decode.as_secs_f64(),
            "prompt_tokens_per_second": rate(prompt.len(), timings.prefill),
            "tokens_per_second": rate(output.tokens.len().saturating_sub(1), timings.decode),
        },
    })
}
