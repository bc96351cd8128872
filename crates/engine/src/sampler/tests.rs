use super::*;
use octavo_backend::choice::{exp, keep_likeliest, largest, likeliest};
use proptest::prelude::*;

fn sampled(params: SamplingParams, logits: &[f32], draws: u32) -> Vec<u32> {
    let mut sampler = Sampler::new(params, &[]).unwrap();
    (0..draws)
        .map(|position| {
            sampler.generated.clear();
            chosen(&mut sampler, logits, position)
        })
        .collect()
}

fn chosen(sampler: &mut Sampler, logits: &[f32], position: u32) -> u32 {
    sampler.sample(&mut logits.to_vec(), position, None).unwrap().token
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
    assert_eq!(chosen(&mut late, &[0.0; 50], 13), all[13]);
    let other = sampled(SamplingParams { seed: 8, ..warm() }, &[0.0; 50], 20);
    assert_ne!(all, other);
}

#[test]
fn top_k_keeps_the_k_likeliest() {
    let draws = sampled(SamplingParams { top_k: 2, ..warm() }, &[0.1, 0.3, 0.2, 0.0], 500);
    assert!(draws.iter().all(|t| [1, 2].contains(t)));
    assert!([1, 2].iter().all(|t| draws.contains(t)));
    // More than there are is all of them, however many more.
    let draws = sampled(SamplingParams { top_k: (1 << 32) + 1, ..warm() }, &[0.1, 0.3, 0.2, 0.0], 500);
    assert!((0..4).all(|t| draws.contains(&t)));
}

/// Twice as hot, the weights are their square roots.
#[test]
fn the_temperature_divides_the_logits() {
    let logits = [2.0f32, 0.0];
    for temperature in [0.5f32, 2.0] {
        let draws = sampled(SamplingParams { temperature, ..warm() }, &logits, 40_000);
        let share = draws.iter().filter(|t| **t == 1).count() as f32 / 40_000.0;
        let right = 1.0 / (1.0 + (2.0 / temperature).exp());
        assert!((share - right).abs() < 0.01, "at {temperature}: {share}, not {right}");
    }
}

#[test]
fn min_p_compares_with_the_likeliest() {
    let logits = [0.0, -0.5, -3.0];
    let draws = sampled(SamplingParams { min_p: 0.5, ..warm() }, &logits, 500);
    assert!(draws.iter().all(|t| *t < 2) && draws.contains(&1));
    let draws = sampled(SamplingParams { min_p: 1.0, ..warm() }, &[0.5, 0.5, 0.4], 500);
    assert!(draws.iter().all(|t| *t < 2) && draws.contains(&0) && draws.contains(&1), "as likely counts");
}

#[test]
fn top_p_keeps_the_fewest_that_reach_it() {
    // Sums of these are exact.
    let weights = [0.125, 0.5, 0.0625, 0.25, 0.0625];
    for (top_p, kept) in [(0.25, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.875, 3), (0.9, 4), (1.0, 5)] {
        for top_k in [0, 5] {
            assert_eq!(keep_likeliest(&weights, top_k, top_p).len(), kept, "{top_p}, {top_k}");
        }
    }
}

/// Larger than what is added up at once.
#[test]
fn draws_from_a_large_vocabulary_follow_the_probabilities() {
    let mut logits = [f32::NEG_INFINITY; 1000];
    let likely = [3, 300, 301, 999];
    likely.into_iter().for_each(|token| logits[token] = 1.0);
    let draws = sampled(warm(), &logits, 20_000);
    for token in likely {
        let share = draws.iter().filter(|t| **t as usize == token).count() as f32 / 20_000.0;
        assert!((share - 0.25).abs() < 0.02, "token {token}: {share}");
    }
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
        (0..draws).map(|at| chosen(&mut sampler, &[1.0, 0.8, 0.5], at)).collect::<Vec<u32>>()
    };
    assert_eq!(run(params(0.0, 0.0, 1.0), &[], 3), [0, 0, 0]);
    assert_eq!(run(params(0.3, 0.0, 1.0), &[], 3), [0, 1, 0]);
    assert_eq!(run(params(0.0, 0.3, 1.0), &[], 4), [0, 1, 0, 1]);
    assert_eq!(run(params(0.0, 0.0, 2.0), &[], 2), [0, 1]);
    assert_eq!(run(params(0.0, 0.0, 2.0), &[0], 1), [1], "the prompt counts for repetition");
    assert_eq!(run(params(0.0, 2.0, 1.0), &[0], 1), [0], "but not for the other two");
    assert_eq!(run(params(0.0, 0.0, 1.2), &[0], 2), [0, 0], "once, be it said in the prompt and after it");
    let mut below = Sampler::new(params(0.0, 0.0, 2.0), &[0]).unwrap();
    assert_eq!(chosen(&mut below, &[-1.0, -1.5], 0), 1, "below zero it multiplies");
}

#[test]
fn a_bias_decides() {
    let params = SamplingParams { logit_bias: [(2, 100.0), (99, 5.0)].into(), ..SamplingParams::default() };
    assert_eq!(sampled(params, &[1.0, 0.8, 0.5], 1), [2]);
}

#[test]
fn parameters_out_of_range_are_refused_by_name() {
    let refused = |params: SamplingParams| Sampler::new(params, &[]).unwrap_err().to_string();
    let hot = SamplingParams { temperature: -1.0, ..warm() };
    assert_eq!(refused(hot), "temperature is -1: it must be between 0 and 100");
    assert!(refused(SamplingParams { top_p: 0.0, ..warm() }).starts_with("top_p"));
    assert!(refused(SamplingParams { min_p: f32::NAN, ..warm() }).starts_with("min_p"));
    assert!(refused(SamplingParams { repetition_penalty: 0.0, ..warm() }).starts_with("repetition_penalty"));
    for value in [-0.1, 1.1, 100.1] {
        assert!(refused(SamplingParams { top_p: value, ..warm() }).starts_with("top_p"));
        assert!(refused(SamplingParams { min_p: value, ..warm() }).starts_with("min_p"));
    }
    for value in [-2.1, 2.1] {
        let refused_by = refused(SamplingParams { presence_penalty: value, ..warm() });
        assert!(refused_by.starts_with("presence_penalty"), "{refused_by}");
        let refused_by = refused(SamplingParams { frequency_penalty: value, ..warm() });
        assert!(refused_by.starts_with("frequency_penalty"), "{refused_by}");
    }
    for value in [-100.1, 100.1] {
        assert!(refused(SamplingParams { temperature: value, ..warm() }).starts_with("temperature"));
        let repeated = refused(SamplingParams { repetition_penalty: value, ..warm() });
        assert!(repeated.starts_with("repetition_penalty"), "{repeated}");
        let biased = refused(SamplingParams { logit_bias: [(1, value)].into(), ..warm() });
        assert!(biased.starts_with("logit_bias"), "{biased}");
    }
    let refusal = refused(SamplingParams { logprobs: Some(21), ..warm() });
    assert_eq!(refusal, "logprobs is 21: it must be at most 20");
}

#[test]
fn logits_that_are_all_broken_still_give_a_token() {
    assert!(sampled(warm(), &[f32::NAN; 4], 3).iter().all(|t| *t < 4));
    assert!(sampled(warm(), &[f32::NEG_INFINITY; 4], 3).iter().all(|t| *t < 4));
}

#[test]
fn the_first_choice_draws_as_the_request_and_others_differ() {
    let tokens =
        |mut sampler: Sampler| (0..40).map(|at| chosen(&mut sampler, &[0.0; 50], at)).collect::<Vec<_>>();
    let sampler = Sampler::new(warm(), &[]).unwrap();
    let choices: Vec<_> = (0..4).map(|choice| tokens(sampler.fork(choice))).collect();
    assert_eq!(choices[0], tokens(sampler.clone()));
    assert_eq!(choices[2], tokens(sampler.fork(1).fork(2)), "a fork's fork is a choice of the same request");
    for (a, b) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
        let same = choices[a].iter().zip(&choices[b]).filter(|(a, b)| a == b).count();
        assert!(same < 6, "choices {a} and {b} agree {same} times");
    }
}

#[test]
fn a_fork_knows_what_was_said() {
    let params = SamplingParams { presence_penalty: 2.0, ..SamplingParams::default() };
    let mut sampler = Sampler::new(params, &[]).unwrap();
    assert_eq!(chosen(&mut sampler, &[1.0, 0.0], 0), 0);
    assert_eq!(chosen(&mut sampler.fork(3), &[1.0, 0.0], 1), 1);
}

#[test]
fn only_what_the_mask_allows_is_chosen() {
    let mask: TokenMask = [3, 40].into_iter().collect();
    let mut logits = [0.0f32; 100];
    logits[7] = 9.0;
    logits[40] = 1.0;
    for params in [SamplingParams::default(), warm(), SamplingParams { top_p: 0.9, ..warm() }] {
        let mut sampler = Sampler::new(params, &[]).unwrap();
        for position in 0..50 {
            let token = sampler.sample(&mut logits.clone(), position, Some(&mask)).unwrap().token;
            assert!(mask.allows(token), "{token}");
        }
    }
    let mut greedy = Sampler::new(SamplingParams::default(), &[]).unwrap();
    assert_eq!(greedy.sample(&mut logits, 0, Some(&mask)).unwrap().token, 40);
}

#[test]
fn what_is_allowed_counts_even_where_the_model_rules_it_out() {
    let mask: TokenMask = [2].into_iter().collect();
    for params in [SamplingParams::default(), warm()] {
        let mut sampler = Sampler::new(params, &[]).unwrap();
        for broken in [f32::NAN, f32::NEG_INFINITY] {
            let sampled = sampler.sample(&mut [1.0, 1.0, broken, 1.0], 0, Some(&mask));
            assert_eq!(sampled.unwrap().token, 2);
        }
    }
}

#[test]
fn a_mask_that_allows_nothing_is_an_error() {
    for mask in [TokenMask::default(), [900].into_iter().collect()] {
        for params in [SamplingParams::default(), warm()] {
            let mut sampler = Sampler::new(params, &[]).unwrap();
            assert_eq!(sampler.sample(&mut [1.0; 40], 0, Some(&mask)), Err(NothingAllowed));
        }
    }
}

#[test]
fn a_mask_lists_its_tokens() {
    let mask: TokenMask = [70, 0, 31, 32].into_iter().collect();
    assert_eq!(mask.iter().collect::<Vec<_>>(), [0, 31, 32, 70]);
    assert_eq!((mask.count(), mask.first(), mask.is_empty()), (4, Some(0), false));
    assert!(!mask.allows(1) && !mask.allows(5000));
}

#[test]
fn logprobs_are_of_the_models_own_distribution() {
    let logits = [1.0f32, 3.0, 2.0, 3.0];
    let total: f32 = logits.iter().map(|l| l.exp()).sum();
    let expected = |token: usize| (logits[token].exp() / total).ln();
    let mask: TokenMask = [0].into_iter().collect();
    let changed = SamplingParams {
        temperature: 0.3,
        logit_bias: [(1, -50.0)].into(),
        repetition_penalty: 2.0,
        logprobs: Some(3),
        ..SamplingParams::default()
    };
    let mut sampler = Sampler::new(changed, &[1, 2]).unwrap();
    let sampled = sampler.sample(&mut logits.clone(), 0, Some(&mask)).unwrap();
    let logprobs = sampled.logprobs.unwrap();
    assert_eq!((sampled.token, logprobs.token, logprobs.rank), (0, 0, 4));
    assert!((logprobs.logprob - expected(0)).abs() < 1e-6);
    assert_eq!(logprobs.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [1, 3, 2]);
    for (token, logprob) in logprobs.top {
        assert!((logprob - expected(token as usize)).abs() < 1e-6);
    }
}

#[test]
fn nothing_that_changes_the_choice_changes_the_logprobs() {
    let logits = [1.0f32, 3.0, 2.0, 3.0];
    let mask: TokenMask = [0, 2].into_iter().collect();
    let asked = SamplingParams { logprobs: Some(4), ..SamplingParams::default() };
    let changes = [
        (SamplingParams { temperature: 0.7, ..asked.clone() }, None),
        (SamplingParams { logit_bias: [(2, 9.0)].into(), ..asked.clone() }, None),
        (SamplingParams { repetition_penalty: 9.0, ..asked.clone() }, None),
        (SamplingParams { presence_penalty: 2.0, ..asked.clone() }, None),
        (asked, Some(&mask)),
    ];
    for (params, mask) in changes {
        let mut sampler = Sampler::new(params, &[1]).unwrap();
        for position in 0..3 {
            let sampled = sampler.sample(&mut logits.clone(), position, mask).unwrap();
            assert_eq!(sampled.logprobs, Some(logprobs_of(&logits, sampled.token, 4)));
        }
    }
}

#[test]
fn without_alternatives_only_the_chosen_token_is_told() {
    let mut sampler =
        Sampler::new(SamplingParams { logprobs: Some(0), ..SamplingParams::default() }, &[]).unwrap();
    let logprobs = sampler.sample(&mut [0.0, 0.0], 0, None).unwrap().logprobs.unwrap();
    assert_eq!((logprobs.rank, logprobs.top.len()), (1, 0));
    assert!((logprobs.logprob - 0.5f32.ln()).abs() < 1e-6);
}

#[test]
fn logprobs_of_broken_logits_are_numbers() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let certain = logprobs_of(&[0.0, inf, 1.0], 1, 2);
    assert_eq!((certain.logprob, certain.rank, certain.top[0]), (0.0, 1, (1, 0.0)));
    assert_eq!(logprobs_of(&[0.0, nan, 1.0], 1, 5).logprob, -inf);
    assert_eq!(logprobs_of(&[0.0, nan, 1.0], 1, 5).top.len(), 2);
    assert_eq!(logprobs_of(&[0.0, nan, 1.0], 1, 5).rank, 3);
    assert_eq!(logprobs_of(&[nan; 3], 2, 1), TokenLogprobs { token: 2, logprob: -inf, rank: 1, top: vec![] });
    assert_eq!(logprobs_of(&[1.0], 9, 1).logprob, -inf);
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
        let mut naive = all;
        naive.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        naive.truncate(if top_k == 0 { naive.len() } else { top_k });
        let total: f64 = naive.iter().map(|(w, _)| f64::from(*w)).sum();
        let mut sum = 0.0;
        let end = naive.iter().position(|(w, _)| { sum += f64::from(*w); sum >= total * f64::from(top_p) });
        naive.truncate(end.map_or(naive.len(), |end| end + 1));
        let kept = keep_likeliest(&weights, top_k, top_p);
        // Sums in another order differ in the last bits: at most one token at the edge.
        prop_assert!(kept.len().abs_diff(naive.len()) <= 1);
        let both = kept.len().min(naive.len());
        prop_assert_eq!(&kept[..both], &naive[..both]);
    }

    #[test]
    fn scans_find_what_sorting_finds(
        logits in prop::collection::vec(prop_oneof![
            (-5i8..5).prop_map(f32::from), Just(f32::NAN), Just(f32::NEG_INFINITY)
        ], 1..1500),
        k in 1usize..1400,
    ) {
        let mut naive: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
        naive.retain(|(logit, _)| *logit > f32::NEG_INFINITY);
        naive.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        prop_assert_eq!(likeliest(&logits), naive.first().map(|(_, token)| *token));
        let ranks: Vec<u32> = naive.iter().take(20).map(|(_, t)| logprobs_of(&logits, *t, 0).rank).collect();
        prop_assert_eq!(ranks, (1..=naive.len().min(20) as u32).collect::<Vec<_>>());
        naive.truncate(k);
        prop_assert_eq!(largest(&logits, k, f32::NEG_INFINITY), naive);
    }

    #[test]
    fn the_exponential_is_right_to_two_units_in_the_last_place(x in -86.9f32..=0.0) {
        let exact = f64::from(x).exp() as f32;
        prop_assert!(exp(x).to_bits().abs_diff(exact.to_bits()) <= 2, "{} {}", exp(x), exact);
    }
}
