//! Numbers that add up.

mod support;

use octavo_kv::{
    Claim, Counters, PageTimes, PolicyKind, Prompt, Reuse, Scope, Settings, Stops, UnknownSequence,
};
use octavo_types::{Bytes, Pages, Timestamp, Tokens};
use std::time::Duration;
use support::{Simulation, range, small};

#[test]
fn used_cached_reserved_and_free_are_apart_and_add_up() {
    let mut sim = Simulation::new(Settings { reserve: Pages(3), pin_quota: Pages(0), ..small(20) });
    sim.compute(&range(0, 10));
    sim.leave_cached(&range(100, 108));
    let counts = sim.cache.counts();
    assert_eq!(
        (counts.used, counts.cached, counts.reserved, counts.free),
        (Pages(3), Pages(2), Pages(3), Pages(12))
    );
    assert!(counts.add_up());
}

#[test]
fn utilisation_and_bytes_follow_the_used_pages() {
    let mut sim = Simulation::new(Settings { page_bytes: Bytes(1000), reserve: Pages(3), ..small(20) });
    let seq = sim.compute(&range(0, 18));
    let snapshot = sim.cache.snapshot();
    assert_eq!(snapshot.utilisation(), 0.25);
    assert_eq!((snapshot.bytes_used(), snapshot.bytes_free()), (Bytes(5000), Bytes(15_000)));
    sim.free(seq);
    let snapshot = sim.cache.snapshot();
    assert_eq!(snapshot.utilisation(), 0.0);
    assert_eq!(snapshot.bytes_free(), Bytes(20_000), "cached pages are there for the taking");
    assert_eq!((snapshot.peak_used, snapshot.peak_bytes()), (Pages(5), Bytes(5000)));
    sim.cache.pin(&sim.prompt(0, &range(0, 8))).unwrap();
    assert_eq!(sim.cache.snapshot().bytes_free(), Bytes(18_000), "but for those that a pin keeps");
}

#[test]
fn peak_use_counts_shared_pages_once_cached_ones_never_and_does_not_fall() {
    let mut sim = Simulation::new(small(20));
    sim.leave_cached(&range(0, 8));
    sim.leave_cached(&range(100, 108));
    let a = sim.compute(&range(0, 9));
    let b = sim.compute(&range(0, 9));
    assert_eq!(sim.cache.snapshot().peak_used, Pages(4));
    sim.free(a);
    sim.free(b);
    sim.compute(&range(200, 204));
    assert_eq!((sim.cache.counts().used, sim.cache.snapshot().peak_used), (Pages(1), Pages(4)));
}

#[test]
fn internal_fragmentation_is_the_empty_share_of_used_pages() {
    let mut sim = Simulation::new(small(20));
    assert_eq!(sim.cache.snapshot().internal_fragmentation(), 0.0);
    let seq = sim.compute(&range(0, 9));
    let snapshot = sim.cache.snapshot();
    assert_eq!((snapshot.unused_slots, snapshot.used_slots), (3, 12));
    assert_eq!(snapshot.internal_fragmentation(), 0.25);
    sim.fork(seq);
    assert_eq!(sim.cache.snapshot().unused_slots, 3, "a shared page counts once");
    sim.decode(seq, &[1, 2, 3]);
    assert_eq!(sim.cache.snapshot().unused_slots, 3, "now only the fork's copy has room");
}

#[test]
fn any_free_page_serves_any_request() {
    let mut sim = Simulation::new(Settings { prefix_cache: false, ..small(16) });
    let all: Vec<_> = (0..16).map(|i| sim.compute(&range(i * 10, i * 10 + 4))).collect();
    for seq in all.iter().step_by(2) {
        sim.free(*seq);
    }
    // Every other page is free: enough for a sequence of eight pages, wherever they lie.
    let seq = sim.compute(&range(500, 532));
    assert_eq!(sim.pages(seq).len(), 8);
}

#[test]
fn pages_allocated_and_freed_are_counted_and_timed() {
    let mut sim = Simulation::new(Settings { prefix_cache: false, ..small(64) });
    for second in 0..5 {
        sim.tick(second);
        let seq = sim.compute(&range(0, 16));
        sim.free(seq);
    }
    sim.compute(&range(0, 20));
    sim.tick(5);
    let snapshot = sim.cache.snapshot();
    assert_eq!((snapshot.counters.allocated.total(), snapshot.counters.freed.total()), (25, 20));
    assert_eq!((snapshot.allocated_per_second, snapshot.freed_per_second), (5.0, 4.0));
    sim.tick(11);
    let snapshot = sim.cache.snapshot();
    let rates = (snapshot.allocated_per_second, snapshot.freed_per_second);
    assert_eq!(rates, (2.1, 1.6), "all but the four of the first second are in the last ten");
    sim.tick(1000);
    assert_eq!(sim.cache.snapshot().allocated_per_second, 0.0);
}

#[test]
fn hits_and_misses_are_counted_in_tokens() {
    let mut sim = Simulation::new(small(64));
    sim.leave_cached(&range(0, 10));
    sim.leave_cached(&range(0, 10));
    let counters = sim.cache.snapshot().counters;
    assert_eq!((counters.lookups, counters.hit_tokens, counters.missed_tokens), (2, 8, 12));
    assert_eq!(counters.computed_tokens, 12);
}

#[test]
fn every_lookup_counts_under_what_ended_it() {
    let mut sim = Simulation::new(small(32));
    for tokens in [range(0, 8), range(0, 9), range(0, 11), [range(0, 6), vec![9; 3]].concat()] {
        sim.leave_cached(&tokens);
    }
    sim.cache.evict(Pages(32));
    sim.leave_cached(&range(0, 9));
    let (seq, _) = sim.cache.admit(sim.prompt(0, &range(0, 9)), Reuse::Nothing).unwrap();
    sim.cache.free(seq).unwrap();
    let one_each =
        Stops { never_seen: 1, whole_prompt: 1, page_not_full: 1, differs: 1, evicted: 1, not_looked_up: 1 };
    assert_eq!(sim.cache.snapshot().counters.stops, one_each);
}

#[test]
fn sequences_forks_and_failed_steps_are_counted() {
    let mut sim = Simulation::new(small(16));
    let counted = |sim: &Simulation| {
        let snapshot = sim.cache.snapshot();
        (snapshot.sequences, snapshot.counters.forks, snapshot.counters.failed_steps)
    };
    let parent = sim.compute(&range(0, 6));
    assert_eq!(counted(&sim), (1, 0, 0));
    let child = sim.fork(parent);
    sim.append(child, 6);
    sim.schedule(child, 1).unwrap();
    sim.crash(0);
    assert_eq!(counted(&sim), (2, 1, 1));
    sim.free(parent);
    assert_eq!(counted(&sim), (1, 1, 1));
}

/// What lookups leave in the counters.
fn lookups(sim: &Simulation) -> (u64, u64, u64, Stops, u64) {
    let Counters { lookups, hit_tokens, missed_tokens, stops, partial_copies, .. } =
        sim.cache.snapshot().counters;
    (lookups, hit_tokens, missed_tokens, stops, partial_copies)
}

#[test]
fn an_admission_counts_as_a_lookup_once_it_is_said_to() {
    let mut sim = Simulation::new(small(64));
    sim.leave_cached(&range(0, 10));
    let (before, pages) = (lookups(&sim), sim.cache.counts());
    let prompt = Prompt::new(range(0, 10), Scope::default(), sim.cache.settings().page_size).unwrap();
    let (undone, hit) = sim.cache.admit_uncounted(prompt, Reuse::Longest).unwrap();
    assert_eq!(hit.tokens, Tokens(8));
    let prompt = sim.cache.preempt(undone).unwrap();
    assert_eq!(prompt.tokens(), range(0, 10));
    sim.cache.check().unwrap();
    assert_eq!((lookups(&sim), sim.cache.counts()), (before, pages), "it is as if it had not been");
    let (seq, hit) = sim.cache.admit_uncounted(prompt, Reuse::Longest).unwrap();
    sim.cache.count_lookup(seq, &hit).unwrap();
    let after = lookups(&sim);
    assert_eq!((after.0, after.1, after.2), (before.0 + 1, before.1 + 8, before.2 + 2));
    assert_eq!(sim.cache.count_lookup(undone, &hit).unwrap_err(), UnknownSequence(undone));
}

#[test]
fn only_what_a_counted_lookup_found_is_evicted_as_a_prefix() {
    for counted in [false, true] {
        let mut sim = Simulation::new(Settings { policy: PolicyKind::Priority, ..small(64) });
        sim.leave_cached(&range(0, 10));
        let prompt = Prompt::new(range(0, 10), Scope::default(), sim.cache.settings().page_size).unwrap();
        let (seq, hit) = sim.cache.admit_uncounted(prompt, Reuse::Longest).unwrap();
        // As an engine does: some of it is in the step before the admission is final.
        sim.cache.schedule(seq, Tokens(2), Claim::New).unwrap();
        if counted {
            sim.cache.count_lookup(seq, &hit).unwrap();
        }
        sim.cache.complete();
        sim.free(seq);
        sim.cache.evict(Pages(64));
        let evicted = sim.cache.snapshot().counters.evicted;
        assert_eq!((evicted.prefix, evicted.total()), (if counted { 2 } else { 0 }, 2));
    }
}

#[test]
fn the_lives_and_idle_times_of_pages_are_noted_once() {
    let at = |seconds| Timestamp::from_secs(seconds);
    let mut sim = Simulation::new(small(20));
    sim.cache.tick(at(10));
    sim.leave_cached(&range(0, 8));
    sim.cache.tick(at(13));
    let again = sim.compute(&range(0, 9));
    let found = sim.cache.take_page_times();
    assert_eq!(found.reuse_gap, [Duration::from_secs(3); 2], "two pages were found idle");
    sim.free(again);
    sim.cache.tick(at(20));
    sim.cache.evict(Pages(20));
    let evicted = sim.cache.take_page_times();
    assert_eq!(evicted.lifetime, [Duration::from_secs(10); 2]);
    assert_eq!(evicted.idle_before_evict, [Duration::from_secs(7); 2]);
    assert_eq!(sim.cache.take_page_times(), PageTimes::default());
}
