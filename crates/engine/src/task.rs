//! One choice of a request on its way: what it needs to go on wherever it stopped.

use crate::constraint::Constraint;
use crate::event::FinishReason;
use crate::request::{Request, RequestId};
use crate::sampler::{Sampler, TokenLogprobs};
use octavo_backend::Choice;
use octavo_text::{SpecialTokens, StopStrings, TextStream, Tokenizer};
use octavo_types::{SeqId, Timestamp, Tokens};
use std::sync::Arc;
use std::time::Duration;

/// Who goes first: the lower. Waiting counts as priority, so that arrival and priority are one number; requests of
/// one moment go in the order of their ids, their choices in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Order {
    due: i64,
    request: RequestId,
    choice: u32,
}

impl Order {
    pub(crate) fn new(arrival: Timestamp, request: &Request, id: RequestId, aging: Duration) -> Self {
        let a_step = i64::try_from(aging.as_micros()).unwrap_or(i64::MAX);
        let arrival = i64::try_from(arrival.0).unwrap_or(i64::MAX);
        let due = arrival.saturating_add(a_step.saturating_mul(request.priority.into()));
        Self { due, request: id, choice: 0 }
    }
}

/// What the choices of a request have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: RequestId,
    pub(crate) request: Request,
    pub(crate) prompt_len: Tokens,
    pub(crate) deadline: Option<Timestamp>,
}

/// Text as it grows.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) stream: TextStream,
    pub(crate) stops: Option<StopStrings>,
}

impl Text {
    fn new(tokenizer: &Tokenizer, stops: Option<StopStrings>) -> Self {
        Self { stream: tokenizer.stream(SpecialTokens::Skip), stops }
    }

    /// Text that is final with a token, and which stop string it completes, if the text may end.
    pub(crate) fn push(&mut self, token: u32, may_end: bool) -> (String, Option<usize>) {
        let text = self.stream.push(token).unwrap_or_default();
        match &mut self.stops {
            Some(stops) if may_end => {
                let pushed = stops.push(&text);
                (pushed.text, pushed.stopped)
            }
            Some(stops) => (stops.pass(&text), None),
            None => (text, None),
        }
    }

    /// What was held back, and which stop string ended the text, be it that only this completes it. Nothing after
    /// a stop string.
    pub(crate) fn finish(self) -> (String, Option<usize>) {
        let rest = self.stream.finish();
        match self.stops {
            Some(mut stops) => {
                let pushed = stops.push(&rest);
                (pushed.text + &stops.finish(), pushed.stopped)
            }
            None => (rest, None),
        }
    }
}

/// Large, and looked at only when something is chosen for it: those who hold it hold it boxed.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) shared: Arc<Shared>,
    pub(crate) order: Order,
    pub(crate) choice: u32,
    pub(crate) sampler: Sampler,
    pub(crate) constraint: Option<Constraint>,
    /// None without a tokenizer.
    pub(crate) text: Option<Text>,
    pub(crate) generated: u32,
    /// Tokens whose logprobs were added up, where the best are to be chosen: those generated, and the one that ended them.
    pub(crate) scored: u32,
    /// Sum of those logprobs.
    pub(crate) logprob: f64,
    /// By position; empty once they were sent.
    pub(crate) prompt_logprobs: Vec<Option<TokenLogprobs>>,
    pub(crate) last_token: Option<Timestamp>,
    /// How much of the prompt was last said to have been read.
    pub(crate) progress: Tokens,
    /// Tokens that had been computed when it was last preempted.
    pub(crate) computed_before: Tokens,
}

impl Task {
    /// The first choice of a request that was just taken in.
    pub(crate) fn new(
        id: RequestId,
        request: Request,
        prompt_len: Tokens,
        arrival: Timestamp,
        tokenizer: Option<&Tokenizer>,
        aging: Duration,
        time_limit: Option<Duration>,
    ) -> Self {
        let limit = request.time_limit.or(time_limit);
        let deadline = limit.map(|limit| {
            let left = limit.saturating_sub(request.waited);
            Timestamp(arrival.0.saturating_add(u64::try_from(left.as_micros()).unwrap_or(u64::MAX)))
        });
        let mut params = request.sampling.clone();
        if request.best_of > request.choices {
            params.logprobs = params.logprobs.or(Some(0));
        }
        let sampler = Sampler::new(params, &request.prompt).expect("checked when it was accepted");
        let order = Order::new(arrival, &request, id, aging);
        let prompt_logprobs = match request.prompt_logprobs {
            Some(_) => vec![None; prompt_len.as_usize()],
            None => Vec::new(),
        };
        Self {
            order,
            choice: 0,
            sampler,
            constraint: request.constraint.clone(),
            text: tokenizer.map(|tokenizer| Text::new(tokenizer, request.stop_strings.clone())),
            generated: 0,
            scored: 0,
            logprob: 0.0,
            prompt_logprobs,
            last_token: None,
            progress: Tokens::ZERO,
            computed_before: Tokens::ZERO,
            shared: Arc::new(Shared { id, request, prompt_len, deadline }),
        }
    }

    /// Another choice of the same request, of which nothing has been generated yet.
    pub(crate) fn fork(&self, choice: u32, tokenizer: Option<&Tokenizer>) -> Self {
        let request = &self.shared.request;
        Self {
            shared: self.shared.clone(),
            order: Order { choice, ..self.order },
            choice,
            sampler: self.sampler.fork(choice),
            constraint: request.constraint.clone(),
            text: tokenizer.map(|tokenizer| Text::new(tokenizer, request.stop_strings.clone())),
            generated: 0,
            scored: 0,
            logprob: 0.0,
            prompt_logprobs: Vec::new(),
            last_token: None,
            progress: Tokens::ZERO,
            computed_before: Tokens::ZERO,
        }
    }

    pub(crate) fn id(&self) -> RequestId {
        self.shared.id
    }

    /// Choices that come into being when its prompt has been read.
    pub(crate) fn forks_to_come(&self) -> u32 {
        if self.choice == 0 && self.generated == 0 { self.shared.request.best_of - 1 } else { 0 }
    }

    /// How the token after the `known` ones is chosen, where the model's logits alone decide that.
    pub(crate) fn choice_from_raw(&self, known: Tokens) -> Option<Choice> {
        let request = &self.shared.request;
        let masked = self.constraint.is_some() || self.generated < request.min_tokens;
        if masked || self.forks_to_come() > 0 {
            return None;
        }
        self.sampler.choice_from_raw(known.0)
    }

    pub(crate) fn wants_prompt_logprobs(&self) -> bool {
        !self.prompt_logprobs.is_empty()
    }
}

/// A task with a sequence in the cache.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) task: Box<Task>,
    pub(crate) seq: SeqId,
    pub(crate) deadline: Option<Timestamp>,
    /// Whether it has tokens to compute before the next can be chosen, beside the last.
    pub(crate) reading: bool,
    /// Whether it was admitted as the only one, sharing nothing: there is no more room to be made for it.
    pub(crate) started_over: bool,
    /// Which span of the open step is its own.
    pub(crate) span: Option<usize>,
    pub(crate) finished: Option<FinishReason>,
}

impl Running {
    /// A sequence that was just admitted.
    pub(crate) fn new(task: Box<Task>, seq: SeqId) -> Self {
        let deadline = task.shared.deadline;
        Self { task, seq, deadline, reading: true, started_over: false, span: None, finished: None }
    }

    pub(crate) fn order(&self) -> Order {
        self.task.order
    }
}
