//! Requests in, outputs out, on the caller's thread.

use crate::engine::{Engine, Events};
use crate::event::{Event, Failure, FinishReason, NewToken, Usage};
use crate::request::{Request, RequestId, SubmitError};
use crate::sampler::TokenLogprobs;
use octavo_types::Timestamp;
use std::collections::HashMap;
use std::time::Instant;

/// One continuation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    pub tokens: Vec<u32>,
    /// Empty without a tokenizer.
    pub text: String,
    pub logprobs: Vec<TokenLogprobs>,
    /// None only while it is under way.
    pub finish: Option<FinishReason>,
    /// Which stop string ended it.
    pub matched: Option<usize>,
}

/// What one request became.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outputs {
    pub choices: Vec<Output>,
    pub prompt_logprobs: Vec<Option<TokenLogprobs>>,
    pub usage: Usage,
    pub failure: Option<Failure>,
}

impl Outputs {
    /// Adds what an event says.
    pub fn take(&mut self, event: Event) {
        match event {
            // Until it is done, which says all of it.
            Event::Prefill { total, cached, .. } => {
                (self.usage.prompt_tokens, self.usage.cached_tokens) = (total, cached);
            }
            Event::PromptLogprobs(logprobs) => self.prompt_logprobs = logprobs,
            Event::Token(NewToken { choice, token, text, logprobs }) => {
                self.usage.completion_tokens += 1;
                let output = self.choice(choice);
                output.tokens.push(token);
                output.text += &text;
                output.logprobs.extend(logprobs);
            }
            Event::Finished(end) => {
                let output = self.choice(end.choice);
                output.text += &end.text;
                output.finish = Some(end.reason);
                output.matched = end.matched;
            }
            Event::Done(usage) => self.usage = usage,
            Event::Failed(failure) => self.failure = Some(failure),
        }
    }

    fn choice(&mut self, choice: u32) -> &mut Output {
        let at = choice as usize;
        if self.choices.len() <= at {
            self.choices.resize(at + 1, Output::default());
        }
        &mut self.choices[at]
    }
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Continue,
    /// Ends the request that the event is about.
    Cancel,
}

impl Engine {
    /// Runs all requests to their end. `watch` sees every event as it happens, with the index of its request. All of
    /// them are checked before any begins.
    pub fn generate(
        &mut self,
        requests: Vec<Request>,
        watch: &mut dyn FnMut(usize, &Event) -> Flow,
    ) -> Result<Vec<Outputs>, SubmitError> {
        requests.iter().try_for_each(|request| self.intake.check(request))?;
        let mut outputs = vec![Outputs::default(); requests.len()];
        let mut index: HashMap<RequestId, usize> = HashMap::new();
        let mut to_come = requests.into_iter().enumerate().peekable();
        let (started, before) = (Instant::now(), self.now);
        let mut events = Events::new();
        while self.has_work() || to_come.peek().is_some() {
            // More than may wait are held back here.
            while self.intake.has_place()
                && let Some((at, request)) = to_come.next()
            {
                let accepted = self.intake.accept(request)?;
                index.insert(accepted.id(), at);
                self.submit(accepted);
            }
            let passed = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.step(Timestamp(before.0.saturating_add(passed)), &mut events);
            for (id, event) in events.drain(..) {
                let Some(&at) = index.get(&id) else { continue };
                if watch(at, &event) == Flow::Cancel {
                    self.cancel(id);
                }
                outputs[at].take(event);
            }
        }
        Ok(outputs)
    }
}
