//! Logits of a text itself: what the model expected at every position, rather than what it would say next.

use crate::batch::Wanted;
use crate::generate::{GenerateError, Generator};
use octavo_kv::{Claim, Prompt, Reuse, Scope, TooLong};
use octavo_types::{SeqId, Tokens};

impl Generator {
    /// Runs `tokens` through the model, chunk by chunk, and hands over each position with the logits of the token
    /// that follows it. Everything is computed, whatever is cached; nothing stays held.
    pub fn score(
        &mut self,
        tokens: Vec<u32>,
        each: &mut dyn FnMut(Tokens, &[f32]),
    ) -> Result<(), GenerateError> {
        let len = Tokens::of_len(tokens.len()).ok_or(TooLong(tokens.len()))?;
        if len == Tokens::ZERO {
            return Err(GenerateError::EmptyPrompt);
        }
        if len > self.max_len {
            return Err(GenerateError::PromptTooLong { prompt: len, max: self.max_len });
        }
        let prompt = Prompt::new(tokens, Scope::default(), self.cache.settings().page_size)?;
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
    ) -> Result<(), GenerateError> {
        let mut at = Tokens::ZERO;
        while at < len {
            let n = self.chunk.min(len - at);
            self.cache.schedule(seq, n, Claim::Running)?;
            self.batch.fill(&self.cache, |_| Wanted::All);
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
