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
