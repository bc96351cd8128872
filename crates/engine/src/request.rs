//! What is asked of the engine, and what can be wrong with it.

use crate::constraint::Constraint;
use crate::sampler::{SamplingError, SamplingParams};
use octavo_kv::{Prompt, Scope, TooLong};
use octavo_text::StopStrings;
use octavo_types::{Pages, Tokens};
use std::sync::Arc;
use std::time::Duration;

/// A request, as long as the engine runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RequestId(pub u64);

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "request {}", self.0)
    }
}

/// What to generate from one prompt. [`Intake::accept`](crate::Intake::accept) says whether it can be done.
#[derive(Clone, Debug)]
pub struct Request {
    pub prompt: Vec<u32>,
    /// Whose pages it may share.
    pub scope: Scope,
    pub sampling: SamplingParams,
    /// The most tokens to generate, for each choice.
    pub max_tokens: u32,
    /// Before so many were generated, neither a token nor a string ends the text.
    pub min_tokens: u32,
    /// Tokens that end the text; they are not part of it.
    pub stop_tokens: Arc<[u32]>,
    /// Text that ends the text.
    pub stop_strings: Option<StopStrings>,
    /// What the text must look like.
    pub constraint: Option<Constraint>,
    /// Continuations to return.
    pub choices: u32,
    /// Continuations to generate, of which the likeliest are returned; at least `choices`.
    pub best_of: u32,
    /// Logprobs of the prompt's own tokens, with so many alternatives; computes the whole prompt.
    pub prompt_logprobs: Option<u8>,
    /// Lower goes first.
    pub priority: i32,
    /// Fails if it has not ended after so long.
    pub time_limit: Option<Duration>,
    /// How much of that had passed before it was sent.
    pub waited: Duration,
}

impl Request {
    /// The likeliest `max_tokens` tokens after `prompt`.
    pub fn new(prompt: Vec<u32>, max_tokens: u32) -> Self {
        Self {
            prompt,
            scope: Scope::default(),
            sampling: SamplingParams::default(),
            max_tokens,
            min_tokens: 0,
            stop_tokens: Arc::default(),
            stop_strings: None,
            constraint: None,
            choices: 1,
            best_of: 1,
            prompt_logprobs: None,
            priority: 0,
            time_limit: None,
            waited: Duration::ZERO,
        }
    }
}

/// Why a request is refused before anything is computed for it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SubmitError {
    #[error("a prompt needs at least one token")]
    EmptyPrompt,
    #[error("the prompt has {prompt}; the model takes at most {max}, an answer's among them")]
    PromptTooLong { prompt: Tokens, max: Tokens },
    #[error("the prompt holds token {token}, the vocabulary has {vocab}")]
    NoSuchToken { token: u32, vocab: usize },
    #[error(
        "needs {need} of KV cache; the whole pool is {total}: shorten the prompt or give the cache more memory"
    )]
    NeverFits { need: Pages, total: Pages },
    #[error("needs {need} of KV cache; a request may have {limit}: shorten the prompt")]
    OverLimit { need: Pages, limit: Pages },
    #[error("{asked} choices were asked for; between 1 and {most} can be had")]
    Choices { asked: u32, most: u32 },
    #[error("the best of {best_of} were asked for; at most {most} can be generated at once")]
    BestOfTooMany { best_of: u32, most: u32 },
    #[error("the best {choices} of {best_of} cannot be chosen: best_of must be at least n")]
    BestOf { choices: u32, best_of: u32 },
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    #[error(transparent)]
    TooLong(#[from] TooLong),
    #[error("{waiting} requests are waiting already, as many as may: try again in {} s", retry_after.as_secs().max(1))]
    QueueFull { waiting: usize, retry_after: Duration },
    #[error("the engine is shutting down")]
    ShuttingDown,
}

/// A request that can be done, hashed and with its place in the queue.
#[derive(Debug)]
pub struct Accepted {
    pub(crate) id: RequestId,
    pub(crate) request: Request,
    pub(crate) prompt: Prompt,
    pub(crate) place: crate::intake::Place,
}

impl Accepted {
    pub fn id(&self) -> RequestId {
        self.id
    }
}
