//! How the engine schedules.

use octavo_kv::Settings;
use octavo_types::Tokens;
use std::time::Duration;

/// When new requests may join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Batching {
    /// Whenever there is room.
    #[default]
    Continuous,
    /// When every request of the batch before has ended; then as many as fit, while their prompts are read.
    Static,
}

/// How the engine schedules. The default serves one machine's worth of requests; [`Engine::new`](crate::Engine::new)
/// refuses what cannot work.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Sequences that run at once.
    pub max_batch: u32,
    /// The most tokens a sequence may have.
    pub max_len: Tokens,
    pub batching: Batching,
    /// The share of the pages that could be had which new prompts may take while others run; the rest is what
    /// running sequences grow into.
    pub prompt_share: f32,
    /// The fewest and the most prompt tokens in one step; between them the chunk follows the free memory.
    pub chunk: (Tokens, Tokens),
    /// The longest gap between two tokens of running requests while a prompt is read: longer chunks are split.
    pub max_itl: Option<Duration>,
    /// Requests that may wait.
    pub max_waiting: usize,
    /// Waiting so long counts as much as one step of priority.
    pub aging: Duration,
    /// For requests that name none.
    pub time_limit: Option<Duration>,
    /// Zero pages before anybody else gets them.
    pub zero_freed: bool,
}

impl EngineConfig {
    pub const LEAST_CHUNK: Tokens = Tokens(512);
    pub const MOST_CHUNK: Tokens = Tokens(2048);

    pub fn new(max_batch: u32, max_len: Tokens) -> Self {
        Self {
            max_batch,
            max_len,
            batching: Batching::default(),
            prompt_share: 0.8,
            chunk: (Self::LEAST_CHUNK, Self::MOST_CHUNK),
            max_itl: None,
            max_waiting: 1024,
            aging: Duration::from_secs(10),
            time_limit: None,
            zero_freed: false,
        }
    }

    /// Whether an engine can be made like this over such a cache. Making one checks the same.
    pub fn check(&self, settings: &Settings) -> Result<(), ConfigError> {
        self.validate()?;
        settings.validate()?;
        let (len, total) = (self.max_len, settings.total);
        if settings.least_pages(len) > total {
            return Err(ConfigError::MaxLen { len, total, most: settings.longest(len) });
        }
        Ok(())
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let (least, most) = self.chunk;
        if self.max_batch == 0 {
            return Err(ConfigError::NoBatch);
        }
        if self.max_len < Tokens(2) {
            return Err(ConfigError::NoLength(self.max_len));
        }
        if least == Tokens::ZERO || least > most {
            return Err(ConfigError::Chunk { least, most });
        }
        if !(self.prompt_share > 0.0 && self.prompt_share <= 1.0) {
            return Err(ConfigError::PromptShare(self.prompt_share));
        }
        if self.max_itl.is_some_and(|itl| itl.is_zero()) {
            return Err(ConfigError::MaxItl);
        }
        if self.max_waiting == 0 {
            return Err(ConfigError::NoQueue);
        }
        Ok(())
    }
}

/// Why an engine cannot be set up like this.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    #[error("a batch of no sequences runs nothing: choose a maximum batch size of at least 1")]
    NoBatch,
    #[error("no prompt and its next token fit {0}: choose a maximum length of at least 2 tokens")]
    NoLength(Tokens),
    #[error(
        "chunks cannot have at least {least} and at most {most}: the first must be 1 or more and not above the second"
    )]
    Chunk { least: Tokens, most: Tokens },
    #[error("new prompts cannot take {0} of the free pages: choose a share above 0 and at most 1")]
    PromptShare(f32),
    #[error("a gap of 0 ms between tokens cannot be kept: leave it out or choose at least 1 ms")]
    MaxItl,
    #[error("a queue for no requests refuses all of them: choose at least 1")]
    NoQueue,
    #[error("{pages} hold no sequence of {len}: give the KV cache more memory or lower the maximum length to {most}", pages = .total)]
    MaxLen { len: Tokens, total: octavo_types::Pages, most: Tokens },
    #[error(transparent)]
    Settings(#[from] octavo_kv::SettingsError),
}
