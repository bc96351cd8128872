//! Who may run, when, and in which order.

mod fake;

use fake::{Bench, Span, expected, prompt};
use octavo_engine::{Batching, Engine, EngineConfig, Request, RequestId, SubmitError};
use octavo_kv::{Prompt, Scope, Settings};
use octavo_types::{PageSize, Pages, Tokens};
use std::sync::Arc;
use std::time::Duration;

/// Twelve pages of four tokens, of which a request that goes on for long holds two.
fn ten_of_twelve_pages_free(config: EngineConfig) -> Bench {
    let mut bench = Bench::new(config, Bench::pool(12, 4));
    bench.send(Request::new(prompt(1, 7), 41));
    bench.step();
    assert_eq!(bench.used(), 2);
    bench
}

/// Whether a prompt of `pages` gets in at once beside a request that leaves ten pages free.
fn gets_in(config: EngineConfig, pages: usize) -> bool {
    let mut bench = ten_of_twelve_pages_free(config);
    let id = bench.send(Request::new(prompt(2, 4 * pages), 1));
    bench.step();
    let at_once = !bench.log.steps_of(2).is_empty();
    bench.run();
    bench.assert_all_right();
    assert_eq!(at_once, bench.began_in(id) == 1);
    at_once
}

#[test]
fn new_prompts_get_four_fifths_of_the_free_pages_and_what_needs_more_waits() {
    let config = EngineConfig::new(8, Tokens(48));
    assert!(gets_in(config.clone(), 8));
    assert!(!gets_in(config, 9));
}

#[test]
fn the_share_of_new_prompts_is_a_setting() {
    for (prompt_share, most) in [(0.1, 1), (0.5, 5), (0.7, 7), (0.9, 9), (1.0, 10)] {
        let config = EngineConfig { prompt_share, ..EngineConfig::new(8, Tokens(48)) };
        assert!(gets_in(config.clone(), most), "{most} pages with a share of {prompt_share}");
        assert!(!gets_in(config, most + 1), "{} pages with a share of {prompt_share}", most + 1);
    }
}

#[test]
fn pages_that_nobody_can_need_are_not_kept_back() {
    // The first has its two pages and three tokens to say, which fit them.
    for (len, max_tokens, fits) in [(36, 1, true), (37, 3, true), (37, 4, false)] {
        let mut bench = Bench::new(EngineConfig::new(8, Tokens(48)), Bench::pool(12, 4));
        bench.send(Request::new(prompt(1, 5), 3));
        bench.step();
        assert_eq!(bench.used(), 2);
        let id = bench.send(Request::new(prompt(2, len), max_tokens));
        bench.run();
        bench.assert_all_right();
        assert_eq!(bench.began_in(id) == 1, fits, "{len} tokens and {max_tokens} more");
        assert_eq!(bench.engine.metrics().preemptions.get(), 0);
    }
}

/// Ten pages are free beside the first, which needs no more of them.
#[test]
fn choices_to_come_are_among_what_a_request_can_need() {
    // Seven pages, and eight for each of two; or eight, the last of which is copied, and nine for each.
    for (len, choices, fits) in [(28, 2, true), (30, 2, false), (30, 1, true)] {
        let config = EngineConfig { prompt_share: 0.5, ..EngineConfig::new(8, Tokens(48)) };
        let mut bench = Bench::new(config, Bench::pool(12, 4));
        bench.send(Request::new(prompt(1, 5), 3));
        bench.step();
        let id = bench.send(Request { choices, best_of: choices, ..Request::new(prompt(2, len), 4) });
        bench.run();
        bench.assert_all_right();
        assert_eq!(bench.began_in(id) == 1, fits, "{len} tokens, {choices} choices");
        assert_eq!(bench.engine.metrics().preemptions.get(), 0);
    }
}

#[test]
fn nobody_is_taken_to_need_more_than_the_longest_sequence() {
    let config = EngineConfig { prompt_share: 0.1, ..EngineConfig::new(8, Tokens(8)) };
    let mut bench = Bench::new(config, Bench::pool(12, 4));
    bench.send(Request::new(prompt(1, 5), 1000));
    bench.step();
    let id = bench.send(Request::new(prompt(2, 7), 1000));
    bench.step();
    assert_eq!(bench.began_in(id), 1);
}

/// The first has read two of its eight pages; the other six are promised to it and nobody else's.
#[test]
fn what_is_promised_to_a_prompt_is_not_kept_back_for_it_a_second_time() {
    let config = EngineConfig { chunk: (Tokens(10), Tokens(10)), ..EngineConfig::new(8, Tokens(48)) };
    let mut bench = Bench::new(config, Bench::pool(12, 4));
    bench.send(Request::new(prompt(1, 31), 1));
    let second = bench.send(Request::new(prompt(2, 15), 1));
    bench.step();
    assert_eq!(bench.began_in(second), 0);
    bench.run();
    bench.assert_all_right();
    assert_eq!(bench.engine.metrics().preemptions.get(), 0);
}

#[test]
fn pages_that_a_prompt_shares_count_neither_for_its_share_nor_for_what_it_can_need() {
    // Eight pages are free beside the four of the first, three of which are shared; six of the eight are for new prompts.
    // The first may come to need four more, or none.
    for (own, first_says, fits) in [(24, 19, true), (32, 3, true), (32, 19, false)] {
        let mut bench = Bench::small(12, 4, 8);
        bench.send(Request::new(prompt(1, 13), first_says));
        bench.step();
        assert_eq!(bench.used(), 4);
        let id = bench.send(Request::new([prompt(1, 12), prompt(2, own)].concat(), 0));
        bench.run();
        bench.assert_all_right();
        assert_eq!(bench.began_in(id) == 1, fits, "{own} of its own, {first_says} to say");
    }
}

#[test]
fn where_nothing_runs_a_prompt_may_take_every_page() {
    let mut bench = Bench::small(12, 4, 8);
    let id = bench.send(Request::new(prompt(1, 47), 1));
    bench.step();
    assert_eq!(bench.used(), 12);
    bench.run();
    bench.assert_right(id);
    // Even if it may come to need more than there is, for a second choice.
    let two = bench.send(Request { choices: 2, best_of: 2, ..Request::new(prompt(2, 44), 4) });
    let next = bench.steps;
    bench.run();
    bench.assert_right(two);
    assert_eq!(bench.began_in(two), next);
    assert_eq!(bench.log.of(2)[0].rows, 44);
    // In chunks as large as there is room for.
    let config = EngineConfig { chunk: (Tokens(8), Tokens(16)), ..EngineConfig::new(8, Tokens(48)) };
    let mut bench = Bench::new(config, Bench::pool(12, 4));
    bench.send(Request { choices: 2, best_of: 2, ..Request::new(prompt(2, 44), 4) });
    bench.step();
    assert_eq!(bench.log.of(2)[0].rows, 16);
}

#[test]
fn pages_promised_to_a_prompt_under_way_go_to_nobody_else() {
    let config = EngineConfig { chunk: (Tokens(10), Tokens(10)), ..EngineConfig::new(8, Tokens(48)) };
    let mut bench = Bench::new(config, Bench::pool(12, 4));
    // It has taken two of its eight pages when the other asks for four: of the ten left only four are not promised.
    let first = bench.send(Request::new(prompt(1, 32), 4));
    let second = bench.send(Request::new(prompt(2, 16), 1));
    bench.run();
    bench.assert_all_right();
    assert!(bench.began_in(second) > bench.ended_in(first));
    assert_eq!(bench.engine.metrics().preemptions.get(), 0);
}

#[test]
fn a_full_queue_refuses_until_one_of_it_begins_or_is_cancelled() {
    let config = EngineConfig { max_waiting: 2, ..EngineConfig::new(1, Tokens(48)) };
    let mut bench = Bench::new(config, Bench::pool(12, 4));
    bench.send(Request::new(prompt(1, 5), 3));
    let second = bench.send(Request::new(prompt(2, 5), 3));
    let refused = bench.try_send(Request::new(prompt(3, 5), 3)).unwrap_err();
    assert!(matches!(refused, SubmitError::QueueFull { waiting: 2, .. }), "{refused}");
    assert_eq!(refused.to_string(), "2 requests are waiting already, as many as may: try again in 1 s");
    bench.step();
    bench.send(Request::new(prompt(3, 5), 3));
    bench.try_send(Request::new(prompt(4, 5), 3)).unwrap_err();
    bench.engine.cancel(second);
    bench.step();
    bench.send(Request::new(prompt(4, 5), 3));
    bench.run();
    bench.assert_nothing_left();
}

#[test]
fn who_was_looked_at_and_found_no_room_keeps_its_place_in_the_queue() {
    let mut bench =
        ten_of_twelve_pages_free(EngineConfig { max_waiting: 1, ..EngineConfig::new(8, Tokens(48)) });
    let waits = bench.send(Request::new(prompt(2, 36), 1));
    bench.run_steps(3);
    assert_eq!(bench.engine.intake().waiting(), 1);
    let refused = bench.try_send(Request::new(prompt(3, 4), 1)).unwrap_err();
    assert!(matches!(refused, SubmitError::QueueFull { waiting: 1, .. }), "{refused}");
    bench.run();
    bench.assert_right(waits);
    bench.assert_nothing_left();
}

#[test]
fn those_refused_are_told_to_come_back_after_the_usual_wait() {
    let config = EngineConfig { max_waiting: 1, ..EngineConfig::new(1, Tokens(48)) };
    let mut bench = Bench::new(config, Bench::pool(12, 4));
    bench.send(Request::new(prompt(1, 5), 2));
    bench.step();
    let waited = bench.send(Request::new(prompt(2, 5), 2));
    bench.now += 160_000_000;
    bench.run();
    assert!(bench.outputs(waited).usage.queued >= Duration::from_secs(160));
    bench.send(Request::new(prompt(3, 5), 2));
    let refused = bench.try_send(Request::new(prompt(4, 5), 2)).unwrap_err();
    let SubmitError::QueueFull { retry_after, .. } = refused else { panic!("{refused}") };
    assert!(
        retry_after >= Duration::from_secs(10) && retry_after <= Duration::from_secs(160),
        "{retry_after:?}"
    );
}

#[test]
fn pages_freed_in_a_step_serve_its_own_admissions() {
    let mut bench = Bench::small(4, 4, 8);
    let first = bench.send(Request::new(prompt(1, 10), 3));
    let second = bench.send(Request::new(prompt(2, 14), 2));
    bench.step_until(|bench| bench.ended(first));
    assert_eq!(bench.used(), 3, "its pages are still there after its last step");
    bench.step();
    assert_eq!(bench.began_in(second), bench.ended_in(first) + 1);
    assert_eq!(bench.used(), 4);
    bench.run();
    bench.assert_all_right();
}

#[test]
fn who_waits_for_pages_begins_in_the_step_that_frees_them_while_others_run() {
    let mut bench = ten_of_twelve_pages_free(EngineConfig::new(8, Tokens(48)));
    let short = bench.send(Request::new(prompt(2, 15), 2));
    bench.step();
    let waits = bench.send(Request::new(prompt(3, 24), 1));
    bench.run();
    bench.assert_all_right();
    assert_eq!((bench.began_in(short), bench.ended_in(short)), (1, 2));
    assert_eq!(bench.began_in(waits), 3);
}

#[test]
fn one_that_finds_no_room_does_not_hold_up_who_comes_before_it() {
    let mut bench = ten_of_twelve_pages_free(EngineConfig::new(8, Tokens(48)));
    let large = bench.send(Request::new(prompt(2, 36), 1));
    bench.step();
    let small = bench.send(Request { priority: -9, ..Request::new(prompt(3, 4), 1) });
    bench.step();
    assert_eq!(bench.began_in(small), 2);
    bench.run();
    bench.assert_all_right();
    assert!(bench.began_in(large) > 2);
}

/// A conversation goes on while the answer before it is still being said.
#[test]
fn who_finds_no_room_is_looked_at_again_because_others_compute_what_it_needs() {
    let mut bench = Bench::small(22, 4, 8);
    let first = Request::new(prompt(1, 4), 80);
    let said = expected(&first, 0, Tokens(88));
    bench.send(first.clone());
    bench.step();
    // Eighteen pages of twenty, of which twelve are shared once the other has said so much.
    let waits = bench.send(Request::new([&first.prompt, &said[..44], &prompt(2, 24)].concat(), 1));
    bench.run();
    bench.assert_all_right();
    let (began, ended) = (bench.began_in(waits), bench.ended_in(RequestId(0)));
    assert!(began > 1 && began < ended, "it began in step {began}, the other ended in {ended}");
}

/// The one page that its predecessor had is pinned while it has it, and there is no more room afterwards.
#[test]
fn where_nothing_runs_the_first_is_looked_at_even_if_there_is_no_more_room() {
    let settings = Settings { pin_quota: Pages(1), ..Bench::pool(5, 4) };
    let size = settings.page_size;
    let mut bench = Bench::new(EngineConfig::new(8, Tokens(16)), settings);
    let first = Request::new(prompt(1, 3), 2);
    bench.send(first.clone());
    bench.step();
    let waits = bench.send(Request::new(prompt(2, 15), 1));
    bench.step();
    let whole = [first.prompt.clone(), expected(&first, 0, Tokens(16))[..1].to_vec()].concat();
    let (_, pinned) = bench.engine.pin(&Prompt::new(whole, Scope::default(), size).unwrap()).unwrap();
    assert_eq!(pinned, Tokens(4));
    bench.run_steps(4);
    bench.assert_right(waits);
}

#[test]
fn a_step_decodes_then_goes_on_with_prompts_then_begins_new_ones() {
    let config = EngineConfig { chunk: (Tokens(10), Tokens(10)), ..EngineConfig::new(8, Tokens(200)) };
    let mut bench = Bench::new(config, Bench::pool(50, 4));
    bench.send(Request::new(prompt(1, 3), 9));
    bench.step();
    bench.send(Request::new(prompt(2, 40), 1));
    bench.step();
    bench.send(Request { priority: -9, ..Request::new(prompt(3, 6), 1) });
    bench.step();
    let span = |who, start, rows| Span { who, start, rows };
    assert_eq!(bench.log.steps()[2], [span(1, 4, 1), span(2, 8, 8), span(3, 0, 2)]);
    bench.run();
    bench.assert_all_right();
}

#[test]
fn a_static_batch_ends_before_the_next_begins() {
    for batching in [Batching::Static, Batching::Continuous] {
        let config = EngineConfig { batching, ..EngineConfig::new(2, Tokens(48)) };
        let mut bench = Bench::new(config, Bench::pool(12, 4));
        let [short, long, next] =
            [(1, 2), (2, 6), (3, 2)].map(|(who, n)| bench.send(Request::new(prompt(who, 5), n)));
        bench.run();
        bench.assert_all_right();
        assert_eq!((bench.began_in(short), bench.began_in(long)), (0, 0));
        let before = if batching == Batching::Static { long } else { short };
        assert_eq!(bench.began_in(next), bench.ended_in(before) + 1, "{batching:?}");
    }
}

#[test]
fn a_static_batch_is_filled_while_its_prompts_are_read_and_then_closed() {
    let (batching, chunk) = (Batching::Static, (Tokens(8), Tokens(8)));
    let config = EngineConfig { batching, chunk, ..EngineConfig::new(4, Tokens(48)) };
    let mut bench = Bench::new(config, Bench::pool(36, 4));
    let mut send = |who, len, max_tokens| {
        let id = bench.send(Request::new(prompt(who, len), max_tokens));
        bench.step();
        id
    };
    // The second comes right after the first has begun, and fills two steps by itself; the third finds room behind it.
    let [_, second, third] = [(1, 4, 9), (2, 19, 2), (3, 4, 2)].map(|(who, len, n)| send(who, len, n));
    bench.run_steps(2);
    let late = bench.send(Request::new(prompt(4, 4), 2));
    bench.run();
    bench.assert_all_right();
    assert_eq!((bench.began_in(second), bench.began_in(third)), (1, 3));
    assert_eq!(bench.began_in(late), bench.ended_in(RequestId(0)) + 1);
}

#[test]
fn with_one_page_a_slot_every_slot_can_be_taken() {
    let settings = Settings { prefix_cache: false, ..Bench::pool(3, 32) };
    let mut bench = Bench::new(EngineConfig::new(8, Tokens(32)), settings);
    for who in 1..=5 {
        bench.send(Request::new(prompt(who, 10), 20));
    }
    bench.step();
    assert_eq!(bench.log.steps()[0].len(), 3);
    bench.run();
    bench.assert_all_right();
    assert_eq!(bench.engine.metrics().preemptions.get(), 0);
    assert_eq!(bench.log.computed(), 5 * 29);
}

#[test]
fn lower_priorities_go_first_and_equal_ones_as_they_came() {
    let mut bench = Bench::small(12, 4, 1);
    let ids = [5, 0, -5, 0].map(|priority| {
        let request = Request::new(prompt(1 + bench.requests.len() as u32, 5), 1);
        bench.send(Request { priority, ..request })
    });
    bench.run();
    let [late, first_equal, early, second_equal] = ids.map(|id| bench.began_in(id));
    assert!(early < first_equal && first_equal < second_equal && second_equal < late);
}

#[test]
fn who_waits_long_enough_goes_before_higher_priorities_that_came_later() {
    for (aging, served) in [(1, true), (1000, false)] {
        let config = EngineConfig { aging: Duration::from_secs(aging), ..EngineConfig::new(1, Tokens(48)) };
        let mut bench = Bench::new(config, Bench::pool(12, 4));
        let low = bench.send(Request { priority: 5, ..Request::new(prompt(63, 5), 1) });
        bench.send(Request::new(prompt(0, 5), 1));
        for who in 0..30 {
            bench.send(Request::new(prompt(who, 5), 1));
            bench.now += 1_000_000;
            bench.step();
        }
        assert_eq!(bench.ended(low), served, "a step of priority takes {aging} s");
        bench.run();
        bench.assert_all_right();
    }
}

#[test]
fn settings_that_cannot_work_are_refused_with_what_to_change() {
    let good = || EngineConfig::new(8, Tokens(48));
    let refused = |config: EngineConfig, settings: Settings| {
        let runner = fake::PageRunner::new(settings.total, settings.page_size);
        Engine::new(config, settings, Box::new(runner), None).unwrap_err().to_string()
    };
    let chunk = |least, most| EngineConfig { chunk: (Tokens(least), Tokens(most)), ..good() };
    let share = |prompt_share| EngineConfig { prompt_share, ..good() };
    let cases = [
        (EngineConfig { max_batch: 0, ..good() }, "choose a maximum batch size of at least 1"),
        (EngineConfig { max_len: Tokens(0), ..good() }, "choose a maximum length of at least 2 tokens"),
        (EngineConfig { max_len: Tokens(1), ..good() }, "choose a maximum length of at least 2 tokens"),
        (
            EngineConfig { max_len: Tokens(49), ..good() },
            "more memory or lower the maximum length to 48 tokens",
        ),
        (chunk(0, 512), "the first must be 1 or more and not above the second"),
        (chunk(512, 511), "at least 512 tokens and at most 511 tokens"),
        (share(0.0), "choose a share above 0 and at most 1"),
        (share(1.1), "new prompts cannot take 1.1 of the free pages"),
        (share(f32::NAN), "choose a share above 0 and at most 1"),
        (EngineConfig { max_itl: Some(Duration::ZERO), ..good() }, "leave it out or choose at least 1 ms"),
        (EngineConfig { max_waiting: 0, ..good() }, "choose at least 1"),
    ];
    for (config, says) in cases {
        let message = refused(config, Bench::pool(12, 4));
        assert!(message.contains(says), "{message:?} does not say {says:?}");
    }
    let no_pages = Settings { page_size: PageSize::new(4).unwrap(), ..Settings::new(Pages(0)) };
    assert!(refused(good(), no_pages).contains("the pool has no pages"));
    let all_reserved = Settings { reserve: Pages(12), ..Bench::pool(12, 4) };
    assert!(refused(good(), all_reserved).contains("leaves no page"));
}

#[test]
fn there_is_work_from_a_requests_arrival_until_its_pages_are_free() {
    let mut bench = Bench::small(12, 4, 8);
    assert!(!bench.engine.has_work());
    let id = bench.send(Request::new(prompt(1, 5), 1));
    assert!(bench.engine.has_work());
    bench.step();
    assert!(bench.ended(id) && bench.engine.has_work() && bench.used() == 2);
    bench.step();
    assert!(!bench.engine.has_work());
    let id = bench.send(Request::new(prompt(1, 5), 1));
    bench.engine.cancel(id);
    bench.step();
    assert!(bench.ended(id) && !bench.engine.has_work());
    assert_eq!(bench.log.steps().len(), 1, "it never ran");
    bench.assert_nothing_left();
}

#[test]
fn a_prefix_shared_within_a_burst_is_computed_once() {
    let mut bench = Bench::small(200, 4, 8);
    let shared = prompt(1, 64);
    for tail in 2..10 {
        bench.send(Request::new([&shared[..], &prompt(tail, 4)].concat(), 5));
    }
    bench.step();
    let rows: usize = bench.log.steps()[0].iter().map(|span| span.rows).sum();
    assert_eq!(rows, 64 + 8 * 4);
    assert_eq!(bench.used(), 16 + 8);
    bench.run();
    bench.assert_all_right();
}

#[test]
fn sequences_are_apart_in_all_steps_but_those_in_which_one_begins_beside_what_others_fill() {
    let mut apart = Arc::default();
    let settings = Bench::pool(100, 4);
    let mut bench = Bench::with_runner(EngineConfig::new(8, Tokens(100)), settings, |runner| {
        apart = runner.apart.clone()
    });
    let newest = || *apart.lock().unwrap().last().expect("a step");
    bench.send(Request::new(prompt(1, 9), 60));
    bench.step();
    assert!(!newest(), "a prompt that begins may be what others wait for");
    for _ in 0..6 {
        bench.step();
        assert!(newest(), "one token each");
    }
    // Fifteen tokens are there, and the next one fills a page.
    let said = bench.tokens(*bench.requests.keys().next().unwrap());
    let all = [&prompt(1, 9)[..], &said].concat();
    assert_eq!(all.len(), 16);
    bench.send(Request::new([&all[..], &[7]].concat(), 5));
    bench.step();
    let rows: Vec<usize> = bench.log.steps().last().unwrap().iter().map(|span| span.rows).collect();
    assert_eq!(rows, [1, 1], "the second finds all but its last token");
    assert!(!newest(), "in a page that the first one is filling");
    bench.run();
    bench.assert_all_right();
    assert!(newest());
}
