//! A step that fails leaves everything as it was before it.

mod support;

use octavo_types::{Pages, Tokens};
use support::{Simulation, range, small};

#[test]
fn a_failed_prefill_keeps_the_chunks_before_it() {
    let mut sim = Simulation::new(small(16));
    let (seq, _) = sim.admit(&range(0, 14));
    sim.schedule(seq, 6).unwrap();
    sim.run();
    sim.schedule(seq, 8).unwrap();
    sim.crash(3);
    assert_eq!(sim.cache.sequence(seq).unwrap().computed(), Tokens(6));
    assert_eq!(sim.pages(seq).len(), 2);
    let (_, hit) = sim.admit(&range(0, 14));
    assert_eq!(hit.tokens, Tokens(4), "what failed was never public");
    sim.finish(seq);
}

#[test]
fn a_failed_decode_keeps_every_token_before_it() {
    let mut sim = Simulation::new(small(16));
    let seq = sim.compute(&range(0, 7));
    sim.append(seq, 50);
    sim.schedule(seq, 1).unwrap();
    sim.crash(0);
    assert_eq!(sim.cache.sequence(seq).unwrap().computed(), Tokens(7));
    sim.finish(seq);
    sim.free(seq);
    let (_, hit) = sim.admit(&[&range(0, 7)[..], &[50, 51]].concat());
    assert_eq!(hit.tokens, Tokens(8));
}

#[test]
fn those_who_counted_on_pending_pages_return_to_their_last_public_page() {
    let mut sim = Simulation::new(small(16));
    sim.leave_cached(&range(0, 4));
    let (first, hit) = sim.admit(&range(0, 12));
    assert_eq!(hit.tokens, Tokens(4));
    sim.schedule(first, 8).unwrap();
    let (second, hit) = sim.admit(&range(0, 11));
    assert_eq!(hit.tokens, Tokens(8));
    sim.schedule(second, 3).unwrap();
    sim.crash(4);
    for seq in [first, second] {
        assert_eq!(sim.cache.sequence(seq).unwrap().computed(), Tokens(4));
        assert_eq!(sim.pages(seq).len(), 1);
    }
    assert_eq!(sim.cache.counts().used, Pages(1));
    sim.finish(first);
    sim.finish(second);
}

#[test]
fn a_copy_that_was_never_made_is_taken_back() {
    let mut sim = Simulation::new(small(16));
    let parent = sim.compute(&range(0, 6));
    let child = sim.fork(parent);
    let shared = sim.pages(parent);
    sim.append(child, 60);
    sim.schedule(child, 1).unwrap();
    assert_ne!(sim.pages(child), shared);
    sim.crash(0);
    assert_eq!(sim.pages(child), shared);
    assert_eq!(sim.cache.sequence(child).unwrap().computed(), Tokens(6));
    sim.finish(child);
}

#[test]
fn a_partial_hit_whose_copy_failed_is_computed_instead() {
    let mut sim = Simulation::new(small(16));
    sim.leave_cached(&range(0, 8));
    let (seq, hit) = sim.admit(&[&range(0, 6)[..], &[60, 61]].concat());
    assert_eq!(hit.tokens, Tokens(6));
    sim.schedule(seq, 2).unwrap();
    sim.crash(1);
    assert_eq!(sim.cache.sequence(seq).unwrap().computed(), Tokens(4));
    sim.finish(seq);
}

#[test]
fn failing_with_nothing_planned_changes_nothing() {
    let mut sim = Simulation::new(small(16));
    let seq = sim.compute(&range(0, 6));
    let before = sim.cache.counts();
    sim.crash(0);
    assert_eq!(sim.cache.counts(), before);
    sim.decode(seq, &[1, 2, 3]);
}

#[test]
fn the_same_step_can_fail_many_times_and_leaks_nothing() {
    let mut sim = Simulation::new(small(6));
    let seq = sim.compute(&range(0, 6));
    sim.append(seq, 70);
    for operations in 0..14 {
        sim.schedule(seq, 1).unwrap();
        let (other, hit) = sim.admit(&range(0, 14));
        assert_eq!(hit.tokens, Tokens(4));
        sim.schedule(other, 10).unwrap();
        sim.crash(operations);
        assert_eq!(sim.cache.counts().used, Pages(2));
        sim.free(other);
    }
    sim.finish(seq);
}
