//! Logits of a text itself: what the model expected at every position, rather than what it would say next.

use crate::batch::Wanted;
use crate::engine::Engine;
use crate::plan::is_for_lack_of_pages;
use crate::request::{Request, SubmitError};
use octavo_backend::BackendError;
use octavo_kv::{AdmitError, Claim, Reuse, ScheduleError};
use octavo_types::{SeqId, Tokens};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Why a text was not scored.
#[derive(Debug, thiserror::Error)]
pub enum ScoreError {
    #[error("requests are under way: score when they have ended")]
    Busy,
    #[error(transparent)]
    Refused(#[from] SubmitError),
    #[error(transparent)]
    Admit(#[from] AdmitError),
    #[error("the text does not fit the KV cache: {0}; give it more memory")]
    Schedule(#[from] ScheduleError),
    #[error("freed pages could not be zeroed: {0}")]
    Zeroing(String),
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl Engine {
    /// Runs `tokens` through the model, chunk by chunk, and hands over each position with the logits of the token
    /// that follows it. Everything is computed, whatever is cached; nothing stays held.
    pub fn score(
        &mut self,
        tokens: Vec<u32>,
        each: &mut dyn FnMut(Tokens, &[f32]),
    ) -> Result<(), ScoreError> {
        if self.has_work() {
            return Err(ScoreError::Busy);
        }
        let prompt = self.intake.accept(Request::new(tokens, 0))?.prompt;
        let len = prompt.len();
        let (seq, _) = self.cache.admit(prompt, Reuse::Nothing)?;
        let result = catch_unwind(AssertUnwindSafe(|| self.score_chunks(seq, len, each)));
        if !matches!(result, Ok(Ok(()))) {
            self.cache.fail();
        }
        self.cache.free(seq).expect("no step is under way");
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Up to a chunk of what is left, and less where a window has no room for all of it at once.
    fn schedule_chunk(&mut self, seq: SeqId, left: Tokens) -> Result<Tokens, ScheduleError> {
        let mut n = self.config.chunk.0.min(left);
        loop {
            match self.cache.schedule(seq, n, Claim::Running) {
                Ok(_) => return Ok(n),
                Err(error) if n == Tokens(1) || !is_for_lack_of_pages(&error) => return Err(error),
                Err(_) => n = Tokens(n.0 / 2),
            }
        }
    }

    fn score_chunks(
        &mut self,
        seq: SeqId,
        len: Tokens,
        each: &mut dyn FnMut(Tokens, &[f32]),
    ) -> Result<(), ScoreError> {
        let mut at = Tokens::ZERO;
        while at < len {
            let n = self.schedule_chunk(seq, len - at)?;
            self.batch.fill(&self.cache, |_| Wanted::All);
            self.zero_freed().map_err(|broken| ScoreError::Zeroing(broken.reason))?;
            self.runner.step(&self.batch, &mut self.logits)?;
            self.cache.complete();
            for row in 0..n.0 {
                each(at + Tokens(row), self.logits.row(row as usize));
            }
            at += n;
        }
        Ok(())
    }
}
