//! What the engine counts and times, to the last token and second. Every figure of a test is another one, so that none
//! can stand in the place of another.

mod fake;

use fake::{Bench, prompt};
use octavo_engine::{EngineConfig, Histogram, Request};
use octavo_types::Tokens;

/// The engine's clock goes on while it works; next to these steps that is nothing.
const STEP: u64 = 100;

/// A step at this second.
fn step_at(bench: &mut Bench, second: u64) {
    bench.now = second * 1_000_000;
    bench.step();
}

/// How many were observed, and their sum in whole numbers.
fn observed(histogram: &Histogram) -> (u64, u64) {
    (histogram.count(), histogram.sum().round() as u64)
}

#[test]
fn a_requests_time_is_that_in_the_queue_that_of_its_prompt_and_that_of_its_tokens() {
    let config = EngineConfig { chunk: (Tokens(8), Tokens(8)), ..EngineConfig::new(4, Tokens(60)) };
    let mut bench = Bench::new(config, Bench::pool(24, 4));
    let id = bench.send(Request::new(prompt(1, 12), 3));
    // Two chunks, then the other two tokens.
    for second in [STEP, 3 * STEP, 7 * STEP, 15 * STEP] {
        step_at(&mut bench, second);
    }
    bench.assert_right(id);
    let metrics = bench.engine.metrics();
    assert_eq!(observed(&metrics.queue_time), (1, STEP));
    assert_eq!(observed(&metrics.prefill_time), (1, 2 * STEP));
    assert_eq!(observed(&metrics.time_to_first_token), (1, 3 * STEP));
    assert_eq!(observed(&metrics.decode_time), (1, 12 * STEP));
    assert_eq!(observed(&metrics.inference_time), (1, 14 * STEP));
    assert_eq!(observed(&metrics.request_latency), (1, 15 * STEP));
    assert_eq!(observed(&metrics.inter_token_latency), (2, 12 * STEP));
    assert_eq!(observed(&metrics.time_per_output_token), (1, 6 * STEP));
}

#[test]
fn tokens_and_requests_are_counted_where_they_are() {
    let mut bench = Bench::new(EngineConfig::new(3, Tokens(60)), Bench::pool(24, 4));
    bench.send(Request { choices: 2, best_of: 2, ..Request::new(prompt(1, 6), 3) });
    bench.send(Request::new(prompt(2, 5), 4));
    bench.send(Request::new(prompt(3, 13), 2));
    let mut gauges = Vec::new();
    for second in 1..=6 {
        step_at(&mut bench, second * STEP);
        let metrics = bench.engine.metrics();
        gauges.push((
            metrics.requests_running.get(),
            metrics.sequences_running.get(),
            metrics.requests_waiting.get(),
        ));
    }
    bench.assert_all_right();
    // The third waits until the first has ended, after three tokens of both its choices.
    assert_eq!(gauges, [(2, 3, 1), (2, 3, 1), (1, 1, 1), (1, 1, 0), (0, 0, 0), (0, 0, 0)]);
    let metrics = bench.engine.metrics();
    assert_eq!((metrics.prompt_tokens.get(), metrics.generation_tokens.get()), (24, 12));
    assert_eq!(metrics.steps.get(), 5);
    // Prompts of 6 and 5, twice three tokens, one beside a prompt of 13, one.
    assert_eq!(observed(&metrics.step_tokens), (5, 11 + 3 + 3 + 14 + 1));
    assert_eq!(observed(&metrics.chunk), (2, 24));
    assert_eq!(observed(&metrics.request_prompt_tokens), (3, 24));
    assert_eq!(observed(&metrics.request_generation_tokens), (3, 12));
    assert_eq!(observed(&metrics.request_max_tokens), (3, 9));
    assert_eq!(observed(&metrics.request_choices), (3, 4));
    assert_eq!(metrics.finished.length.get(), 3);
    assert_eq!(metrics.time_per_output_token.count(), 3);
    let timed = [&metrics.plan_time, &metrics.run_time, &metrics.post_time];
    assert_eq!(timed.map(|time| time.count()), [5; 3]);
}

#[test]
fn pages_are_timed_from_taking_to_eviction_and_between_uses() {
    let mut bench = Bench::small(4, 4, 1);
    for (second, length) in [(STEP, 8), (3 * STEP, 9)] {
        bench.send(Request::new(prompt(1, length), 1));
        step_at(&mut bench, second);
    }
    let cached = bench.engine.metrics().prompt_tokens_cached.get();
    // It needs all four pages.
    bench.send(Request::new(prompt(2, 15), 1));
    step_at(&mut bench, 7 * STEP);
    bench.assert_all_right();
    let metrics = bench.engine.metrics();
    assert_eq!(cached, 8, "two pages");
    assert_eq!(observed(&metrics.page_reuse_gap), (2, 2 * 2 * STEP));
    assert_eq!(observed(&metrics.page_idle_before_evict), (2, 2 * 4 * STEP));
    assert_eq!(observed(&metrics.page_lifetime), (2, 2 * 6 * STEP));
}

#[test]
fn one_token_has_no_time_to_the_next() {
    let mut bench = Bench::small(24, 4, 1);
    bench.send(Request::new(prompt(1, 4), 1));
    bench.run();
    let metrics = bench.engine.metrics();
    assert_eq!((metrics.time_per_output_token.count(), metrics.inter_token_latency.count()), (0, 0));
}

#[test]
fn who_never_begins_was_in_the_queue_all_the_time() {
    let mut bench = Bench::small(24, 4, 1);
    bench.send(Request::new(prompt(1, 4), 60));
    let waits = bench.send(Request::new(prompt(2, 4), 60));
    step_at(&mut bench, STEP);
    bench.engine.cancel(waits);
    step_at(&mut bench, 5 * STEP);
    let metrics = bench.engine.metrics();
    assert_eq!(observed(&metrics.queue_time), (1, 5 * STEP));
    assert_eq!(observed(&metrics.request_latency), (1, 5 * STEP));
    assert_eq!(metrics.finished.abort.get(), 1);
}

/// Each of two requests runs or waits, however many of its choices do which.
#[test]
fn a_request_of_many_choices_is_counted_once() {
    let mut bench = Bench::small(12, 4, 4);
    let ids = [
        bench.send(Request { priority: -5, ..Request::new(prompt(1, 8), 32) }),
        bench.send(Request { choices: 3, best_of: 3, ..Request::new(prompt(2, 8), 32) }),
    ];
    let mut waited = 0;
    loop {
        bench.now += 100_000;
        bench.step();
        if ids.iter().any(|id| bench.ended(*id)) {
            break;
        }
        let metrics = bench.engine.metrics();
        assert_eq!(metrics.requests_running.get() + metrics.requests_waiting.get(), 2);
        waited = bench.engine.report().waiting.max(waited);
    }
    assert!(waited > 1, "{waited} choices waited");
}

/// The clock goes on while the device computes.
#[test]
fn a_token_comes_at_the_end_of_its_step() {
    let pace = std::time::Duration::from_millis(1);
    let config = EngineConfig::new(1, Tokens(48));
    let mut bench = Bench::with_runner(config, Bench::pool(12, 4), |runner| runner.pace = pace);
    let id = bench.send(Request::new(prompt(1, 8), 1));
    bench.run();
    assert!(bench.outputs(id).usage.prefill >= 8 * pace, "a row takes a millisecond");
}
