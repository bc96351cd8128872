//! Prompts are read in chunks.

mod fake;

use fake::{Bench, prompt};
use octavo_engine::{EngineConfig, Event, FinishReason, Request, RequestId};
use octavo_kv::{Prompt, Scope, Settings};
use octavo_types::{Bytes, KvDtype, KvSpec, PageSize, Pages, Tokens};
use std::time::Duration;

fn pages_of_sixteen(total: u32, max_len: u32) -> Bench {
    Bench::new(EngineConfig::new(8, Tokens(max_len)), Settings::new(Pages(total)))
}

/// How far its prompt was, event by event.
fn progress(bench: &Bench, id: RequestId) -> Vec<(u32, u32, u32)> {
    let own = bench.events.iter().filter(|(_, of, _)| *of == id);
    let read = own.filter_map(|(_, _, event)| match event {
        Event::Prefill { done, total, cached } => Some((done.0, total.0, cached.0)),
        _ => None,
    });
    read.collect()
}

#[test]
fn a_prompt_is_read_in_chunks_each_committed_before_the_next() {
    let mut bench = pages_of_sixteen(2000, 20_000);
    let text = prompt(1, 10_007);
    let hashed = Prompt::new(text.clone(), Scope::default(), PageSize::DEFAULT).unwrap();
    let id = bench.send(Request::new(text, 3));
    let mut read = 0;
    while read < 10_007 {
        bench.step();
        let span = bench.log.steps().last().unwrap()[0];
        assert_eq!(span.start, read, "it begins where the last one ended");
        read += span.rows as u32;
        let whole = (512..=2048).contains(&span.rows) && span.rows.is_multiple_of(16);
        assert!(whole || read == 10_007, "{span:?}");
        assert_eq!(bench.used(), read.div_ceil(16), "no page is taken before its time");
        let found = bench.engine.cache().lookup(&hashed).tokens;
        assert_eq!(found.0, read.min(10_006) / 16 * 16, "others can share what has been read");
    }
    bench.run();
    bench.assert_right(id);
    bench.assert_nothing_left();
}

#[test]
fn chunks_are_large_with_room_and_small_under_pressure() {
    let chunks = |total: u32, len: usize| {
        let mut bench = pages_of_sixteen(total, total * 16);
        bench.send(Request::new(prompt(1, len), 1));
        bench.run();
        bench.assert_all_right();
        let mut rows: Vec<_> = bench.log.of(1).iter().map(|span| span.rows).collect();
        rows.pop();
        rows
    };
    let roomy = chunks(10_000, 10_000);
    assert!(roomy.iter().all(|rows| (1900..=2048).contains(rows)), "{roomy:?}");
    let half = chunks(1250, 10_000);
    assert!(half[1..].iter().all(|rows| (1200..=1300).contains(rows)), "{half:?}");
    let tight = chunks(626, 10_000);
    assert_eq!(tight[0], 2048, "nothing was promised yet");
    assert!(tight[1..].iter().all(|rows| *rows == 512), "{tight:?}");
}

/// Of a million tokens a row is four megabytes, and sixteen rows are 64.
#[test]
fn logits_of_a_prompt_take_64_megabytes_a_step_at_most() {
    let with = |vocab: usize| {
        let config = EngineConfig::new(8, Tokens(48));
        Bench::with_runner(config, Bench::pool(96, 1), |runner| runner.vocab = vocab)
    };
    for (vocab, chunks) in
        [(1 << 20, vec![16, 16, 5]), (3 << 19, vec![10, 10, 10, 7]), (1 << 19, vec![32, 5])]
    {
        let mut bench = with(vocab);
        let id = bench.send(Request { prompt_logprobs: Some(0), ..Request::new(prompt(1, 37), 0) });
        bench.send(Request::new(prompt(2, 37), 0));
        bench.run();
        bench.assert_all_right();
        let rows = |who| bench.log.of(who).iter().map(|span| span.rows).collect::<Vec<_>>();
        assert_eq!((rows(1), rows(2)), (chunks, vec![37]), "{vocab} tokens");
        assert_eq!(bench.outputs(id).prompt_logprobs.len(), 37);
    }
    // One row alone is more than that.
    let mut bench = with((1 << 24) + 1);
    let id = bench.send(Request { prompt_logprobs: Some(0), ..Request::new(prompt(1, 3), 0) });
    bench.run();
    bench.assert_right(id);
    assert_eq!(bench.log.of(1).len(), 3);
}

#[test]
fn prompts_whose_logits_are_wanted_share_what_a_step_keeps() {
    let config = EngineConfig::new(8, Tokens(48));
    let mut bench = Bench::with_runner(config, Bench::pool(96, 1), |runner| runner.vocab = 1 << 20);
    for who in 1..=3 {
        bench.send(Request { prompt_logprobs: Some(0), ..Request::new(prompt(who, 20), 0) });
    }
    bench.run();
    bench.assert_all_right();
    let steps = bench.log.steps();
    let rows: Vec<Vec<_>> = steps.iter().map(|step| step.iter().map(|span| span.rows).collect()).collect();
    // Sixteen rows, and one of each that finds nothing left.
    assert_eq!(rows, [vec![16, 1, 1], vec![4, 12, 1], vec![7, 9], vec![9]]);
}

#[test]
fn the_reserve_is_no_room_for_larger_chunks() {
    let config = EngineConfig { chunk: (Tokens(8), Tokens(16)), ..EngineConfig::new(8, Tokens(48)) };
    let settings = Settings { reserve: Pages(6), pin_quota: Pages(0), ..Bench::pool(12, 4) };
    let mut bench = Bench::new(config, settings);
    bench.send(Request::new(prompt(1, 40), 1));
    bench.step();
    assert_eq!(bench.log.of(1)[0].rows, 12, "half of the pages are to be had");
}

#[test]
fn chunks_shrink_as_others_fill_the_pool() {
    let mut bench = pages_of_sixteen(1000, 16_000);
    bench.send(Request::new(prompt(1, 8_000), 500));
    bench.step_until(|bench| bench.log.of(1).last().is_some_and(|span| span.rows == 1));
    bench.send(Request::new(prompt(2, 6_000), 1));
    bench.run();
    bench.assert_all_right();
    let rows: Vec<_> = bench.log.of(2).iter().map(|span| span.rows).collect();
    let (_, whole) = rows.split_last().unwrap();
    assert!(whole.iter().all(|rows| (512..1400).contains(rows)), "{rows:?}");
    assert!(whole[1] < whole[0], "its own pages are spoken for: {rows:?}");
}

#[test]
fn progress_goes_up_to_the_total_and_says_what_was_cached() {
    let mut bench = pages_of_sixteen(1000, 16_000);
    let text = prompt(1, 9_000);
    bench.send(Request::new(text[..3_000].to_vec(), 1));
    bench.run();
    let id = bench.send(Request::new(text, 4));
    bench.run();
    let progress = progress(&bench, id);
    assert!(progress.len() > 1 && progress.is_sorted_by(|a, b| a.0 < b.0), "{progress:?}");
    assert_eq!(progress.last(), Some(&(9_000, 9_000, 2_992)));
    assert!(
        progress.iter().all(|(done, total, cached)| *done > 2_992 && (*total, *cached) == (9_000, 2_992))
    );
    assert_eq!(bench.outputs(id).usage.cached_tokens, Tokens(2_992));
}

#[test]
fn progress_never_goes_back_even_if_pages_were_lost() {
    let config = EngineConfig { chunk: (Tokens(2), Tokens(2)), ..EngineConfig::new(8, Tokens(48)) };
    let mut bench = Bench::new(config, Bench::pool(12, 4));
    for who in 1..4 {
        bench.send(Request::new(prompt(who, 4), 24));
        bench.step();
    }
    let id = bench.send(Request::new(prompt(4, 16), 2));
    bench.run();
    bench.assert_all_right();
    assert!(bench.outputs(id).usage.preemptions > 0);
    assert!(bench.engine.metrics().tokens_recomputed.get() > 0, "something of it was lost");
    let progress = progress(&bench, id);
    assert!(progress.is_sorted_by(|a, b| a.0 < b.0), "{progress:?}");
    assert_eq!(progress.last().map(|last| (last.0, last.1)), Some((16, 16)));
}

#[test]
fn cancelled_in_the_middle_a_prompt_goes_on_where_it_stopped_when_it_comes_again() {
    let mut bench = pages_of_sixteen(1000, 16_000);
    let id = bench.send(Request::new(prompt(1, 9_000), 4));
    bench.run_steps(3);
    let (done, ..) = *progress(&bench, id).last().unwrap();
    assert!(done > 1024 && done < 9_000);
    bench.engine.cancel(id);
    bench.step();
    assert_eq!(bench.used(), 0);
    assert!(!bench.engine.has_work());
    let outputs = bench.outputs(id);
    assert_eq!(outputs.choices[0].finish, Some(FinishReason::Cancelled));
    assert_eq!(outputs.usage.completion_tokens, 0);
    bench.log.clear();
    let again = bench.send(Request::new(prompt(1, 9_000), 4));
    bench.run();
    bench.assert_right(again);
    assert_eq!(bench.log.computed() as u32, 9_000 - done + 3);
    assert_eq!(bench.outputs(again).usage.cached_tokens, Tokens(done));
    bench.assert_nothing_left();
}

#[test]
fn beside_decodes_a_chunk_is_split_to_keep_their_pace() {
    let max_itl = Some(Duration::from_millis(20));
    let config = EngineConfig { max_itl, ..EngineConfig::new(8, Tokens(8_000)) };
    let runner = |runner: &mut fake::PageRunner| runner.pace = Duration::from_millis(1);
    let mut bench = Bench::with_runner(config, Settings::new(Pages(500)), runner);
    let decodes = bench.send(Request::new(prompt(1, 8), 60));
    bench.run_steps(3);
    let reads = bench.send(Request::new(prompt(2, 100), 1));
    bench.run();
    bench.assert_all_right();
    assert!(bench.ended_in(reads) < bench.ended_in(decodes), "it was read beside the other");
    let rows: Vec<_> = bench.log.of(2).iter().map(|span| span.rows).collect();
    assert!(rows.len() > 2 && rows.iter().all(|rows| *rows <= 32), "{rows:?}");
}

#[test]
fn where_nothing_decodes_a_chunk_is_whole_whatever_the_pace() {
    let max_itl = Some(Duration::from_millis(1));
    let config = EngineConfig { max_itl, ..EngineConfig::new(8, Tokens(8_000)) };
    let mut bench = Bench::new(config, Settings::new(Pages(500)));
    for who in 1..4 {
        bench.send(Request::new(prompt(who, 600), 1));
    }
    bench.run();
    bench.assert_all_right();
    let rows: Vec<_> = bench.log.steps()[0].iter().map(|span| span.rows).collect();
    assert_eq!(rows, [600, 600, 600]);
}

#[test]
fn two_hundred_thousand_tokens_stay_within_four_gigabytes_without_a_spike() {
    let spec = KvSpec::full_attention(24, 2, 128, KvDtype::Fp8, PageSize::DEFAULT).unwrap();
    let budget = Bytes(4_000_000_000);
    let settings = Settings::for_model(&spec, budget);
    let config = EngineConfig::new(4, Tokens(200_100));
    let mut bench = Bench::with_runner(config, settings, |runner| runner.reads = false);
    let id = bench.send(Request::new(prompt(1, 200_000), 1));
    let mut read = 0;
    while read < 200_000 {
        bench.step();
        let span = bench.log.steps().last().unwrap()[0];
        assert!((512..=2048).contains(&span.rows) || read + span.rows as u32 == 200_000);
        read += span.rows as u32;
        assert_eq!(bench.used(), read.div_ceil(16));
    }
    bench.run();
    assert_eq!(bench.outputs(id).failure, None);
    let snapshot = bench.engine.cache().snapshot();
    assert_eq!(snapshot.peak_used, Pages(12_500));
    assert_eq!(snapshot.peak_bytes(), Bytes(12_500 * spec.page_bytes().0));
    assert!(snapshot.peak_bytes() <= budget && snapshot.peak_bytes() > Bytes(2_400_000_000));
    bench.assert_nothing_left();
}
