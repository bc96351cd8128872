//! The options of commands that serve many requests.

use crate::model_args::{ModelArgs, parse_size};
use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use octavo::{Batching, Bytes, Hub, Llm, Options, PolicyKind};
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
        self.model.load_with(hub, |options| self.over(options))
    }

    fn over(&self, options: Options) -> Options {
        Options {
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
        }
    }

    pub(crate) fn batch(&self) -> u32 {
        self.max_batch_size
    }
}

fn parse_share(text: &str) -> Result<f32, String> {
    let share = text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| format!("`{text}` is no share: choose one above 0 and at most 1"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: EngineArgs,
    }

    fn options(args: &[&str]) -> Options {
        let cli = Cli::parse_from([&["octavo"], args].concat());
        cli.args.over(Options::default())
    }

    #[test]
    fn every_option_is_the_engines() {
        let asked = options(&[
            "--max-batch-size=3",
            "--batching=static",
            "--prompt-share=0.5",
            "--max-itl-ms=40",
            "--max-queue=5",
            "--aging=6",
            "--time-limit=7",
            "--cached-memory=8KB",
            "--zero-freed",
            "--commit-kv",
            "--eviction=priority",
        ]);
        assert_eq!((asked.max_batch, asked.batching, asked.prompt_share), (3, Batching::Static, 0.5));
        assert_eq!((asked.max_itl, asked.max_waiting), (Some(Duration::from_millis(40)), 5));
        let [aging, limit] = [6, 7].map(Duration::from_secs);
        assert_eq!((asked.aging, asked.time_limit), (aging, Some(limit)));
        assert_eq!((asked.cached_memory, asked.policy), (Some(Bytes(8000)), PolicyKind::Priority));
        assert!(asked.zero_freed && asked.commit_kv && asked.prefix_cache);
        assert_eq!(options(&["--eviction=adaptive"]).policy, PolicyKind::Adaptive);
        assert!(!options(&["--no-prefix-cache"]).prefix_cache);
        let (usual, own) = (options(&[]), Options::default());
        assert_eq!((usual.max_batch, usual.batching, usual.policy), (16, own.batching, own.policy));
        assert_eq!((usual.prompt_share, usual.max_itl), (own.prompt_share, own.max_itl));
        assert_eq!((usual.max_waiting, usual.aging), (own.max_waiting, own.aging));
        assert_eq!((usual.time_limit, usual.cached_memory), (None, None));
        assert!(!usual.zero_freed && !usual.commit_kv);
    }
}
