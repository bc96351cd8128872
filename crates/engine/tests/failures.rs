//! What goes wrong hurts those it concerns and nobody else.

mod fake;

use fake::{Bench, Fault, expected, prompt};
use octavo_engine::{
    EngineConfig, Event, Failure, FinishReason, Request, RequestId, SamplingParams, ScoreError, SubmitError,
};
use octavo_kv::Settings;
use octavo_types::{Pages, Timestamp, Tokens};
use proptest::prelude::*;
use std::time::Duration;

const FAULTS: [(Fault, &str); 6] = [
    (Fault::NotStarted, "a step failed: the device failed: it is on strike"),
    (Fault::PanicAtStart, "a step failed: panic: the queue is gone"),
    (Fault::Error, "a step failed: the device failed: it is on fire"),
    (Fault::Panic, "a step failed: panic: the kernel is gone"),
    (Fault::TooFewRows, "a step failed: the runner returned 0 rows of logits where 2 were wanted"),
    (Fault::TooManyRows, "a step failed: the runner returned 3 rows of logits where 2 were wanted"),
];

#[test]
fn a_failed_step_hurts_those_in_it_who_are_told_why_and_nobody_else() {
    for (fault, says) in FAULTS {
        let mut bench = Bench::small(12, 4, 2);
        let hurt = [1, 2].map(|who| bench.send(Request::new(prompt(who, 9), 8)));
        let spared = [3, 4].map(|who| bench.send(Request::new(prompt(who, 9), 8)));
        bench.faults.at(3, fault);
        bench.run();
        for id in hurt {
            let outputs = bench.outputs(id);
            assert_eq!(outputs.failure.map(|failure| failure.to_string()).as_deref(), Some(says));
            assert_eq!(outputs.choices[0].tokens, expected(&bench.requests[&id], 0, Tokens(48))[..3]);
            assert_eq!(outputs.choices[0].finish, None);
            assert_eq!((outputs.usage.prompt_tokens, outputs.usage.completion_tokens), (Tokens(9), 3));
        }
        spared.iter().for_each(|id| bench.assert_right(*id));
        let metrics = bench.engine.metrics();
        assert_eq!((metrics.failed_steps.get(), metrics.finished.error.get()), (1, 2));
        bench.assert_nothing_left();
    }
}

/// Rather than a token that nobody chose.
#[test]
fn logits_that_are_no_numbers_fail_their_request_and_no_other() {
    for step in 1..4 {
        let mut bench = Bench::small(12, 4, 2);
        let [hurt, spared] = [1, 2].map(|who| bench.send(Request::new(prompt(who, 9), 8)));
        bench.faults.at(step, Fault::NoNumbers);
        bench.run();
        let failure = bench.outputs(hurt).failure.expect("nothing could be chosen").to_string();
        assert!(
            failure.starts_with("a step failed: the model computed no number for any token"),
            "{failure}"
        );
        bench.assert_right(spared);
        bench.assert_nothing_left();
    }
}

#[test]
fn what_a_failed_step_was_to_compute_is_not_found_by_the_next_request() {
    for fault in [Fault::NotStarted, Fault::PanicAtStart, Fault::Error, Fault::Panic, Fault::TooManyRows] {
        for failing in 0..4 {
            let config = EngineConfig { chunk: (Tokens(8), Tokens(8)), ..EngineConfig::new(2, Tokens(48)) };
            let mut bench = Bench::new(config, Bench::pool(12, 4));
            let hurt = bench.send(Request::new(prompt(1, 22), 8));
            bench.faults.at(failing, fault);
            bench.run();
            assert!(matches!(bench.outputs(hurt).failure, Some(Failure::Step(_))));
            let before = bench.log.computed();
            let again = bench.send(Request::new(prompt(1, 22), 8));
            bench.run();
            bench.assert_right(again);
            // What earlier steps committed is found: eight tokens each.
            let committed = (8 * failing).min(20);
            assert_eq!(bench.log.computed() - before, 29 - committed, "after {failing} good steps");
            bench.assert_nothing_left();
        }
    }
}

#[test]
fn who_runs_but_is_not_in_the_failed_step_goes_on() {
    // The first prompt takes the whole chunk, step for step; the second has begun and waits.
    let config = EngineConfig { chunk: (Tokens(10), Tokens(10)), ..EngineConfig::new(4, Tokens(96)) };
    let mut bench = Bench::new(config, Bench::pool(24, 4));
    let spared = bench.send(Request { priority: 9, ..Request::new(prompt(2, 30), 4) });
    bench.step();
    let hurt = bench.send(Request::new(prompt(1, 30), 4));
    bench.step();
    // The second step went on with the one that ran; from the third on the new one is first.
    bench.faults.at(2, Fault::Panic);
    bench.run();
    assert!(bench.outputs(hurt).failure.is_some());
    bench.assert_right(spared);
    bench.assert_nothing_left();
}

#[test]
fn a_sequence_over_its_limit_of_pages_fails_its_request_alone() {
    for choices in [1, 2] {
        let settings = Settings { sequence_limit: Some(Pages(3)), ..Bench::pool(24, 4) };
        let mut bench = Bench::new(EngineConfig::new(8, Tokens(48)), settings);
        let before = bench.send(Request::new(prompt(1, 4), 8));
        let grows = bench.send(Request { choices, best_of: choices, ..Request::new(prompt(2, 8), 8) });
        let too_long = bench.try_send(Request::new(prompt(3, 13), 1)).unwrap_err().to_string();
        assert!(too_long.contains("needs 4 pages of KV cache; a request may have 3 pages"), "{too_long}");
        let after = bench.send(Request::new(prompt(4, 4), 8));
        bench.run();
        let failure = bench.outputs(grows).failure.expect("it is over the limit").to_string();
        assert!(failure.contains("over the limit of 3 pages a sequence"), "{failure}");
        bench.assert_right(before);
        bench.assert_right(after);
        let metrics = bench.engine.metrics();
        assert_eq!(metrics.preemptions.get(), 0, "it is not tried again");
        let told = [before, grows, after].map(|id| bench.outputs(id).usage.completion_tokens);
        assert_eq!(
            metrics.generation_tokens.get(),
            told.iter().sum::<u64>(),
            "nothing is chosen after it failed"
        );
        bench.assert_nothing_left();
    }
}

#[test]
fn a_request_that_is_over_its_time_fails_and_says_so() {
    let mut bench = Bench::small(24, 4, 1);
    let limit = Some(Duration::from_secs(5));
    let runs = bench.send(Request { time_limit: limit, ..Request::new(prompt(1, 5), 60) });
    let waits = bench.send(Request { time_limit: limit, ..Request::new(prompt(2, 5), 2) });
    let patient = bench.send(Request::new(prompt(3, 5), 2));
    bench.run_steps(4);
    assert!(!bench.ended(runs));
    bench.now += 5_000_000;
    bench.run();
    for id in [runs, waits] {
        let failure = bench.outputs(id).failure.unwrap();
        assert_eq!(failure, Failure::TimeLimit(Duration::from_secs(5)));
        assert_eq!(failure.to_string(), "not finished within its 5000 ms");
    }
    assert_eq!(bench.tokens(runs).len(), 4);
    assert!(bench.log.of(2).is_empty(), "it is not begun once it is late");
    bench.assert_right(patient);
    bench.assert_nothing_left();
}

#[test]
fn an_engine_without_its_device_takes_no_requests() {
    let mut bench = Bench::small(12, 4, 2);
    bench.send(Request::new(prompt(1, 5), 9));
    bench.step();
    assert!(!bench.engine.is_lost());
    bench.faults.at(1, Fault::Lost);
    bench.step();
    assert!(bench.engine.is_lost());
    assert_eq!(bench.try_send(Request::new(prompt(1, 5), 9)), Err(SubmitError::ShuttingDown));
}

#[test]
fn nothing_is_scored_while_requests_are_under_way() {
    let mut bench = Bench::small(12, 4, 2);
    let id = bench.send(Request::new(prompt(1, 5), 9));
    for _ in 0..2 {
        let refused = bench.engine.score(prompt(2, 5), &mut |_, _| ());
        assert!(matches!(refused, Err(ScoreError::Busy)), "{refused:?}");
        bench.step();
    }
    bench.run();
    bench.assert_right(id);
}

#[test]
fn time_never_goes_back() {
    let mut bench = Bench::small(24, 4, 1);
    let time_limit = Some(Duration::from_secs(5));
    let late = bench.send(Request { time_limit, ..Request::new(prompt(1, 5), 60) });
    bench.engine.tick(Timestamp(6_000_000));
    bench.step();
    assert_eq!(bench.outputs(late).failure, Some(Failure::TimeLimit(Duration::from_secs(5))));
}

#[test]
fn each_request_that_waits_is_late_at_its_own_time() {
    let mut bench = Bench::small(24, 4, 1);
    let runs = bench.send(Request::new(prompt(1, 5), 60));
    let limits = [(2, 9), (3, 5), (4, 7)];
    let ids = limits.map(|(who, limit)| {
        let time_limit = Some(Duration::from_secs(limit));
        bench.send(Request { time_limit, ..Request::new(prompt(who, 5), 2) })
    });
    let mut late = Vec::new();
    for second in 1..=10 {
        bench.now = second * 1_000_000;
        bench.step();
        late.push(ids.map(|id| bench.ended(id)));
    }
    let since = |second| late.iter().position(|late| late[second]).map(|step| step + 1);
    assert_eq!([since(0), since(1), since(2)], [Some(9), Some(5), Some(7)]);
    bench.run();
    bench.assert_right(runs);
}

/// A chunk that does not end its prompt needs no logits, and none can be missing.
#[test]
fn nothing_is_wanted_of_a_prompt_before_its_end() {
    let config = EngineConfig { chunk: (Tokens(8), Tokens(8)), ..EngineConfig::new(2, Tokens(48)) };
    let mut bench = Bench::new(config, Bench::pool(12, 4));
    let id = bench.send(Request::new(prompt(1, 22), 2));
    [0, 1].into_iter().for_each(|step| bench.faults.at(step, Fault::TooFewRows));
    bench.run();
    bench.assert_right(id);
    assert_eq!(bench.engine.metrics().failed_steps.get(), 0);
}

#[test]
fn what_passed_before_a_request_was_sent_is_part_of_its_time() {
    let mut bench = Bench::small(24, 4, 1);
    let (time_limit, waited) = (Some(Duration::from_secs(5)), Duration::from_secs(3));
    let late = bench.send(Request { time_limit, waited, ..Request::new(prompt(1, 5), 60) });
    bench.run_steps(4);
    bench.now += 2_000_000;
    bench.run();
    assert_eq!(bench.outputs(late).failure, Some(Failure::TimeLimit(Duration::from_secs(5))));
    bench.assert_nothing_left();
}

#[test]
fn the_engines_time_limit_is_for_requests_that_name_none() {
    let time_limit = Some(Duration::from_secs(5));
    let config = EngineConfig { time_limit, ..EngineConfig::new(4, Tokens(96)) };
    let mut bench = Bench::new(config, Bench::pool(24, 4));
    let default = bench.send(Request::new(prompt(1, 5), 9));
    let own = Request { time_limit: Some(Duration::from_secs(50)), ..Request::new(prompt(2, 5), 9) };
    let own = bench.send(own);
    bench.step();
    bench.now += 6_000_000;
    bench.run();
    assert_eq!(bench.outputs(default).failure, Some(Failure::TimeLimit(Duration::from_secs(5))));
    bench.assert_right(own);
}

#[test]
fn shutting_down_ends_everyone_with_the_reason() {
    let mut bench = Bench::small(12, 4, 2);
    let ids = [1, 2, 3].map(|who| bench.send(Request::new(prompt(who, 5), 9)));
    bench.run_steps(2);
    let mut events = Vec::new();
    bench.engine.fail_all(&mut events);
    let reasons: Vec<_> = events.into_iter().collect();
    assert_eq!(reasons, ids.map(|id| (id, Event::Failed(Failure::ShuttingDown))));
    bench.assert_nothing_left();
}

/// What happens to one request of a random run.
#[derive(Clone, Debug)]
struct Fate {
    request: Request,
    /// When it is sent, and cancelled if it still runs then.
    sent: usize,
    cancelled: Option<usize>,
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let one = (
        (0u32..6, 1usize..40, 0usize..30),
        0u32..24,
        1u32..4,
        -2i32..3,
        0usize..30,
        proptest::option::weighted(0.2, 0usize..40),
        proptest::option::weighted(0.15, 1u64..20),
    );
    let one = one.prop_map(|((who, shared, own), max_tokens, choices, priority, sent, cancel, limit)| {
        let text = [prompt(who, shared), prompt(who + sent as u32, own)].concat();
        let sampling = SamplingParams { temperature: 0.9, seed: sent as u64, ..SamplingParams::default() };
        let time_limit = limit.map(Duration::from_secs);
        let request = Request::new(text, max_tokens);
        let request = Request { choices, best_of: choices, priority, time_limit, sampling, ..request };
        Fate { request, sent, cancelled: cancel.map(|after| sent + after) }
    });
    proptest::collection::vec(one, 1..14)
}

fn faults() -> impl Strategy<Value = Vec<(usize, usize)>> {
    proptest::collection::vec((0usize..60, 0usize..4), 0..4)
}

/// Sends and cancels as told, a second a step, until everything has ended.
fn live(bench: &mut Bench, fates: &[Fate]) -> Vec<RequestId> {
    let mut ids = vec![None; fates.len()];
    let last = fates.iter().map(|fate| fate.cancelled.unwrap_or(fate.sent)).max().unwrap_or(0);
    for step in 0..=last {
        for (id, fate) in ids.iter_mut().zip(fates) {
            if fate.sent == step {
                *id = Some(bench.send(fate.request.clone()));
            }
            if let (Some(id), Some(true)) = (*id, fate.cancelled.map(|at| at == step)) {
                bench.engine.cancel(id);
            }
        }
        bench.now += 1_000_000;
        bench.step();
    }
    bench.run();
    ids.into_iter().map(|id| id.expect("all were sent")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn whoever_is_not_hurt_says_what_it_would_alone_and_no_page_is_lost(
        fates in fates(),
        faults in faults(),
        total in 20u32..40,
        max_batch in 3u32..8,
        reserve in 0u32..5,
        chunk in 3u32..40,
        prefix_cache in proptest::bool::weighted(0.8),
    ) {
        let chunk = (Tokens(chunk), Tokens(2 * chunk));
        let config = EngineConfig { chunk, ..EngineConfig::new(max_batch, Tokens(80)) };
        let settings = Settings { reserve: Pages(reserve), prefix_cache, ..Bench::pool(total, 4) };
        let mut bench = Bench::new(config, settings);
        faults.iter().for_each(|&(step, fault)| bench.faults.at(step, FAULTS[fault].0));
        let ids = live(&mut bench, &fates);
        for (id, fate) in ids.into_iter().zip(&fates) {
            let outputs = bench.outputs(id);
            prop_assert!(bench.ended(id), "{id} has no end");
            let cut = outputs.choices.iter().any(|choice| choice.finish == Some(FinishReason::Cancelled));
            prop_assert!(!cut || fate.cancelled.is_some(), "{id} was cancelled by nobody");
            match &outputs.failure {
                None if !cut => bench.assert_right(id),
                None => {}
                Some(Failure::Step(_)) => prop_assert!(!faults.is_empty()),
                Some(Failure::TimeLimit(_)) => prop_assert!(fate.request.time_limit.is_some()),
                Some(other) => prop_assert!(false, "{id}: {other}"),
            }
            for (choice, output) in (0..).zip(&outputs.choices) {
                let alone = expected(&fate.request, choice, Tokens(80));
                prop_assert!(alone.starts_with(&output.tokens), "{id} choice {choice}");
            }
        }
        bench.assert_nothing_left();
    }
}
