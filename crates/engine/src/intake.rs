//! The door: checks requests and bounds how many wait, on any thread.

use crate::request::{Accepted, Request, RequestId, SubmitError};
use crate::sampler::{SamplingError, SamplingParams};
use octavo_kv::{Prompt, Settings};
use octavo_types::Tokens;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// What a request must keep to. One an engine, shared by everybody who sends to it.
#[derive(Debug)]
pub struct Intake {
    settings: Settings,
    max_len: Tokens,
    max_choices: u32,
    vocab: usize,
    max_waiting: usize,
    waiting: Arc<AtomicUsize>,
    /// How long a place in the queue was held lately, in microseconds.
    wait: AtomicU64,
    closed: AtomicBool,
    next_id: AtomicU64,
}

/// A place in the queue, given up when dropped.
#[derive(Debug)]
pub struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Intake {
    pub(crate) fn new(
        settings: Settings,
        max_len: Tokens,
        max_choices: u32,
        vocab: usize,
        max_waiting: usize,
    ) -> Self {
        Self {
            settings,
            max_len,
            max_choices,
            vocab,
            max_waiting,
            waiting: Arc::default(),
            wait: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            next_id: AtomicU64::new(0),
        }
    }

    /// The most tokens a prompt and what follows it may have.
    pub fn max_len(&self) -> Tokens {
        self.max_len
    }
    /// How the cache is set up.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
    /// Requests that may wait.
    pub fn max_waiting(&self) -> usize {
        self.max_waiting
    }
    /// Requests that wait for their first step.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether one more may wait.
    pub(crate) fn has_place(&self) -> bool {
        self.waiting() < self.max_waiting
    }

    /// Checks and hashes a request, and takes a place in the queue for it.
    pub fn accept(&self, mut request: Request) -> Result<Accepted, SubmitError> {
        self.check(&request)?;
        if !request.stop_tokens.is_sorted_by(|a, b| a < b) {
            request.stop_tokens =
                BTreeSet::from_iter(request.stop_tokens.iter().copied()).into_iter().collect();
        }
        let place = self.enter()?;
        let tokens = request.prompt.clone();
        let prompt = Prompt::new(tokens, request.scope, self.settings.page_size)?;
        let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
        Ok(Accepted { id, request, prompt, place })
    }

    /// Whether a request can be done at all.
    pub fn check(&self, request: &Request) -> Result<(), SubmitError> {
        let len = request.prompt.len();
        let prompt = Tokens::of_len(len).ok_or(octavo_kv::TooLong(len))?;
        if prompt == Tokens::ZERO {
            return Err(SubmitError::EmptyPrompt);
        }
        // At least one token is to follow.
        if prompt >= self.max_len && request.max_tokens > 0 || prompt > self.max_len {
            return Err(SubmitError::PromptTooLong { prompt, max: self.max_len });
        }
        if let Some(&token) = request.prompt.iter().find(|token| **token as usize >= self.vocab) {
            return Err(SubmitError::NoSuchToken { token, vocab: self.vocab });
        }
        let (need, total) = (self.settings.least_pages(prompt), self.settings.total);
        if need > total {
            return Err(SubmitError::NeverFits { need, total });
        }
        if let Some(limit) = self.settings.sequence_limit.filter(|limit| need > *limit) {
            return Err(SubmitError::OverLimit { need, limit });
        }
        let (choices, best_of, most) = (request.choices, request.best_of, self.max_choices);
        if choices == 0 || choices > most {
            return Err(SubmitError::Choices { asked: choices, most });
        }
        if best_of > most {
            return Err(SubmitError::BestOfTooMany { best_of, most });
        }
        if best_of < choices {
            return Err(SubmitError::BestOf { choices, best_of });
        }
        let prompt_logprobs =
            SamplingParams { logprobs: request.prompt_logprobs, ..SamplingParams::default() };
        prompt_logprobs.validate().map_err(|error| SamplingError { name: "prompt_logprobs", ..error })?;
        Ok(request.sampling.validate()?)
    }

    fn enter(&self) -> Result<Place, SubmitError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(SubmitError::ShuttingDown);
        }
        let one_more = |waiting: usize| (waiting < self.max_waiting).then_some(waiting + 1);
        match self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(Place(self.waiting.clone())),
            Err(waiting) => Err(SubmitError::QueueFull { waiting, retry_after: self.usual_wait() }),
        }
    }

    /// Notes how long a request waited, so that those refused know when to come back.
    pub(crate) fn note_wait(&self, waited: Duration) {
        let (new, old) = (waited.as_micros() as u64, self.wait.load(Ordering::Relaxed));
        self.wait.store(old - old / 8 + new / 8, Ordering::Relaxed);
    }

    fn usual_wait(&self) -> Duration {
        Duration::from_micros(self.wait.load(Ordering::Relaxed))
    }

    /// Refuses whatever comes from now on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}
