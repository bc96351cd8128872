//! What lookups find, and the reasons they give.

mod support;

use octavo_kv::{AdmitError, Prompt, Reuse, Scope, Settings, Stop};
use octavo_types::{PageSize, Pages, SeqId, Tokens};
use std::time::Duration;
use support::{Simulation, range, small};

fn with(prefix: &[u32], tail: &[u32]) -> Vec<u32> {
    [prefix, tail].concat()
}

#[test]
fn a_shared_prefix_takes_its_pages_once_and_each_tail_its_own() {
    let mut sim = Simulation::new(small(32));
    let system = range(0, 20);
    let users: Vec<SeqId> =
        (0..4).map(|user| sim.compute(&with(&system, &range(100 * user, 100 * user + 7)))).collect();
    // memory = prefix + sum of unique tokens: 5 shared pages, 2 for each tail of 7
    assert_eq!(sim.cache.counts().used, Pages(5 + 4 * 2));
    for user in &users {
        assert_eq!(sim.pages(*user)[..5], sim.pages(users[0])[..5]);
    }
    assert_eq!(sim.cache.snapshot().counters.computed_tokens, 20 + 4 * 7, "the prefix was computed once");
}

#[test]
fn a_shared_page_outlives_the_sequence_that_made_it() {
    let mut sim = Simulation::new(small(4));
    let first = sim.compute(&range(0, 9));
    let (second, hit) = sim.admit(&range(0, 9));
    assert_eq!(hit.tokens, Tokens(8));
    sim.free(first);
    // The pool has no room to spare: only a page that nobody holds may go.
    let (third, _) = sim.admit(&range(50, 58));
    assert!(sim.schedule(third, 8).is_ok());
    sim.run();
    sim.free(third);
    sim.finish(second);
}

#[test]
fn a_hit_ends_before_the_last_token() {
    let mut sim = Simulation::new(small(16));
    sim.leave_cached(&range(0, 8));
    let (_, hit) = sim.admit(&range(0, 8));
    assert_eq!((hit.tokens, hit.copied, hit.stop), (Tokens(7), Tokens(3), Stop::WholePrompt));
    let (_, hit) = sim.admit(&range(0, 9));
    assert_eq!((hit.tokens, hit.copied, hit.stop), (Tokens(8), Tokens(0), Stop::WholePrompt));
}

#[test]
fn the_beginning_of_a_page_is_reused_by_copying_it() {
    let mut sim = Simulation::new(small(16));
    sim.leave_cached(&range(0, 12));
    let (seq, hit) = sim.admit(&with(&range(0, 6), &[90, 91, 92]));
    assert_eq!((hit.tokens, hit.copied), (Tokens(6), Tokens(2)));
    let copy = sim.cache.step().copies()[0];
    assert_eq!((copy.to, copy.slots), (sim.pages(seq)[1], Tokens(2)));
    sim.finish(seq);
    assert_eq!(sim.cache.snapshot().counters.partial_copies, 1);
    // The page it was copied from is as it was.
    let (again, hit) = sim.admit(&range(0, 13));
    assert_eq!(hit.tokens, Tokens(12));
    sim.finish(again);
}

#[test]
fn the_page_copied_from_is_not_evicted_before_the_copy_is_made() {
    let mut sim = Simulation::new(small(3));
    sim.leave_cached(&range(0, 4));
    let (seq, hit) = sim.admit(&with(&range(0, 2), &[90, 91, 92, 93, 94]));
    assert_eq!(hit.copied, Tokens(2));
    // The source, the copy and one more page are all there is.
    sim.schedule(seq, 5).unwrap();
    assert!(!sim.pages(seq).contains(&sim.cache.step().copies()[0].from));
    sim.run();
}

#[test]
fn without_room_for_the_copy_the_full_pages_are_still_shared() {
    let mut sim = Simulation::new(small(3));
    let held = sim.compute(&range(0, 12));
    let (seq, hit) = sim.admit(&with(&range(0, 6), &[90]));
    assert_eq!((hit.tokens, hit.copied), (Tokens(4), Tokens(0)));
    sim.free(held);
    sim.finish(seq);
}

#[test]
fn tenants_with_other_salts_or_adapters_never_share() {
    let mut sim = Simulation::new(small(16));
    let first = sim.compute_as(1, &range(0, 9));
    let (second, hit) = sim.admit_as(2, &range(0, 9));
    assert_eq!(hit.tokens, Tokens(0));
    sim.finish(second);
    assert!(sim.pages(first).iter().all(|page| !sim.pages(second).contains(page)));
    let (_, hit) = sim.admit_as(1, &range(0, 9));
    assert_eq!(hit.tokens, Tokens(8));
    assert_ne!(Scope::new(b"t", b"adapter"), Scope::new(b"t", b"other"));
}

#[test]
fn a_tenant_learns_nothing_of_what_another_has_cached() {
    let mut alone = Simulation::new(small(16));
    let mut beside = Simulation::new(small(16));
    beside.tick(5);
    alone.tick(5);
    for tokens in [range(0, 9), range(0, 6), with(&range(0, 6), &[8, 8, 8])] {
        let seq = beside.compute_as(1, &tokens);
        beside.free(seq);
    }
    beside.cache.evict(Pages(1));
    for tokens in [range(0, 9), range(0, 6), range(0, 3), with(&range(0, 5), &[7; 9])] {
        let reasons = [&alone, &beside].map(|sim| sim.cache.lookup(&sim.prompt(2, &tokens)));
        assert_eq!(reasons[0], reasons[1]);
    }
}

#[test]
fn a_request_for_its_prompts_logprobs_computes_everything_and_still_leaves_it_cached() {
    let mut sim = Simulation::new(small(16));
    sim.leave_cached(&range(0, 9));
    let prompt = sim.prompt(0, &range(0, 13));
    let (seq, hit) = sim.cache.admit(prompt, Reuse::Nothing).unwrap();
    assert_eq!((hit.tokens, hit.stop), (Tokens(0), Stop::NotLookedUp));
    sim.known.insert(seq, support::Known { salt: 0, tokens: range(0, 13) });
    sim.finish(seq);
    sim.free(seq);
    let (_, hit) = sim.admit(&range(0, 13));
    assert_eq!(hit.tokens, Tokens(12));
}

#[test]
fn with_the_prefix_cache_off_nothing_is_kept() {
    let mut sim = Simulation::new(Settings { prefix_cache: false, ..small(16) });
    sim.leave_cached(&range(0, 9));
    assert_eq!(sim.cache.counts().cached, Pages(0));
    let (_, hit) = sim.admit(&range(0, 9));
    assert_eq!((hit.tokens, hit.stop), (Tokens(0), Stop::NotLookedUp));
}

#[test]
fn keys_become_public_only_once_their_tokens_are_computed() {
    let mut sim = Simulation::new(small(16));
    let (first, _) = sim.admit(&range(0, 9));
    let (_, hit) = sim.admit(&range(0, 9));
    assert_eq!(hit.tokens, Tokens(0), "admitted is not computed");
    sim.schedule(first, 6).unwrap();
    sim.run();
    let (_, hit) = sim.admit(&range(0, 9));
    assert_eq!(hit.tokens, Tokens(4), "the second page is not full yet");
}

#[test]
fn within_a_batch_a_later_request_shares_what_an_earlier_one_is_about_to_fill() {
    let mut sim = Simulation::new(small(16));
    let (first, _) = sim.admit(&range(0, 10));
    sim.schedule(first, 10).unwrap();
    let (second, hit) = sim.admit(&with(&range(0, 8), &[70, 71, 72]));
    assert_eq!(hit.tokens, Tokens(8));
    sim.schedule(second, 3).unwrap();
    assert_eq!(sim.pages(first)[..2], sim.pages(second)[..2]);
    sim.run();
    assert_eq!(sim.cache.snapshot().counters.computed_tokens, 10 + 3);
}

#[test]
fn a_page_that_is_yet_to_be_filled_is_not_copied_from() {
    let mut sim = Simulation::new(small(16));
    let (first, _) = sim.admit(&range(0, 8));
    sim.schedule(first, 8).unwrap();
    let (second, hit) = sim.admit(&with(&range(0, 6), &[70, 71, 72]));
    assert_eq!((hit.tokens, hit.copied), (Tokens(4), Tokens(0)));
    sim.schedule(second, 5).unwrap();
    sim.run();
}

#[test]
fn two_that_compute_the_same_page_at_once_leave_it_cached_once() {
    let mut sim = Simulation::new(small(16));
    let (first, _) = sim.admit(&range(0, 8));
    let (second, _) = sim.admit(&range(0, 8));
    sim.schedule(first, 8).unwrap();
    sim.schedule(second, 8).unwrap();
    sim.run();
    assert_ne!(sim.pages(first), sim.pages(second));
    sim.free(first);
    sim.free(second);
    assert_eq!(sim.cache.counts().cached, Pages(2));
}

#[test]
fn pages_filled_by_decoding_are_found_by_the_next_turn() {
    let mut sim = Simulation::new(small(16));
    let seq = sim.compute(&range(0, 6));
    sim.decode(seq, &[20, 21, 22, 23, 24]);
    sim.free(seq);
    let (_, hit) = sim.admit(&with(&range(0, 6), &[20, 21, 22, 23, 24, 25]));
    assert_eq!(hit.tokens, Tokens(8));
}

#[test]
fn a_lookup_says_why_it_stopped() {
    let mut sim = Simulation::new(small(8));
    sim.tick(100);
    sim.leave_cached(&range(0, 8));
    let stop = |sim: &Simulation, tokens: &[u32]| sim.cache.lookup(&sim.prompt(0, tokens)).stop;
    assert_eq!(stop(&sim, &range(0, 9)), Stop::WholePrompt);
    assert_eq!(stop(&sim, &range(0, 16)), Stop::NeverSeen { page: Pages(2) });
    assert_eq!(stop(&sim, &range(0, 11)), Stop::PageNotFull { from: Tokens(8) });
    assert_eq!(stop(&sim, &with(&range(0, 6), &[9, 9, 9])), Stop::Differs { at: Tokens(6) });
    assert_eq!(stop(&sim, &[5; 9]), Stop::Differs { at: Tokens(0) });
    sim.tick(103);
    sim.cache.evict(Pages(1));
    sim.tick(110);
    let evicted = Stop::Evicted { page: Pages(1), ago: Duration::from_secs(7) };
    assert_eq!(stop(&sim, &range(0, 9)), evicted);
    let empty = Simulation::new(small(8));
    assert_eq!(stop(&empty, &range(0, 9)), Stop::NeverSeen { page: Pages(0) });
    assert_eq!(stop(&empty, &range(0, 3)), Stop::PageNotFull { from: Tokens(0) });
    let seq = sim.admit(&range(0, 9)).0;
    sim.finish(seq);
    let stops = sim.cache.snapshot().counters.stops;
    assert_eq!((stops.evicted, stops.never_seen), (1, 1));
}

#[test]
fn evictions_are_remembered_up_to_a_limit() {
    let mut sim = Simulation::new(Settings { remember_evicted: 1, ..small(8) });
    sim.leave_cached(&range(0, 4));
    sim.leave_cached(&range(10, 14));
    sim.cache.evict(Pages(2));
    sim.check();
    let stop = |tokens: &[u32]| sim.cache.lookup(&sim.prompt(0, tokens)).stop;
    assert_eq!(stop(&range(0, 5)), Stop::NeverSeen { page: Pages(0) });
    assert!(matches!(stop(&range(10, 15)), Stop::Evicted { .. }));
}

#[test]
fn a_page_computed_again_after_its_eviction_joins_what_was_left_of_its_prefix() {
    let mut sim = Simulation::new(small(8));
    sim.leave_cached(&range(0, 9));
    sim.cache.evict(Pages(2));
    sim.check();
    sim.leave_cached(&range(0, 9));
    let (_, hit) = sim.admit(&range(0, 9));
    assert_eq!(hit.tokens, Tokens(8));
}

#[test]
fn a_prompt_hashed_for_pages_of_another_size_finds_nothing_and_is_not_admitted() {
    let mut sim = Simulation::new(small(8));
    sim.leave_cached(&range(0, 8));
    for tokens in [2, 8] {
        let size = PageSize::new(tokens).unwrap();
        let prompt = Prompt::new(range(0, 9), Scope::default(), size).unwrap();
        let hit = sim.cache.lookup(&prompt);
        assert_eq!((hit.tokens, hit.stop), (Tokens(0), Stop::NotLookedUp));
        let refused = AdmitError::PageSize { prompt: Tokens(tokens), cache: Tokens(4) };
        assert_eq!(sim.cache.admit(prompt, Reuse::Longest), Err(refused));
    }
}
