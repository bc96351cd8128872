//! Logits of a text itself: what the model expected at every position, rather than what it would say next.

use crate::batch::Wanted;
use crate::engine::Engine;
use crate::request::{Request, SubmitError};
use octavo_backend::BackendError;
use octavo_kv::{AdmitError, Claim, Reuse, ScheduleError};
use octavo_types::{SeqId, Tokens};

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
        let result = self.score_chunks(seq, len, each);
        if result.is_err() {
            self.cache.fail();
        }
        self.cache.free(seq).expect("no step is under way");
        result
    }

    fn score_chunks(
        &mut self,
        seq: SeqId,
        len: Tokens,
        each: &mut dyn FnMut(Tokens, &[f32]),
    ) -> Result<(), ScoreError> {
        let mut at = Tokens::ZERO;
        while at < len {
            let n = self.config.chunk.0.min(len - at);
            self.cache.schedule(seq, n, Claim::Running)?;
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
