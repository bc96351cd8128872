//! Prompts in, tokens out: one batch of sequences, run until each has ended.

use crate::batch::{Batch, Wanted};
use crate::runner::{Logits, Runner};
use crate::sampler::{Sampler, SamplingError, SamplingParams};
use octavo_backend::BackendError;
use octavo_kv::{
    AdmitError, AppendError, Claim, Hit, KvCache, Prompt, Reuse, ScheduleError, Scope, Settings,
    SettingsError, TooLong,
};
use octavo_types::{SeqId, Timestamp, Tokens};
use std::time::Instant;

/// What to generate from one prompt.
#[derive(Clone, Debug)]
pub struct Request {
    pub prompt: Vec<u32>,
    pub sampling: SamplingParams,
    /// The most tokens to generate.
    pub max_tokens: u32,
    /// Tokens that end the text; they are not part of it.
    pub stop_tokens: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended the text.
    Stop,
    /// It has as many tokens as were asked for, or as fit.
    Length,
    /// Whoever watched ended it.
    Cancelled,
}

/// What one request became.
#[derive(Clone, Debug)]
pub struct Output {
    pub tokens: Vec<u32>,
    pub finish: FinishReason,
    pub hit: Hit,
}

/// Something happened to request `index`.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// So much of its prompt has been read.
    Prefill {
        index: usize,
        done: Tokens,
        total: Tokens,
    },
    Token {
        index: usize,
        token: u32,
    },
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Continue,
    /// Ends the request that the event is about.
    Cancel,
}

#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    #[error("a prompt needs at least one token")]
    EmptyPrompt,
    #[error("the prompt has {prompt}, the model takes at most {max}")]
    PromptTooLong { prompt: Tokens, max: Tokens },
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    #[error(transparent)]
    TooLong(#[from] TooLong),
    #[error(transparent)]
    Admit(#[from] AdmitError),
    #[error("the requests do not fit the KV cache together: {0}; give it more memory or run fewer at once")]
    Schedule(#[from] ScheduleError),
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// A cache and something that computes.
pub struct Generator {
    pub(crate) cache: KvCache,
    pub(crate) runner: Box<dyn Runner>,
    /// The most prompt tokens computed in one step.
    pub(crate) chunk: Tokens,
    /// The most tokens a sequence may have.
    pub(crate) max_len: Tokens,
    started: Instant,
    pub(crate) batch: Batch,
    pub(crate) logits: Logits,
}

/// A request on its way.
struct Running {
    index: usize,
    seq: SeqId,
    request: Request,
    sampler: Sampler,
    hit: Hit,
    tokens: Vec<u32>,
    finish: Option<FinishReason>,
}

impl Generator {
    pub fn new(
        settings: Settings,
        runner: Box<dyn Runner>,
        chunk: Tokens,
        max_len: Tokens,
    ) -> Result<Self, SettingsError> {
        let cache = KvCache::new(settings)?;
        let chunk = chunk.max(Tokens(1));
        Ok(Self {
            cache,
            runner,
            chunk,
            max_len,
            started: Instant::now(),
            batch: Batch::default(),
            logits: Logits::default(),
        })
    }

    pub fn cache(&self) -> &KvCache {
        &self.cache
    }
    pub fn cache_mut(&mut self) -> &mut KvCache {
        &mut self.cache
    }
    pub fn device(&self) -> String {
        self.runner.device()
    }
    pub fn max_len(&self) -> Tokens {
        self.max_len
    }

    /// Runs all requests in one batch. `watch` sees every event as it happens. Whatever happens, nothing stays held.
    pub fn generate(
        &mut self,
        requests: Vec<Request>,
        watch: &mut dyn FnMut(Event) -> Flow,
    ) -> Result<Vec<Output>, GenerateError> {
        let mut running = Vec::with_capacity(requests.len());
        let result = self.run_all(requests, &mut running, watch);
        if result.is_err() {
            self.cache.fail();
        }
        for request in &running {
            // Freed already if it ended by itself.
            let _ = self.cache.free(request.seq);
        }
        result?;
        running.sort_by_key(|request| request.index);
        let output = |r: Running| Output {
            tokens: r.tokens,
            finish: r.finish.unwrap_or(FinishReason::Length),
            hit: r.hit,
        };
        Ok(running.into_iter().map(output).collect())
    }

    fn run_all(
        &mut self,
        requests: Vec<Request>,
        running: &mut Vec<Running>,
        watch: &mut dyn FnMut(Event) -> Flow,
    ) -> Result<(), GenerateError> {
        for (index, request) in requests.into_iter().enumerate() {
            running.push(self.admit(index, request)?);
        }
        while running.iter().any(|request| request.finish.is_none()) {
            self.plan(running)?;
            self.run_step()?;
            self.take_tokens(running, watch)?;
        }
        Ok(())
    }

    fn admit(&mut self, index: usize, request: Request) -> Result<Running, GenerateError> {
        let len = Tokens::of_len(request.prompt.len()).ok_or(TooLong(request.prompt.len()))?;
        if len == Tokens::ZERO {
            return Err(GenerateError::EmptyPrompt);
        }
        if len > self.max_len {
            return Err(GenerateError::PromptTooLong { prompt: len, max: self.max_len });
        }
        let sampler = Sampler::new(request.sampling.clone(), &request.prompt)?;
        let page_size = self.cache.settings().page_size;
        let prompt = Prompt::new(request.prompt.clone(), Scope::default(), page_size)?;
        let (seq, hit) = self.cache.admit(prompt, Reuse::Longest)?;
        let finish = (request.max_tokens == 0).then_some(FinishReason::Length);
        Ok(Running { index, seq, request, sampler, hit, tokens: Vec::new(), finish })
    }

    /// One token of every sequence that decodes, and prompts as far as the chunk reaches.
    fn plan(&mut self, running: &[Running]) -> Result<(), GenerateError> {
        let now = self.started.elapsed().as_micros();
        self.cache.tick(Timestamp(u64::try_from(now).unwrap_or(u64::MAX)));
        let mut budget = self.chunk;
        for request in running.iter().filter(|request| request.finish.is_none()) {
            let sequence = self.cache.sequence(request.seq).expect("running");
            let left = sequence.prompt().len() - sequence.computed();
            let n = if left == Tokens(1) { left } else { left.min(budget) };
            if n > Tokens::ZERO {
                self.cache.schedule(request.seq, n, Claim::Running)?;
                budget = budget.saturating_sub(n);
            }
        }
        Ok(())
    }

    fn run_step(&mut self) -> Result<(), GenerateError> {
        let cache = &self.cache;
        let ends_known_tokens = |index: usize| {
            let span = &cache.step().spans()[index];
            let known = cache.sequence(span.seq).expect("in the step").prompt().len();
            if span.positions.end == known { Wanted::Last } else { Wanted::Nothing }
        };
        self.batch.fill(cache, ends_known_tokens);
        self.runner.step(&self.batch, &mut self.logits)?;
        self.cache.complete();
        Ok(())
    }

    /// Samples for every sequence whose known tokens have all been computed.
    fn take_tokens(
        &mut self,
        running: &mut [Running],
        watch: &mut dyn FnMut(Event) -> Flow,
    ) -> Result<(), GenerateError> {
        let mut row = 0;
        for request in running.iter_mut().filter(|request| request.finish.is_none()) {
            let sequence = self.cache.sequence(request.seq).expect("running");
            let (computed, known) = (sequence.computed(), sequence.prompt().len());
            let index = request.index;
            if request.tokens.is_empty() {
                let total = Tokens(request.request.prompt.len() as u32);
                if watch(Event::Prefill { index, done: computed, total }) == Flow::Cancel {
                    request.finish = Some(FinishReason::Cancelled);
                }
            }
            if computed == known {
                let sampled = request.sampler.sample(self.logits.row_mut(row), known.0, None);
                let token = sampled.expect("every token is allowed").token;
                row += 1;
                if request.finish.is_none() {
                    request.finish = take_token(request, token, known, self.max_len, watch);
                }
                if request.finish.is_none() {
                    self.cache.append(request.seq, token)?;
                }
            }
            if request.finish.is_some() {
                self.cache.free(request.seq).expect("not in a step");
            }
        }
        Ok(())
    }
}

/// Notes a sampled token; says how the request ended if it did.
fn take_token(
    request: &mut Running,
    token: u32,
    known: Tokens,
    max_len: Tokens,
    watch: &mut dyn FnMut(Event) -> Flow,
) -> Option<FinishReason> {
    if request.request.stop_tokens.contains(&token) {
        return Some(FinishReason::Stop);
    }
    request.tokens.push(token);
    if watch(Event::Token { index: request.index, token }) == Flow::Cancel {
        return Some(FinishReason::Cancelled);
    }
    let enough = request.tokens.len() >= request.request.max_tokens as usize;
    (enough || known + Tokens(1) >= max_len).then_some(FinishReason::Length)
}

impl std::fmt::Debug for Generator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generator").field("device", &self.device()).finish_non_exhaustive()
    }
}
