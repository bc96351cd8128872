//! Pages that may keep nothing of whoever had them.

mod fake;

use fake::{Bench, Fault, prompt};
use octavo_engine::{EngineConfig, Request};
use octavo_kv::Settings;
use octavo_types::{Timestamp, Tokens};
use std::sync::atomic::Ordering;

/// Twelve pages of four tokens, three sequences at once: more than fit, so that some are preempted.
fn bench(zero_freed: bool, prefix_cache: bool) -> Bench {
    let config = EngineConfig { zero_freed, ..EngineConfig::new(3, Tokens(48)) };
    let settings = Settings { prefix_cache, ..Bench::pool(12, 4) };
    Bench::with_runner(config, settings, |runner| runner.wants_empty = true)
}

#[test]
fn no_page_has_anything_in_it_when_somebody_else_begins_to_fill_it() {
    for prefix_cache in [false, true] {
        let mut bench = bench(true, prefix_cache);
        let ids: Vec<_> =
            (0..30).map(|who| bench.send(Request::new(prompt(who % 7, 9 + who as usize), 6))).collect();
        bench.faults.at(5, Fault::Error);
        bench.run();
        let failed = ids.iter().filter(|id| bench.outputs(**id).failure.is_some()).count();
        assert!((1..=3).contains(&failed), "{failed} were in the step that failed");
        for id in ids {
            if bench.outputs(id).failure.is_none() {
                bench.assert_right(id);
            }
        }
        bench.assert_nothing_left();
    }
}

#[test]
fn what_could_not_be_zeroed_is_zeroed_before_the_next_step() {
    for fails in [1, 3] {
        let config = EngineConfig { zero_freed: true, ..EngineConfig::new(1, Tokens(48)) };
        let settings = Settings { prefix_cache: false, ..Bench::pool(12, 4) };
        let mut bench = Bench::with_runner(config, settings, |runner| {
            (runner.wants_empty, runner.zeroing_fails) = (true, fails);
        });
        // The first leaves pages to be zeroed; whoever comes while that fails is told.
        let ids: Vec<_> = (0..8).map(|who| bench.send(Request::new(prompt(who, 20), 4))).collect();
        bench.run();
        let failures = ids.iter().map(|id| bench.outputs(*id).failure.map(|failure| failure.to_string()));
        let failures: Vec<_> = failures.flatten().collect();
        let why = "a step failed: the device failed: it zeroes nothing";
        assert!(failures.len() == fails && failures.iter().all(|failure| failure == why), "{failures:?}");
        bench.assert_nothing_left();
    }
}

#[test]
fn pages_are_zeroed_while_nothing_runs() {
    let config = EngineConfig { zero_freed: true, ..EngineConfig::new(1, Tokens(48)) };
    let settings = Settings { prefix_cache: false, ..Bench::pool(12, 4) };
    let mut zeroed = Default::default();
    let mut bench = Bench::with_runner(config, settings, |runner| zeroed = runner.zeroed.clone());
    bench.send(Request::new(prompt(1, 10), 1));
    bench.run();
    assert_eq!(zeroed.load(Ordering::Relaxed), 0);
    bench.engine.idle(Timestamp(bench.now));
    assert_eq!(zeroed.load(Ordering::Relaxed), 3);
    bench.engine.idle(Timestamp(bench.now));
    assert_eq!(zeroed.load(Ordering::Relaxed), 3, "once");
}

#[test]
fn scoring_finds_its_pages_empty_too_and_what_it_leaves_cached_stays() {
    let mut bench = bench(true, true);
    for (who, len) in [(1, 9), (2, 12), (3, 12)] {
        bench.engine.score(prompt(who, len), &mut |_, _| ()).unwrap();
    }
    let ids = [1, 2, 3].map(|who| bench.send(Request::new(prompt(who, 14), 4)));
    bench.run();
    ids.into_iter().for_each(|id| bench.assert_right(id));
    bench.assert_nothing_left();
}

#[test]
fn without_it_pages_keep_what_they_held() {
    let mut bench = bench(false, false);
    let ids = [1, 2, 3, 4, 5].map(|who| bench.send(Request::new(prompt(who, 12), 4)));
    bench.run();
    let failures = ids.map(|id| bench.outputs(id).failure.map(|failure| failure.to_string()));
    assert!(failures.iter().flatten().any(|failure| failure.contains("was used before")), "{failures:?}");
}
