//! The options of commands that serve many requests.

use crate::model_args::{ModelArgs, parse_size};
use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use octavo::{Batching, Bytes, Hub, Llm, Options, PolicyKind, Tokens};
use std::time::Duration;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum BatchingMode {
    /// Requests join whenever there is room
    Continuous,
    /// Requests join when the batch before has ended
    Static,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Eviction {
    Lru,
    Priority,
    Adaptive,
}

#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Sequences that run at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_batch_size: u32,
    /// When new requests may join the batch
    #[arg(long, value_enum, default_value = "continuous")]
    batching: BatchingMode,
    /// Share of the free memory that new prompts may take while others run; the rest is what those grow into
    #[arg(long, value_name = "SHARE", default_value_t = 0.8, value_parser = parse_share)]
    prompt_share: f32,
    /// The longest gap between two tokens of running requests while a long prompt is read [default: no limit]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    max_itl_ms: Option<u64>,
    /// Requests that may wait; more are refused with 503
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    max_queue: usize,
    /// Waiting so long counts as much as one step of priority
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    aging: u64,
    /// Fail requests that take longer and name no limit of their own [default: none]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    time_limit: Option<u64>,
    /// Keep nothing for requests to come that begin alike
    #[arg(long)]
    no_prefix_cache: bool,
    /// The most memory that cached prefixes keep while nobody uses them, such as 2GB [default: all that is not needed]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "no_prefix_cache")]
    cached_memory: Option<u64>,
    /// Zero pages before another request gets them; cached prefixes stay what they are
    #[arg(long)]
    zero_freed: bool,
    /// Take all memory for keys and values at the start: no request waits for the system to hand it out later, and a
    /// machine that does not have it shows at once (a GPU's is always taken at the start)
    #[arg(long)]
    commit_kv: bool,
    /// Which cached pages go first when memory is short
    #[arg(long, value_enum, default_value = "lru", conflicts_with = "no_prefix_cache")]
    eviction: Eviction,
}

impl EngineArgs {
    pub(crate) fn load(&self, hub: &Hub) -> Result<Llm> {
        self.model.load_with(hub, |options| Options {
            max_batch: self.max_batch_size,
            batching: match self.batching {
                BatchingMode::Continuous => Batching::Continuous,
                BatchingMode::Static => Batching::Static,
            },
            prompt_share: self.prompt_share,
            max_itl: self.max_itl_ms.map(Duration::from_millis),
            max_waiting: self.max_queue,
            aging: Duration::from_secs(self.aging),
            time_limit: self.time_limit.map(Duration::from_secs),
            prefix_cache: !self.no_prefix_cache,
            cached_memory: self.cached_memory.map(Bytes),
            zero_freed: self.zero_freed,
            commit_kv: self.commit_kv,
            policy: match self.eviction {
                Eviction::Lru => PolicyKind::Lru,
                Eviction::Priority => PolicyKind::Priority,
                Eviction::Adaptive => PolicyKind::Adaptive,
            },
            ..options
        })
    }

    pub(crate) fn batch(&self) -> u32 {
        self.max_batch_size
    }
}

fn parse_share(text: &str) -> Result<f32, String> {
    let share = text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| format!("`{text}` is no share: choose one above 0 and at most 1"))
}

/// Tokens as people write them.
pub(crate) fn thousands(tokens: Tokens) -> String {
    let digits = tokens.0.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(thousands(Tokens(7)), "7");
        assert_eq!(thousands(Tokens(4096)), "4 096");
        assert_eq!(thousands(Tokens(1_234_567)), "1 234 567");
    }
}
