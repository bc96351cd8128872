//! What happens to a request, as its sender sees it.

use crate::sampler::TokenLogprobs;
use octavo_types::{Pages, Tokens};
use std::time::Duration;

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// So much of its prompt has been read; `cached` of it was found in the cache.
    Prefill {
        done: Tokens,
        total: Tokens,
        cached: Tokens,
    },
    /// One entry a token of the prompt; the first has none.
    PromptLogprobs(Vec<Option<TokenLogprobs>>),
    Token(NewToken),
    /// One of the choices has ended.
    Finished(Finished),
    /// All choices have ended; nothing follows.
    Done(Usage),
    /// It could not be finished; nothing follows.
    Failed(Failure),
}

impl Event {
    /// Whether nothing follows.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Failed(_))
    }
}

/// A token, and the text that became certain with it.
#[derive(Clone, Debug, PartialEq)]
pub struct NewToken {
    pub choice: u32,
    pub token: u32,
    /// Text that is final with it; empty while a character or a stop string may be under way, and without a tokenizer.
    pub text: String,
    pub logprobs: Option<TokenLogprobs>,
}

/// How a choice ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    pub choice: u32,
    pub reason: FinishReason,
    /// Text that was held back.
    pub text: String,
    /// Which stop string ended it.
    pub matched: Option<usize>,
}

/// Why a choice has no more tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// The model ended the text, or a stop string or the grammar did.
    Stop,
    /// It has as many tokens as were asked for, or as fit.
    Length,
    /// Whoever asked for it went away or ended it.
    Cancelled,
}

/// What a request took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    pub prompt_tokens: Tokens,
    /// Prompt tokens found in the cache.
    pub cached_tokens: Tokens,
    /// Over all choices, those not returned too.
    pub completion_tokens: u64,
    /// From its arrival to its first step.
    pub queued: Duration,
    /// From its first step to its first token.
    pub prefill: Duration,
    /// From its first token to its end.
    pub decode: Duration,
    /// Times it gave up its pages for others.
    pub preemptions: u32,
}

/// Why a request could not be finished.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("a step failed: {0}")]
    Step(String),
    #[error("not finished within its {} ms", .0.as_millis())]
    TimeLimit(Duration),
    #[error("out of memory: needs {need}, only {free} could be had with nothing else running")]
    OutOfPages { need: Pages, free: Pages },
    #[error("its grammar allows no further token: {0}")]
    Constraint(String),
    #[error("its grammar is too complex to be followed: {0}")]
    TooComplex(String),
    #[error("the engine is shutting down")]
    ShuttingDown,
}
