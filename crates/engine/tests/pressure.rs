//! Too little memory: nobody fails who could ever fit, and nobody waits forever.

mod fake;

use fake::{Bench, expected, prompt};
use octavo_engine::{Engine, EngineConfig, Failure, FinishReason, Request, SubmitError};
use octavo_kv::{PinId, Prompt, Scope, Settings};
use octavo_types::{Pages, Tokens};

#[test]
fn running_out_of_pages_while_decoding_fails_nobody_and_the_youngest_gives_way() {
    let mut bench = Bench::small(12, 4, 8);
    let ids = [1, 2, 3, 4].map(|who| bench.send(Request::new(prompt(who, 4), 30)));
    bench.run();
    bench.assert_all_right();
    assert!(bench.engine.metrics().preemptions.get() > 0);
    let preemptions = ids.map(|id| bench.outputs(id).usage.preemptions);
    assert_eq!(preemptions[0], 0, "the oldest keeps its pages");
    assert!(preemptions[3] > 0, "the youngest is the first to give way");
    let ends = ids.map(|id| bench.ended_in(id));
    assert!(ends.is_sorted(), "older ones end first: {ends:?}");
    bench.assert_nothing_left();
}

#[test]
fn of_those_who_could_give_way_the_youngest_does() {
    let config = EngineConfig { prompt_share: 1.0, ..EngineConfig::new(8, Tokens(32)) };
    let mut bench = Bench::new(config, Bench::pool(8, 4));
    // All pages are taken; in the next step the first alone needs one more.
    let lens = [(1, 8, 4), (2, 10, 3), (3, 10, 3)];
    let ids = lens.map(|(who, len, max_tokens)| bench.send(Request::new(prompt(who, len), max_tokens)));
    bench.step();
    assert_eq!(bench.used(), 8);
    bench.run();
    bench.assert_all_right();
    assert_eq!(ids.map(|id| bench.outputs(id).usage.preemptions), [0, 0, 1]);
}

#[test]
fn the_lower_priority_gives_way_even_if_it_came_first() {
    let mut bench = Bench::small(12, 4, 8);
    let low = bench.send(Request { priority: 5, ..Request::new(prompt(1, 4), 36) });
    bench.step();
    let high = bench.send(Request { priority: -5, ..Request::new(prompt(2, 4), 36) });
    bench.run();
    bench.assert_all_right();
    assert!(bench.outputs(low).usage.preemptions > 0);
    assert_eq!(bench.outputs(high).usage.preemptions, 0);
}

#[test]
fn what_a_preempted_request_computed_is_found_again_while_there_is_room() {
    let mut bench = Bench::small(12, 4, 8);
    let ids = [1, 2].map(|who| bench.send(Request::new(prompt(who, 16), 20)));
    bench.run();
    bench.assert_all_right();
    assert_eq!(bench.outputs(ids[1]).usage.preemptions, 1);
    let recomputed = bench.engine.metrics().tokens_recomputed.get();
    assert_eq!(bench.log.computed() as u64, 2 * 35 + recomputed);
}

#[test]
fn with_a_small_pool_and_many_long_prompts_everyone_completes_in_turn() {
    let config = EngineConfig { chunk: (Tokens(16), Tokens(32)), ..EngineConfig::new(8, Tokens(128)) };
    let mut bench = Bench::new(config, Bench::pool(32, 4));
    let ids: Vec<_> = (0..40)
        .map(|who| bench.send(Request::new(prompt(who, 40 + 7 * who as usize % 60), 1 + who % 20)))
        .collect();
    bench.run();
    bench.assert_all_right();
    let begins: Vec<_> = ids.iter().map(|id| bench.began_in(*id)).collect();
    assert!(begins.is_sorted(), "nobody is passed by one who came later: {begins:?}");
    let lookups = bench.engine.cache().snapshot().counters.lookups;
    assert!(bench.engine.metrics().preemptions.get() > 0);
    assert_eq!(lookups, 40, "once each, however often one did not fit or gave way");
    bench.assert_nothing_left();
}

#[test]
fn what_a_preempted_request_finds_again_is_no_hit() {
    let mut bench = Bench::small(12, 4, 8);
    let ids = [1, 2, 3, 4].map(|who| bench.send(Request::new(prompt(who, 3 + who as usize % 2), 30)));
    bench.run();
    bench.assert_all_right();
    assert!(bench.outputs(ids[3]).usage.preemptions > 0);
    let counters = bench.engine.cache().snapshot().counters;
    assert_eq!((counters.lookups, counters.hit_tokens, counters.missed_tokens), (4, 0, 14));
    assert_eq!(counters.stops.never_seen + counters.stops.page_not_full + counters.stops.differs, 4);
}

#[test]
fn a_lone_request_as_long_as_the_pool_completes() {
    for (len, reserve) in [(20, 0), (47, 0), (1, 0), (20, 5), (47, 11)] {
        let settings = Settings { reserve: Pages(reserve), pin_quota: Pages(0), ..Bench::pool(12, 4) };
        let mut bench = Bench::new(EngineConfig::new(8, Tokens(48)), settings);
        let id = bench.send(Request::new(prompt(1, len), 1000));
        bench.run();
        bench.assert_right(id);
        assert_eq!(len + bench.tokens(id).len(), 48);
        assert_eq!(bench.outputs(id).choices[0].finish, Some(FinishReason::Length));
        assert_eq!(bench.engine.cache().snapshot().peak_used, Pages(12));
        bench.assert_nothing_left();
    }
}

#[test]
fn a_cached_prefix_is_in_nobodys_way() {
    let mut bench = Bench::small(12, 4, 8);
    let cached = prompt(1, 47);
    bench.send(Request::new(cached.clone(), 1));
    bench.run();
    for common in [1, 4, 30, 45] {
        bench.send(Request::new([&cached[..common], &prompt(2, 46 - common)].concat(), 2));
        bench.run();
    }
    bench.assert_all_right();
    bench.assert_nothing_left();
}

#[test]
fn a_whole_pools_worth_of_choices_completes() {
    let mut bench = Bench::small(12, 4, 4);
    let request = Request::new(prompt(1, 30), 1000);
    let sampling = octavo_engine::SamplingParams { temperature: 1.0, seed: 3, ..request.sampling.clone() };
    let id = bench.send(Request { choices: 4, best_of: 4, sampling, ..request });
    bench.run();
    bench.assert_right(id);
    assert!(bench.outputs(id).usage.preemptions > 0);
    bench.assert_nothing_left();
}

#[test]
fn what_can_never_fit_is_refused_before_anything_runs() {
    let mut bench = Bench::small(12, 4, 8);
    let refused = bench.try_send(Request::new(prompt(1, 48), 1)).unwrap_err();
    assert_eq!(refused, SubmitError::PromptTooLong { prompt: Tokens(48), max: Tokens(48) });
    bench.send(Request::new(prompt(1, 48), 0));
    let refused = bench.try_send(Request::new(prompt(1, 49), 0)).unwrap_err();
    assert_eq!(refused, SubmitError::PromptTooLong { prompt: Tokens(49), max: Tokens(48) });
    bench.run();
    bench.assert_all_right();
    assert_eq!(bench.engine.intake().waiting(), 0);
    let runner = fake::PageRunner::new(Pages(12), Bench::pool(12, 4).page_size);
    assert!(
        Engine::new(EngineConfig::new(8, Tokens(49)), Bench::pool(12, 4), Box::new(runner), None).is_err()
    );
}

#[test]
fn the_reserve_is_for_those_who_run() {
    // Of twelve pages two are used and four reserved: new prompts may have four fifths of six.
    for (pages, at_once) in [(4, true), (5, false)] {
        let settings = Settings { reserve: Pages(4), ..Bench::pool(12, 4) };
        let mut bench = Bench::new(EngineConfig::new(8, Tokens(48)), settings);
        bench.send(Request::new(prompt(1, 7), 40));
        bench.step();
        bench.send(Request::new(prompt(2, 4 * pages), 1));
        bench.step();
        assert_eq!(!bench.log.steps_of(2).is_empty(), at_once, "{pages} pages");
        bench.run();
        bench.assert_all_right();
        assert_eq!(bench.engine.cache().snapshot().peak_used, Pages(12), "who runs takes the reserve too");
    }
}

#[test]
fn the_reserve_keeps_those_who_decode_from_giving_way() {
    let settings = Settings { reserve: Pages(4), pin_quota: Pages(0), ..Bench::pool(12, 4) };
    let config = EngineConfig { prompt_share: 1.0, ..EngineConfig::new(8, Tokens(48)) };
    let mut bench = Bench::new(config, settings);
    for who in [1, 2] {
        bench.send(Request::new(prompt(who, 15), 6));
    }
    bench.step();
    assert_eq!(bench.used(), 8, "all that is not reserved");
    bench.run();
    bench.assert_all_right();
    assert_eq!(bench.engine.cache().snapshot().peak_used, Pages(10));
    assert_eq!(bench.engine.metrics().preemptions.get(), 0);
}

#[test]
fn a_prompt_under_way_leaves_the_reserve_to_those_who_decode() {
    let settings = Settings { reserve: Pages(4), pin_quota: Pages(0), ..Bench::pool(12, 4) };
    let chunk = (Tokens(4), Tokens(4));
    let config = EngineConfig { chunk, prompt_share: 1.0, ..EngineConfig::new(8, Tokens(48)) };
    let mut bench = Bench::new(config, settings);
    let decodes = bench.send(Request::new(prompt(1, 4), 20));
    bench.step();
    // By the time that it has read five of its six pages, the other one has three.
    let reads = bench.send(Request::new(prompt(2, 24), 1));
    bench.run();
    bench.assert_all_right();
    assert_eq!(bench.began_in(reads), 1);
    assert!(bench.ended_in(reads) > bench.ended_in(decodes));
}

/// Another one decodes all the time, so that no step is empty and the last resort is far.
#[test]
fn a_prompt_under_way_gives_way_in_the_step_in_which_one_before_it_needs_its_pages() {
    let chunk = (Tokens(12), Tokens(12));
    let settings = Settings { pin_quota: Pages(6), ..Bench::pool(13, 8) };
    let size = settings.page_size;
    let config = EngineConfig { chunk, prompt_share: 1.0, ..EngineConfig::new(8, Tokens(56)) };
    let mut bench = Bench::new(config, settings);
    bench.send(Request::new(prompt(9, 48), 0));
    bench.run();
    let begins = bench.steps;
    let decodes = bench.send(Request { priority: -9, ..Request::new(prompt(1, 2), 6) });
    let young = bench.send(Request::new(prompt(2, 40), 1));
    bench.step();
    let old = bench.send(Request { priority: -5, ..Request::new(prompt(3, 32), 1) });
    bench.step();
    // There was room for all three; now there are three pages, and they lack four.
    let cached = Prompt::new(prompt(9, 48), Scope::default(), size).unwrap();
    assert_eq!(bench.engine.pin(&cached).unwrap().1, Tokens(48));
    bench.run_steps(2);
    assert_eq!(bench.used(), 7, "all that are not pinned");
    bench.step();
    let read: Vec<_> = bench.log.of(3).iter().map(|span| (span.start, span.rows)).collect();
    assert_eq!(read, [(0, 4), (4, 12), (16, 8), (24, 8)]);
    assert_eq!((bench.ended_in(old), bench.steps), (begins + 4, begins + 5));
    assert!(!bench.ended(decodes));
    bench.run();
    bench.assert_all_right();
    assert_eq!([decodes, young, old].map(|id| bench.outputs(id).usage.preemptions), [0, 1, 0]);
}

/// Twelve pages, six of them pinned.
fn half_pinned() -> (Bench, PinId) {
    let settings = Settings { pin_quota: Pages(6), ..Bench::pool(12, 4) };
    let size = settings.page_size;
    let mut bench = Bench::new(EngineConfig::new(8, Tokens(48)), settings);
    bench.send(Request::new(prompt(9, 24), 1));
    bench.run();
    let pinned = Prompt::new(prompt(9, 24), Scope::default(), size).unwrap();
    let (pin, covered) = bench.engine.pin(&pinned).unwrap();
    assert_eq!(covered, Tokens(24));
    (bench, pin)
}

/// It runs out alone, begins again with no more than its own pages, and then there is room.
#[test]
fn what_starts_over_is_counted_as_preempted_and_computed_again() {
    let (mut bench, pin) = half_pinned();
    let before = bench.log.computed() as u64;
    let id = bench.send(Request::new(prompt(2, 4), 40));
    bench.step_until(|bench| bench.engine.metrics().tokens_recomputed.get() > 0);
    bench.engine.unpin(pin).unwrap();
    bench.run();
    bench.assert_right(id);
    assert_eq!(bench.outputs(id).usage.preemptions, 1);
    let recomputed = bench.engine.metrics().tokens_recomputed.get();
    assert_eq!(bench.log.computed() as u64 - before, 4 + 40 - 1 + recomputed);
    bench.assert_nothing_left();
}

#[test]
fn what_does_not_fit_beside_pinned_pages_fails_with_the_reason_and_nothing_else_does() {
    for (len, max_tokens) in [(30, 3), (4, 40), (24, 10)] {
        let (mut bench, _) = half_pinned();
        let small = bench.send(Request::new(prompt(1, 6), 8));
        let large = bench.send(Request::new(prompt(2, len), max_tokens));
        let after = bench.send(Request::new(prompt(3, 6), 8));
        bench.run();
        bench.assert_right(small);
        bench.assert_right(after);
        let outputs = bench.outputs(large);
        let failure = outputs.failure.expect("it cannot fit");
        assert!(matches!(failure, Failure::OutOfPages { need: Pages(7..=8), free: Pages(6) }), "{failure:?}");
        let said = failure.to_string();
        assert!(said.contains("only 6 pages could be had with nothing else running"), "{said}");
        let right = expected(&bench.requests[&large], 0, Tokens(48));
        let got = outputs.choices.first().map_or(&[][..], |choice| &choice.tokens);
        assert!(right.starts_with(got));
        let lookups = bench.engine.cache().snapshot().counters.lookups;
        assert_eq!(lookups, 4, "it started over before it failed, which is no lookup");
        bench.assert_nothing_left();
    }
}

#[test]
fn who_shares_the_pinned_pages_has_room_beside_them() {
    let (mut bench, _) = half_pinned();
    let id = bench.send(Request::new([prompt(9, 24), prompt(2, 6)].concat(), 1000));
    bench.run();
    bench.assert_right(id);
    bench.assert_nothing_left();
}
