//! How a generation ended, as one line of the log.

use crate::reply::body::finish_reason;
use crate::request_id::RequestId;
use crate::wire::error::ApiError;
use octavo::Event;
use std::time::Instant;
use tracing::Span;

/// Follows the events of a request; its end is logged when this is dropped.
#[derive(Debug)]
pub(crate) struct Ending {
    span: Span,
    begun: Instant,
    /// Generated so far, by prompt.
    tokens: Vec<u64>,
    /// How choices ended, each way once.
    reasons: Vec<&'static str>,
    how: How,
}

#[derive(Debug)]
enum How {
    /// Nobody waited for the end.
    Left,
    Whole,
    Failed(ApiError),
}

impl Ending {
    pub(crate) fn new(id: &RequestId, prompts: usize) -> Self {
        let (tokens, reasons) = (vec![0; prompts], Vec::new());
        Self { span: id.span(), begun: Instant::now(), tokens, reasons, how: How::Left }
    }

    pub(crate) fn note(&mut self, prompt: u32, event: &Event) {
        let tokens = &mut self.tokens[prompt as usize];
        match event {
            Event::Token(_) => *tokens += 1,
            // Of choices that are not returned, too.
            Event::Done(usage) => *tokens = usage.completion_tokens,
            Event::Finished(finished) => {
                let reason = finish_reason(finished.reason);
                if !self.reasons.contains(&reason) {
                    self.reasons.push(reason);
                }
            }
            Event::Failed(failure) => self.fail(failure.clone().into()),
            Event::Prefill { .. } | Event::PromptLogprobs(_) => {}
        }
    }

    pub(crate) fn fail(&mut self, error: ApiError) {
        self.how = How::Failed(error);
    }

    /// Everything was generated and handed on.
    pub(crate) fn complete(&mut self) {
        self.how = How::Whole;
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let _entered = self.span.enter();
        let tokens: u64 = self.tokens.iter().sum();
        let ms = self.begun.elapsed().as_millis() as u64;
        match &self.how {
            How::Left => tracing::info!(how = "client gone", tokens, ms, "generation ended"),
            How::Whole => tracing::info!(how = self.reasons.join(", "), tokens, ms, "generation ended"),
            How::Failed(error) => {
                let why = error.message();
                tracing::warn!(how = error.code(), why, tokens, ms, "generation ended");
            }
        }
    }
}
