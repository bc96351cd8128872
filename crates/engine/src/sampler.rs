//! From logits to a token.
//!
//! The choice depends on the logits, the request's parameters and the position alone: the random number for a
//! position is computed from the seed and the position, so that neither neighbours in the batch nor a preemption
//! changes what a request says.

use std::cmp::Ordering;
use std::collections::HashMap;

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
    pub logit_bias: Vec<(u32, f32)>,
    pub seed: u64,
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
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

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
        within("temperature", self.temperature, 0.0, 100.0, "between 0 and 100")?;
        within("top_p", self.top_p, f32::MIN_POSITIVE, 1.0, "above 0 and at most 1")?;
        within("min_p", self.min_p, 0.0, 1.0, "between 0 and 1")?;
        within(
            "repetition_penalty",
            self.repetition_penalty,
            f32::MIN_POSITIVE,
            100.0,
            "above 0 and at most 100",
        )?;
        within("presence_penalty", self.presence_penalty, -2.0, 2.0, "between -2 and 2")?;
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0, "between -2 and 2")?;
        for (_, bias) in &self.logit_bias {
            within("logit_bias", *bias, -100.0, 100.0, "between -100 and 100")?;
        }
        Ok(())
    }
}

/// Chooses the tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    in_prompt: HashMap<u32, ()>,
    generated: HashMap<u32, u32>,
    candidates: Vec<(f32, u32)>,
}

impl Sampler {
    pub fn new(params: SamplingParams, prompt: &[u32]) -> Result<Self, SamplingError> {
        params.validate()?;
        let in_prompt = if params.repetition_penalty == 1.0 {
            HashMap::new()
        } else {
            prompt.iter().map(|token| (*token, ())).collect()
        };
        Ok(Self { params, in_prompt, generated: HashMap::new(), candidates: Vec::new() })
    }

    /// Chooses the token at `position` of the sequence, and remembers it. `logits` is changed.
    pub fn sample(&mut self, logits: &mut [f32], position: u32) -> u32 {
        assert!(!logits.is_empty(), "a vocabulary has tokens");
        self.penalise(logits);
        let token = if self.params.temperature == 0.0 {
            likeliest(logits)
        } else {
            self.draw(logits, uniform(self.params.seed, position))
        };
        *self.generated.entry(token).or_default() += 1;
        token
    }

    fn penalise(&self, logits: &mut [f32]) {
        let params = &self.params;
        let mut change = |token: u32, change: &dyn Fn(f32) -> f32| {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = change(*logit);
            }
        };
        for &(token, bias) in &params.logit_bias {
            change(token, &|logit| logit + bias);
        }
        if params.repetition_penalty != 1.0 {
            let generated = self.generated.keys().filter(|token| !self.in_prompt.contains_key(token));
            for &token in self.in_prompt.keys().chain(generated) {
                let by = params.repetition_penalty;
                change(token, &|logit| if logit > 0.0 { logit / by } else { logit * by });
            }
        }
        if params.presence_penalty != 0.0 || params.frequency_penalty != 0.0 {
            for (&token, &count) in &self.generated {
                let by = params.presence_penalty + params.frequency_penalty * count as f32;
                change(token, &|logit| logit - by);
            }
        }
    }

    fn draw(&mut self, logits: &[f32], uniform: f64) -> u32 {
        let most = likeliest(logits);
        let (top, temperature) = (logits[most as usize], self.params.temperature);
        // Scaled so that the likeliest weighs 1: exp cannot overflow, and min_p compares directly.
        let weight = |logit: f32| ((logit - top) / temperature).exp();
        let min = self.params.min_p;
        self.candidates.clear();
        self.candidates.extend(
            (0u32..)
                .zip(logits)
                .map(|(token, logit)| (weight(*logit), token))
                .filter(|(w, _)| *w > 0.0 && *w >= min),
        );
        if self.candidates.is_empty() {
            return most; // every logit is NaN or minus infinity
        }
        let kept = keep_likeliest(&mut self.candidates, self.params.top_k, self.params.top_p);
        let total: f64 = kept.iter().map(|(weight, _)| f64::from(*weight)).sum();
        let mut left = uniform * total;
        for &(weight, token) in kept {
            left -= f64::from(weight);
            if left < 0.0 {
                return token;
            }
        }
        kept.last().expect("at least one is kept").1
    }
}

/// The token with the largest logit, the first of equals. NaN is never chosen if there is anything else.
fn likeliest(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] || logits[best].is_nan() && !logit.is_nan() {
            best = token;
        }
    }
    best as u32
}

/// The heavier first; of equals the lower token, so that the order is the same everywhere.
fn heavier(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Sorts the `top_k` heaviest to the front, and cuts where their share reaches `top_p`.
fn keep_likeliest(candidates: &mut [(f32, u32)], top_k: usize, top_p: f32) -> &[(f32, u32)] {
    let k = if top_k == 0 { candidates.len() } else { top_k.min(candidates.len()) };
    if top_p >= 1.0 {
        sort_front(candidates, k);
        return &candidates[..k];
    }
    let mut total: f64 = candidates.iter().map(|(weight, _)| f64::from(*weight)).sum();
    let mut sorted = 0;
    if k < candidates.len() {
        sort_front(candidates, k);
        sorted = k;
        total = candidates[..k].iter().map(|(weight, _)| f64::from(*weight)).sum();
    }
    // Few tokens carry nearly all of the weight: sort no more of them than needed.
    let mut front = 64;
    loop {
        let end = front.min(k);
        if sorted < end {
            sort_front(candidates, end);
            sorted = end;
        }
        let mut sum = 0.0;
        for (at, (weight, _)) in candidates[..end].iter().enumerate() {
            sum += f64::from(*weight);
            if sum >= total * f64::from(top_p) {
                return &candidates[..=at];
            }
        }
        if end == k {
            return &candidates[..k];
        }
        front *= 8;
    }
}

fn sort_front(candidates: &mut [(f32, u32)], k: usize) {
    if k < candidates.len() && k > 0 {
        candidates.select_nth_unstable_by(k - 1, heavier);
    }
    candidates[..k].sort_unstable_by(heavier);
}

/// A number in [0, 1) that depends on the seed and the position alone.
fn uniform(seed: u64, position: u32) -> f64 {
    // SplitMix64, keyed by seed and counted by position.
    let mut z = seed ^ u64::from(position).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    (z >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sampled(params: SamplingParams, logits: &[f32], draws: u32) -> Vec<u32> {
        let mut sampler = Sampler::new(params, &[]).unwrap();
        (0..draws)
            .map(|position| {
                sampler.generated.clear();
                sampler.sample(&mut logits.to_vec(), position)
            })
            .collect()
    }

    fn warm() -> SamplingParams {
        SamplingParams { temperature: 1.0, seed: 7, ..SamplingParams::default() }
    }

    #[test]
    fn without_temperature_the_first_of_the_largest_is_chosen() {
        assert_eq!(sampled(SamplingParams::default(), &[0.0, 3.0, 3.0, f32::NAN], 1), [1]);
        assert_eq!(sampled(SamplingParams::default(), &[f32::NAN, -5.0], 1), [1]);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [1.0f32, 2.0, 0.0];
        let draws = sampled(warm(), &logits, 40_000);
        let total: f32 = logits.iter().map(|l| l.exp()).sum();
        for (token, logit) in (0u32..).zip(logits) {
            let share = draws.iter().filter(|t| **t == token).count() as f32 / 40_000.0;
            assert!((share - logit.exp() / total).abs() < 0.01, "token {token}: {share}");
        }
    }

    #[test]
    fn a_position_draws_the_same_whatever_was_drawn_before() {
        let all = sampled(warm(), &[0.0; 50], 20);
        let mut late = Sampler::new(warm(), &[]).unwrap();
        assert_eq!(late.sample(&mut [0.0; 50], 13), all[13]);
        let other = sampled(SamplingParams { seed: 8, ..warm() }, &[0.0; 50], 20);
        assert_ne!(all, other);
    }

    #[test]
    fn top_k_keeps_the_k_likeliest() {
        let draws = sampled(SamplingParams { top_k: 2, ..warm() }, &[0.1, 0.3, 0.2, 0.0], 500);
        assert!(draws.iter().all(|t| [1, 2].contains(t)));
        assert!([1, 2].iter().all(|t| draws.contains(t)));
    }

    #[test]
    fn min_p_compares_with_the_likeliest() {
        let logits = [0.0, -0.5, -3.0];
        let draws = sampled(SamplingParams { min_p: 0.5, ..warm() }, &logits, 500);
        assert!(draws.iter().all(|t| *t < 2) && draws.contains(&1));
    }

    #[test]
    fn penalties_push_away_from_what_was_said() {
        let params = |presence_penalty, frequency_penalty, repetition_penalty| SamplingParams {
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
            ..SamplingParams::default()
        };
        let run = |params, prompt: &[u32], draws| {
            let mut sampler = Sampler::new(params, prompt).unwrap();
            (0..draws).map(|at| sampler.sample(&mut [1.0, 0.8, 0.5], at)).collect::<Vec<u32>>()
        };
        assert_eq!(run(params(0.0, 0.0, 1.0), &[], 3), [0, 0, 0]);
        assert_eq!(run(params(0.3, 0.0, 1.0), &[], 3), [0, 1, 0]);
        assert_eq!(run(params(0.0, 0.3, 1.0), &[], 4), [0, 1, 0, 1]);
        assert_eq!(run(params(0.0, 0.0, 2.0), &[], 2), [0, 1]);
        assert_eq!(run(params(0.0, 0.0, 2.0), &[0], 1), [1], "the prompt counts for repetition");
        assert_eq!(run(params(0.0, 2.0, 1.0), &[0], 1), [0], "but not for the other two");
    }

    #[test]
    fn a_bias_decides() {
        let params = SamplingParams { logit_bias: vec![(2, 100.0), (99, 5.0)], ..SamplingParams::default() };
        assert_eq!(sampled(params, &[1.0, 0.8, 0.5], 1), [2]);
    }

    #[test]
    fn parameters_out_of_range_are_refused_by_name() {
        let refused = |params: SamplingParams| Sampler::new(params, &[]).unwrap_err().to_string();
        let hot = SamplingParams { temperature: -1.0, ..warm() };
        assert_eq!(refused(hot), "temperature is -1: it must be between 0 and 100");
        assert!(refused(SamplingParams { top_p: 0.0, ..warm() }).starts_with("top_p"));
        assert!(refused(SamplingParams { min_p: f32::NAN, ..warm() }).starts_with("min_p"));
        assert!(
            refused(SamplingParams { repetition_penalty: 0.0, ..warm() }).starts_with("repetition_penalty")
        );
    }

    #[test]
    fn logits_that_are_all_broken_still_give_a_token() {
        assert!(sampled(warm(), &[f32::NAN; 4], 3).iter().all(|t| *t < 4));
        assert!(sampled(warm(), &[f32::NEG_INFINITY; 4], 3).iter().all(|t| *t < 4));
    }

    proptest! {
        /// The progressive sort keeps exactly what sorting everything keeps.
        #[test]
        fn top_p_and_top_k_agree_with_sorting_everything(
            weights in prop::collection::vec(0.001f32..1.0, 1..300),
            top_k in 0usize..400,
            top_p in 0.01f32..1.0,
        ) {
            let all: Vec<(f32, u32)> = weights.iter().copied().zip(0..).collect();
            let mut naive = all.clone();
            naive.sort_by(heavier);
            naive.truncate(if top_k == 0 { naive.len() } else { top_k });
            let total: f64 = naive.iter().map(|(w, _)| f64::from(*w)).sum();
            let mut sum = 0.0;
            let end = naive.iter().position(|(w, _)| { sum += f64::from(*w); sum >= total * f64::from(top_p) });
            naive.truncate(end.map_or(naive.len(), |end| end + 1));
            let mut candidates = all;
            let kept = keep_likeliest(&mut candidates, top_k, top_p);
            // Sums in another order differ in the last bits: at most one token at the edge.
            prop_assert!(kept.len().abs_diff(naive.len()) <= 1);
            let both = kept.len().min(naive.len());
            prop_assert_eq!(&kept[..both], &naive[..both]);
        }
    }
}
