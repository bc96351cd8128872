//! How likely a token was.

use octavo_backend::choice::{exp, largest, sum_by};

/// How likely the model found a token, and what it found likeliest.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    pub token: u32,
    /// Natural logarithm of the token's probability; minus infinity if the model rules it out.
    pub logprob: f32,
    /// 1 for the likeliest token; of equally likely ones the lower comes first.
    pub rank: u32,
    /// The likeliest tokens in order of rank. A token that the model rules out is not among them.
    pub top: Vec<(u32, f32)>,
}

/// How likely `token` is by `logits`, and the `top` likeliest. The distribution is the model's own: neither penalties
/// nor a temperature belong here.
pub fn logprobs_of(logits: &[f32], token: u32, top: u8) -> TokenLogprobs {
    let likeliest = largest(logits, usize::from(top).max(1), f32::NEG_INFINITY);
    let max = likeliest.first().map_or(0.0, |(logit, _)| *logit);
    // The likeliest adds 1, even where it is infinite.
    let log_sum = sum_by(logits, |logit| exp(logit - max)).max(1.0).ln();
    let logprob = |logit: f32| {
        // Infinities subtract to NaN; an infinite logit is certain.
        let relative = if logit == max { 0.0 } else { f64::from(logit) - f64::from(max) };
        let logprob = (relative - log_sum) as f32;
        if logprob.is_nan() { f32::NEG_INFINITY } else { logprob }
    };
    let logit = logits.get(token as usize).copied().unwrap_or(f32::NAN);
    TokenLogprobs {
        token,
        logprob: logprob(logit),
        rank: rank(logits, token, logit),
        top: likeliest[..likeliest.len().min(top.into())].iter().map(|(l, t)| (*t, logprob(*l))).collect(),
    }
}

fn rank(logits: &[f32], token: u32, logit: f32) -> u32 {
    // NaN is as good as ruled out.
    let logit = if logit.is_nan() { f32::NEG_INFINITY } else { logit };
    let (before, after) = logits.split_at(logits.len().min(token as usize));
    let ahead = before.iter().map(|l| u32::from(*l >= logit)).sum::<u32>();
    ahead + after.iter().map(|l| u32::from(*l > logit)).sum::<u32>() + 1
}
