//! Several continuations of one prompt, and what ends each.

mod fake;

use fake::{Bench, Fault, VOCAB, expected, logits_after, prompt};
use octavo_engine::{
    EngineConfig, Failure, FinishReason, MAX_LOGPROBS, Request, SamplingParams, ScoreError, SubmitError,
    logprobs_of,
};
use octavo_types::Tokens;
use std::sync::Arc;

fn sampled(who: u32, len: usize, max_tokens: u32) -> Request {
    let sampling = SamplingParams { temperature: 1.0, seed: 7, ..SamplingParams::default() };
    Request { sampling, ..Request::new(prompt(who, len), max_tokens) }
}

fn choices(n: u32, request: Request) -> Request {
    Request { choices: n, best_of: n, ..request }
}

#[test]
fn choices_share_the_pages_of_their_prompt_and_have_their_own_from_there() {
    let mut bench = Bench::small(48, 4, 4);
    let id = bench.send(choices(4, sampled(1, 18, 8)));
    bench.step();
    assert_eq!(bench.used(), 5, "all four are in the pages of the prompt");
    assert_eq!(bench.log.computed(), 18, "which was computed once");
    bench.step();
    assert_eq!(bench.used(), 4 + 4, "the last page, half full, was copied for all but one");
    assert_eq!(bench.log.steps()[1].len(), 4);
    bench.run();
    bench.assert_right(id);
    let outputs = bench.outputs(id);
    let mut texts: Vec<_> = outputs.choices.iter().map(|choice| &choice.tokens).collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 4, "each has its own stream");
    assert_eq!(outputs.usage.completion_tokens, 4 * 8);
    assert_eq!(outputs.usage.prompt_tokens, Tokens(18));
    bench.assert_nothing_left();
}

#[test]
fn choice_0_is_what_a_single_choice_would_be_and_a_seed_repeats_all_of_them() {
    let run = |n| {
        let mut bench = Bench::small(48, 4, 4);
        let id = bench.send(choices(n, sampled(1, 18, 8)));
        bench.run();
        bench.outputs(id).choices.into_iter().map(|choice| choice.tokens).collect::<Vec<_>>()
    };
    let four = run(4);
    assert_eq!(run(4), four);
    assert_eq!(run(1), four[..1]);
}

#[test]
fn the_likeliest_of_many_are_returned_best_first() {
    let mut bench = Bench::small(100, 4, 8);
    let all = choices(6, sampled(1, 10, 5));
    let best = Request { choices: 2, ..all.clone() };
    let id = bench.send(best.clone());
    bench.run();
    let mean = |tokens: &[u32]| {
        let mut text = all.prompt.clone();
        let logprobs = tokens.iter().map(|token| {
            let logprob = logprobs_of(&logits_after(&text), *token, 0).logprob;
            text.push(*token);
            f64::from(logprob)
        });
        logprobs.sum::<f64>() / tokens.len() as f64
    };
    let mut ranked: Vec<Vec<u32>> = (0..6).map(|choice| expected(&all, choice, Tokens(400))).collect();
    ranked.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    let outputs = bench.outputs(id);
    let found: Vec<_> = outputs.choices.iter().map(|choice| choice.tokens.clone()).collect();
    assert_eq!(found, ranked[..2]);
    assert!(outputs.choices.iter().all(|choice| choice.finish == Some(FinishReason::Length)));
    assert!(outputs.choices.iter().all(|choice| choice.logprobs.is_empty()), "nobody asked for them");
    assert_eq!(outputs.usage.completion_tokens, 30, "those not returned were computed too");
    bench.assert_nothing_left();
}

#[test]
fn single_choices_give_way_and_come_back() {
    let mut bench = Bench::small(12, 4, 4);
    let id = bench.send(choices(3, sampled(1, 14, 25)));
    bench.run();
    bench.assert_right(id);
    let preemptions = bench.outputs(id).usage.preemptions;
    assert!(preemptions > 0 && u64::from(preemptions) == bench.engine.metrics().preemptions.get());
    bench.assert_nothing_left();
}

/// Choices stand where their request stands, however late they begin.
#[test]
fn the_choices_of_an_older_request_do_not_give_way_to_a_younger_one() {
    let mut bench = Bench::small(12, 4, 4);
    let older = bench.send(choices(3, sampled(1, 7, 8)));
    let younger = bench.send(sampled(2, 8, 24));
    bench.run();
    bench.assert_all_right();
    assert_eq!(bench.began_in(younger), 0);
    let preemptions = [older, younger].map(|id| bench.outputs(id).usage.preemptions);
    assert_eq!(preemptions, [0, 1]);
}

#[test]
fn more_choices_than_a_batch_holds_are_refused() {
    let mut bench = Bench::small(48, 4, 4);
    let refused = bench.try_send(choices(5, sampled(1, 8, 2))).unwrap_err();
    assert_eq!(refused, SubmitError::Choices { asked: 5, most: 4 });
    assert_eq!(
        bench.try_send(choices(0, sampled(1, 8, 2))).unwrap_err().to_string(),
        "0 choices were asked for; between 1 and 4 can be had"
    );
    let too_many = Request { best_of: 5, ..sampled(1, 8, 2) };
    let refused = bench.try_send(too_many).unwrap_err();
    assert_eq!(refused, SubmitError::BestOfTooMany { best_of: 5, most: 4 });
    let none_best = Request { choices: 3, best_of: 2, ..sampled(1, 8, 2) };
    let refused = bench.try_send(none_best).unwrap_err();
    assert_eq!(refused, SubmitError::BestOf { choices: 3, best_of: 2 });
    assert_eq!(bench.engine.intake().waiting(), 0);
}

#[test]
fn choices_to_come_keep_their_places_in_the_batch() {
    let mut bench = Bench::small(48, 4, 4);
    bench.send(choices(3, sampled(1, 8, 6)));
    bench.send(choices(2, sampled(2, 8, 6)));
    bench.send(sampled(3, 8, 6));
    bench.run();
    bench.assert_all_right();
    assert!(bench.log.steps().iter().all(|spans| spans.len() <= 4));
}

#[test]
fn a_stop_token_ends_the_text_and_is_not_part_of_it_but_not_too_early() {
    let request = Request::new(prompt(1, 9), 12);
    let alone = expected(&request, 0, Tokens(400));
    // In any order, and more than once.
    let other = (0..64).rev().find(|token| !alone.contains(token)).unwrap();
    let stop_tokens: Arc<[u32]> = [other, other, other, alone[3]].into();
    let first = alone.iter().position(|token| *token == alone[3]).unwrap();
    for (min_tokens, most) in [(0, first), (5, 12)] {
        let mut bench = Bench::small(100, 4, 4);
        let id = bench.send(Request { stop_tokens: stop_tokens.clone(), min_tokens, ..request.clone() });
        bench.run();
        bench.assert_right(id);
        let choice = &bench.outputs(id).choices[0];
        assert!(choice.tokens.len() <= most && choice.tokens.len() >= min_tokens as usize);
        assert!(!choice.tokens.contains(&alone[3]));
        let ended_early = choice.tokens.len() < 12;
        let reason = if ended_early { FinishReason::Stop } else { FinishReason::Length };
        assert_eq!(choice.finish, Some(reason));
        bench.assert_nothing_left();
    }
}

#[test]
fn no_tokens_one_token_and_as_many_as_fit_can_be_asked_for() {
    for (max_tokens, got) in [(0, 0), (1, 1), (1000, 20)] {
        let config = EngineConfig::new(4, Tokens(30));
        let mut bench = Bench::new(config, Bench::pool(24, 4));
        let ids = [1, 2].map(|n| bench.send(choices(n, sampled(n, 10, max_tokens))));
        bench.run();
        bench.assert_all_right();
        for id in ids {
            for choice in bench.outputs(id).choices {
                assert_eq!(choice.tokens.len(), got);
                assert_eq!(choice.finish, Some(FinishReason::Length));
            }
        }
        bench.assert_nothing_left();
    }
}

#[test]
fn logprobs_are_those_of_the_model_and_come_only_if_asked_for() {
    let mut bench = Bench::small(100, 4, 4);
    for logprobs in [None, Some(0), Some(5), Some(MAX_LOGPROBS)] {
        let request = sampled(1, 9, 6);
        let sampling = SamplingParams { logprobs, ..request.sampling.clone() };
        let id = bench.send(Request { sampling, ..request });
        bench.run();
        bench.assert_right(id);
        let output = bench.outputs(id).choices.remove(0);
        let Some(top) = logprobs else {
            assert!(output.logprobs.is_empty());
            continue;
        };
        let mut text = prompt(1, 9);
        let alone = output.tokens.iter().map(|token| {
            let logprobs = logprobs_of(&logits_after(&text), *token, top);
            text.push(*token);
            logprobs
        });
        assert_eq!(output.logprobs, alone.collect::<Vec<_>>());
    }
}

#[test]
fn logprobs_of_the_model_are_not_changed_by_a_minimum_of_tokens() {
    let mut bench = Bench::small(100, 4, 4);
    let mut request = Request::new(prompt(1, 9), 1);
    let likeliest = expected(&request, 0, Tokens(400))[0];
    request.sampling.logprobs = Some(1);
    let id = bench.send(Request { stop_tokens: [likeliest].into(), min_tokens: 1, ..request });
    bench.run();
    bench.assert_right(id);
    let output = bench.outputs(id).choices.remove(0);
    assert_eq!(output.logprobs[0], logprobs_of(&logits_after(&prompt(1, 9)), output.tokens[0], 1));
    assert_eq!(output.logprobs[0].top[0].0, likeliest);
}

#[test]
fn prompt_logprobs_have_one_entry_a_token_whether_or_not_the_prompt_is_cached() {
    let config = EngineConfig { chunk: (Tokens(8), Tokens(8)), ..EngineConfig::new(4, Tokens(96)) };
    let mut bench = Bench::new(config, Bench::pool(24, 4));
    let text = prompt(1, 27);
    let request = Request { prompt_logprobs: Some(3), ..Request::new(text.clone(), 2) };
    let mut entries = vec![None];
    for at in 1..text.len() {
        entries.push(Some(logprobs_of(&logits_after(&text[..at]), text[at], 3)));
    }
    for _ in 0..2 {
        let id = bench.send(request.clone());
        bench.run();
        bench.assert_right(id);
        assert_eq!(bench.outputs(id).prompt_logprobs, entries);
        assert_eq!(bench.outputs(id).usage.cached_tokens, Tokens(0));
    }
    let plain = bench.send(Request::new(text, 2));
    bench.run();
    assert!(bench.outputs(plain).prompt_logprobs.is_empty());
    assert!(bench.outputs(plain).usage.cached_tokens > Tokens(0));
}

#[test]
fn a_text_is_scored_at_every_position_whether_or_not_it_is_cached() {
    let config = EngineConfig { chunk: (Tokens(8), Tokens(8)), ..EngineConfig::new(4, Tokens(96)) };
    let mut bench = Bench::new(config, Bench::pool(24, 4));
    let text = prompt(1, 27);
    for _ in 0..2 {
        let mut scored = Vec::new();
        bench.engine.score(text.clone(), &mut |at, logits| scored.push((at, logits.to_vec()))).unwrap();
        let alone = (0..27).map(|at| (Tokens(at), logits_after(&text[..=at as usize]).to_vec()));
        assert_eq!(scored, alone.collect::<Vec<_>>());
    }
    bench.faults.at(8, Fault::Error);
    let mut first = 0;
    let broken = bench.engine.score(text, &mut |_, _| first += 1);
    assert!(matches!(broken, Err(ScoreError::Backend(_))) && first == 0, "{broken:?}");
    bench.assert_nothing_left();
}

#[test]
fn prompt_logprobs_survive_preemption_and_come_once_for_all_choices() {
    let config = EngineConfig { chunk: (Tokens(8), Tokens(8)), ..EngineConfig::new(4, Tokens(48)) };
    let mut bench = Bench::new(config, Bench::pool(12, 4));
    let first = bench.send(Request::new(prompt(2, 4), 40));
    let request = Request { prompt_logprobs: Some(0), ..choices(2, sampled(1, 26, 3)) };
    let id = bench.send(request);
    bench.run();
    bench.assert_right(first);
    bench.assert_right(id);
    let outputs = bench.outputs(id);
    assert_eq!(outputs.prompt_logprobs.len(), 26);
    assert!(outputs.prompt_logprobs[1..].iter().all(Option::is_some));
    bench.assert_nothing_left();
}

#[test]
fn all_choices_fail_together() {
    let mut bench = Bench::small(48, 4, 4);
    let id = bench.send(choices(3, sampled(1, 8, 6)));
    bench.faults.at(2, Fault::Error);
    bench.run();
    let outputs = bench.outputs(id);
    assert!(matches!(outputs.failure, Some(Failure::Step(_))));
    bench.assert_nothing_left();
}

#[test]
fn cancelling_ends_the_choices_that_are_open() {
    let mut bench = Bench::small(48, 4, 4);
    let id = bench.send(choices(3, sampled(1, 8, 6)));
    bench.run_steps(3);
    bench.engine.cancel(id);
    bench.run();
    let outputs = bench.outputs(id);
    let ends: Vec<_> = outputs.choices.iter().map(|choice| (choice.tokens.len(), choice.finish)).collect();
    assert_eq!(ends, [(3, Some(FinishReason::Cancelled)); 3]);
    assert_eq!(outputs.usage.completion_tokens, 9);
    bench.assert_nothing_left();
}

#[test]
fn a_choice_that_has_ended_is_not_cancelled() {
    let mut bench = Bench::small(48, 4, 4);
    let request = choices(3, sampled(1, 8, 6));
    let alone: Vec<_> = (0..3).map(|choice| expected(&request, choice, Tokens(192))).collect();
    let stop = alone[1][1];
    assert!(!alone[1][..1].contains(&stop) && ![&alone[0][..3], &alone[2][..3]].concat().contains(&stop));
    let id = bench.send(Request { stop_tokens: [stop].into(), ..request });
    bench.run_steps(3);
    bench.engine.cancel(id);
    bench.run();
    let ends: Vec<_> = bench.outputs(id).choices.iter().map(|choice| choice.finish).collect();
    let cancelled = Some(FinishReason::Cancelled);
    assert_eq!(ends, [cancelled, Some(FinishReason::Stop), cancelled]);
    bench.assert_nothing_left();
}

#[test]
fn a_token_beyond_the_vocabulary_is_refused() {
    let mut bench = Bench::small(12, 4, 4);
    let refused = bench.try_send(Request::new(vec![1, VOCAB as u32], 1)).unwrap_err();
    assert_eq!(refused, SubmitError::NoSuchToken { token: VOCAB as u32, vocab: VOCAB });
    assert!(bench.try_send(Request::new(vec![1, VOCAB as u32 - 1], 1)).is_ok());
}

/// Where the logits alone decide, nobody needs to see them.
#[test]
fn the_device_is_told_how_to_choose_wherever_it_can() {
    let plain = sampled(1, 8, 4);
    let logprobs = SamplingParams { logprobs: Some(0), ..plain.sampling.clone() };
    let biased = SamplingParams { logit_bias: [(3, 1.0)].into(), ..plain.sampling.clone() };
    let penalised = SamplingParams { presence_penalty: 0.5, ..plain.sampling.clone() };
    for (request, by_device) in [
        (Request::new(prompt(1, 8), 4), true),
        (plain.clone(), true),
        (choices(2, plain.clone()), false),
        (Request { min_tokens: 1, ..plain.clone() }, false),
        (Request { sampling: logprobs, ..plain.clone() }, false),
        (Request { sampling: biased, ..plain.clone() }, false),
        (Request { sampling: penalised, ..plain }, false),
    ] {
        let config = EngineConfig::new(4, Tokens(48));
        let mut bench = Bench::with_runner(config, Bench::pool(12, 4), |runner| runner.wants_choices = true);
        let id = bench.send(request);
        bench.run();
        assert_eq!(bench.outputs(id).failure.is_none(), by_device, "{:?}", bench.requests[&id]);
    }
}
