//! From logits to a token.
//!
//! The choice depends on the logits, the request's parameters and the position alone: the random number for a
//! position is computed from the seed, the choice and the position, so that neither neighbours in the batch nor a
//! preemption changes what a request says.

mod logprobs;
mod mask;
mod params;
mod stream;
#[cfg(test)]
mod tests;

pub use logprobs::{TokenLogprobs, logprobs_of};
pub use mask::{NothingAllowed, TokenMask};
pub use params::{MAX_LOGPROBS, SamplingError, SamplingParams};

use octavo_backend::Choice;
use std::collections::{HashMap, HashSet};

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    pub token: u32,
    /// By the model's own distribution, before penalties, bias, mask and temperature; if asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Chooses the tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    stream: u64,
    in_prompt: HashSet<u32>,
    /// How often each token was generated; kept only where a penalty asks for it.
    generated: HashMap<u32, u32>,
}

impl Sampler {
    pub fn new(params: SamplingParams, prompt: &[u32]) -> Result<Self, SamplingError> {
        params.validate()?;
        let repeats = params.repetition_penalty != 1.0;
        let in_prompt = if repeats { prompt.iter().copied().collect() } else { HashSet::new() };
        let stream = stream::stream(params.seed, 0);
        Ok(Self { params, stream, in_prompt, generated: HashMap::new() })
    }

    /// A sampler that goes on from here with the random stream of another choice of the same request. Choice 0 has
    /// the stream that [`Sampler::new`] gives.
    pub fn fork(&self, choice: u32) -> Self {
        Self { stream: stream::stream(self.params.seed, choice), ..self.clone() }
    }

    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Chooses the token at `position` of the sequence, of those in `mask` if there is one, and remembers it.
    /// `logits` is changed. Without a mask there is always a token.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        position: u32,
        mask: Option<&TokenMask>,
    ) -> Result<Sampled, NothingAllowed> {
        assert!(!logits.is_empty(), "a vocabulary has tokens");
        // The model's distribution, if it is asked for and about to be lost.
        let raw = (self.params.logprobs.is_some() && self.changes_logits(mask)).then(|| logits.to_vec());
        let token = self.choose(logits, position, mask)?;
        if self.params.counts_generated() {
            *self.generated.entry(token).or_default() += 1;
        }
        let raw = raw.as_deref().unwrap_or(logits);
        let logprobs = self.params.logprobs.map(|top| logprobs_of(raw, token, top));
        Ok(Sampled { token, logprobs })
    }

    /// How the token at `position` is chosen once the logits are what they should be.
    fn choice(&self, position: u32) -> Choice {
        let SamplingParams { temperature, top_k, top_p, min_p, .. } = self.params;
        let top_k = u32::try_from(top_k).unwrap_or(u32::MAX);
        Choice { uniform: stream::uniform(self.stream, position), temperature, top_k, top_p, min_p }
    }

    /// The same for a device that has nothing but the model's logits; `None` where that is not enough, or where more
    /// than the token is asked for.
    pub fn choice_from_raw(&self, position: u32) -> Option<Choice> {
        let params = &self.params;
        let changed = !params.logit_bias.is_empty() || params.counts_generated();
        let choice = self.choice(position);
        (!changed && params.logprobs.is_none()).then_some(choice)
    }

    fn changes_logits(&self, mask: Option<&TokenMask>) -> bool {
        let params = &self.params;
        let biased = !params.logit_bias.is_empty() || params.counts_generated();
        biased || mask.is_some() || params.temperature != 0.0
    }

    fn choose(
        &self,
        logits: &mut [f32],
        position: u32,
        mask: Option<&TokenMask>,
    ) -> Result<u32, NothingAllowed> {
        self.penalise(logits);
        if let Some(mask) = mask {
            mask.apply(logits);
        }
        // Where everything is ruled out, nothing is likelier than the first.
        let token = self.choice(position).of(logits).unwrap_or(0);
        match mask {
            // The model rules out, or gives no number for, whatever is allowed: allowed is what counts.
            Some(mask) if !mask.allows(token) => {
                mask.first().filter(|token| (*token as usize) < logits.len()).ok_or(NothingAllowed)
            }
            _ => Ok(token),
        }
    }

    fn penalise(&self, logits: &mut [f32]) {
        let params = &self.params;
        let mut change = |token: u32, change: &dyn Fn(f32) -> f32| {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = change(*logit);
            }
        };
        for &(token, bias) in params.logit_bias.iter() {
            change(token, &|logit| logit + bias);
        }
        if params.repetition_penalty != 1.0 {
            let generated = self.generated.keys().filter(|token| !self.in_prompt.contains(token));
            for &token in self.in_prompt.iter().chain(generated) {
                let by = params.repetition_penalty;
                change(token, &|logit| if logit > 0.0 { logit / by } else { logit * by });
            }
        }
        if params.penalises_use() {
            for (&token, &count) in &self.generated {
                let by = params.presence_penalty + params.frequency_penalty * count as f32;
                change(token, &|logit| logit - by);
            }
        }
    }
}
