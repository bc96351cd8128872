//! How a request wants its tokens chosen.

use std::sync::Arc;

/// The most alternatives that a token's logprobs list.
pub const MAX_LOGPROBS: u8 = 20;

/// How tokens are chosen. The defaults choose the likeliest.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 chooses the likeliest token.
    pub temperature: f32,
    /// Only the k likeliest; 0 for all.
    pub top_k: usize,
    /// Only the likeliest whose probabilities add up to this.
    pub top_p: f32,
    /// Only those at least this fraction as likely as the likeliest.
    pub min_p: f32,
    /// Divides (or multiplies, below zero) the logits of every token seen so far, prompt included.
    pub repetition_penalty: f32,
    /// Subtracted once from the logits of every generated token.
    pub presence_penalty: f32,
    /// Subtracted for every time a token was generated.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens.
    pub logit_bias: Arc<[(u32, f32)]>,
    pub seed: u64,
    /// Says how likely each chosen token was, and so many of the likeliest; 0 for the chosen one alone.
    pub logprobs: Option<u8>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Arc::default(),
            seed: 0,
            logprobs: None,
        }
    }
}

/// A parameter that is out of range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{name} is {value}: it must be {range}")]
pub struct SamplingError {
    pub name: &'static str,
    pub value: f32,
    pub range: &'static str,
}

impl SamplingParams {
    /// Refuses what makes no sense.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let within = |name, value: f32, low: f32, high: f32, range| {
            if value >= low && value <= high { Ok(()) } else { Err(SamplingError { name, value, range }) }
        };
        let tiny = f32::MIN_POSITIVE;
        within("temperature", self.temperature, 0.0, 100.0, "between 0 and 100")?;
        within("top_p", self.top_p, tiny, 1.0, "above 0 and at most 1")?;
        within("min_p", self.min_p, 0.0, 1.0, "between 0 and 1")?;
        within("repetition_penalty", self.repetition_penalty, tiny, 100.0, "above 0 and at most 100")?;
        within("presence_penalty", self.presence_penalty, -2.0, 2.0, "between -2 and 2")?;
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0, "between -2 and 2")?;
        for (_, bias) in self.logit_bias.iter() {
            within("logit_bias", *bias, -100.0, 100.0, "between -100 and 100")?;
        }
        let logprobs = f32::from(self.logprobs.unwrap_or(0));
        within("logprobs", logprobs, 0.0, f32::from(MAX_LOGPROBS), "at most 20")
    }

    /// Whether what was generated so far changes what comes next.
    pub(super) fn counts_generated(&self) -> bool {
        self.penalises_use() || self.repetition_penalty != 1.0
    }

    pub(super) fn penalises_use(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}
