//! Sequences that grow, share and fork.

mod support;

use octavo_kv::{
    AllocError, Claim, ForkError, KvCache, Prompt, ReleaseError, Reuse, ScheduleError, Scope, Settings,
    UnknownSequence,
};
use octavo_types::{Bytes, GroupId, KvDtype, KvSpec, PageSize, Pages, SeqId, SlotId, Tokens};
use support::{Simulation, range, small};

#[test]
fn a_page_has_sixteen_slots_unless_configured_otherwise() {
    let cache = KvCache::new(Settings::new(Pages(4))).unwrap();
    assert_eq!(cache.settings().page_size.tokens(), Tokens(16));
    let spec = KvSpec::full_attention(28, 8, 128, KvDtype::Bf16, PageSize::DEFAULT).unwrap();
    assert_eq!(spec.plane_shape(), [8, 16, 128]);
}

#[test]
fn a_budget_in_bytes_becomes_as_many_pages_as_fit() {
    let spec = KvSpec::full_attention(28, 8, 128, KvDtype::Bf16, PageSize::DEFAULT).unwrap();
    let settings = Settings::for_model(&spec, Bytes(1 << 30));
    assert_eq!(settings.total, Pages(585));
    assert!(u64::from(settings.total.0) * spec.page_bytes().0 <= 1 << 30);
    let cache = KvCache::new(settings).unwrap();
    assert_eq!(cache.counts().free, Pages(585));
    assert_eq!(cache.snapshot().bytes_free(), Bytes(585 * spec.page_bytes().0));
}

#[test]
fn a_page_is_taken_only_when_the_last_is_full() {
    let mut sim = Simulation::new(Settings::new(Pages(8)));
    let (seq, _) = sim.admit(&range(0, 15));
    assert_eq!(sim.pages(seq).len(), 0, "nothing is taken before it is needed");
    sim.finish(seq);
    for (len, pages) in [(16, 1), (17, 2), (18, 2), (32, 2), (33, 3)] {
        while sim.cache.sequence(seq).unwrap().tokens().len() < len {
            sim.decode(seq, &[7]);
        }
        assert_eq!(sim.pages(seq).len(), pages, "{len} tokens");
        assert_eq!(sim.cache.counts().used, Pages(pages as u32));
    }
}

#[test]
fn every_position_is_found_through_the_table() {
    let mut sim = Simulation::new(Settings::new(Pages(8)));
    let seq = sim.compute(&range(0, 45));
    let pages = sim.pages(seq);
    let table = sim.cache.sequence(seq).unwrap().table(GroupId(0));
    assert_eq!(pages.len(), 3);
    for position in 0..45 {
        let expected = u64::from(pages[position as usize / 16].0) * 16 + u64::from(position % 16);
        assert_eq!(table.slot(Tokens(position), PageSize::DEFAULT), Some(SlotId(expected)));
    }
    assert_eq!(table.slot(Tokens(48), PageSize::DEFAULT), None);
    let ranges = table.slots(Tokens(10)..Tokens(40), PageSize::DEFAULT).unwrap();
    let slots: Vec<SlotId> = ranges.iter().flat_map(|range| range.slots(PageSize::DEFAULT)).collect();
    let one_by_one: Vec<SlotId> =
        (10..40).map(|p| table.slot(Tokens(p), PageSize::DEFAULT).unwrap()).collect();
    assert_eq!(slots, one_by_one);
    assert_eq!(table.slots(Tokens(40)..Tokens(50), PageSize::DEFAULT), None);
}

#[test]
fn a_freed_sequence_gives_all_its_pages_back() {
    let mut sim = Simulation::new(small(8));
    let a = sim.compute(&range(0, 10));
    let b = sim.compute(&range(100, 107));
    assert_eq!(sim.cache.counts().used, Pages(5));
    sim.free(a);
    assert_eq!(sim.cache.counts().used, Pages(2));
    sim.free(b);
    assert_eq!(sim.cache.counts().used, Pages(0));
    assert_eq!(sim.cache.free(a), Err(ReleaseError::Unknown(UnknownSequence(a))));
}

#[test]
fn a_sequence_in_the_open_step_cannot_be_freed_or_forked() {
    let mut sim = Simulation::new(small(8));
    let (seq, _) = sim.admit(&range(0, 6));
    sim.schedule(seq, 6).unwrap();
    assert_eq!(sim.cache.free(seq), Err(ReleaseError::InFlight(seq)));
    assert_eq!(sim.cache.fork(seq), Err(ForkError::InFlight(seq)));
    sim.run();
    sim.fork(seq);
    sim.free(seq);
}

#[test]
fn ids_are_never_used_again_even_after_a_failure() {
    let mut sim = Simulation::new(small(2));
    let (a, _) = sim.admit(&range(0, 4));
    sim.free(a);
    let too_long = sim.prompt(0, &range(0, 100));
    let error = sim.cache.admit(too_long, Reuse::Longest).unwrap_err();
    assert_eq!(error, AllocError::NeverFits { need: Pages(25), total: Pages(2) }.into());
    sim.check();
    let (b, _) = sim.admit(&range(0, 4));
    assert_eq!((a, b), (SeqId(0), SeqId(2)));
}

#[test]
fn a_prompt_hashed_for_other_pages_is_refused() {
    let mut cache = KvCache::new(small(4)).unwrap();
    let prompt = Prompt::new(range(0, 9), Scope::default(), PageSize::DEFAULT).unwrap();
    let error = cache.admit(prompt, Reuse::Longest).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the prompt was hashed for pages of 16 tokens, the cache has pages of 4 tokens"
    );
}

#[test]
fn only_known_tokens_are_scheduled_and_only_once_a_step() {
    let mut sim = Simulation::new(small(8));
    let (seq, _) = sim.admit(&range(0, 6));
    let too_many = ScheduleError::TooMany { seq, left: Tokens(6), asked: Tokens(7) };
    assert_eq!(sim.schedule(seq, 7), Err(too_many));
    sim.schedule(seq, 2).unwrap();
    assert_eq!(sim.schedule(seq, 2), Err(ScheduleError::Twice { seq }));
    sim.run();
    sim.schedule(seq, 4).unwrap();
    sim.run();
    assert!(matches!(sim.schedule(seq, 1), Err(ScheduleError::TooMany { left: Tokens(0), .. })));
    assert_eq!(sim.schedule(SeqId(9), 1), Err(UnknownSequence(SeqId(9)).into()));
}

#[test]
fn a_prompt_in_chunks_ends_with_the_pages_of_the_whole() {
    let mut sim = Simulation::new(small(8));
    let (seq, _) = sim.admit(&range(0, 11));
    for chunk in [3, 1, 5, 2] {
        sim.schedule(seq, chunk).unwrap();
        sim.run();
    }
    assert_eq!(sim.pages(seq).len(), 3);
    assert_eq!(sim.cache.sequence(seq).unwrap().computed(), Tokens(11));
}

#[test]
fn a_fork_shares_every_page_until_one_of_the_two_writes() {
    let mut sim = Simulation::new(small(8));
    let parent = sim.compute(&range(0, 10));
    let child = sim.fork(parent);
    assert_eq!(sim.pages(parent), sim.pages(child));
    assert_eq!(sim.cache.counts().used, Pages(3));

    sim.append(child, 77);
    sim.schedule(child, 1).unwrap();
    let copies = sim.cache.step().copies().to_vec();
    assert_eq!(copies.len(), 1);
    assert_eq!(copies[0].from, sim.pages(parent)[2]);
    assert_eq!(copies[0].to, sim.pages(child)[2]);
    assert_eq!(copies[0].slots, Tokens(2));
    sim.run();
    assert_eq!(sim.pages(parent)[..2], sim.pages(child)[..2]);
    assert_ne!(sim.pages(parent)[2], sim.pages(child)[2]);
    assert_eq!(sim.cache.counts().used, Pages(4));
}

#[test]
fn the_last_holder_of_a_shared_tail_writes_without_a_copy() {
    let mut sim = Simulation::new(small(8));
    let parent = sim.compute(&range(0, 10));
    let child = sim.fork(parent);
    sim.append(child, 77);
    sim.finish(child);
    sim.append(parent, 88);
    sim.schedule(parent, 1).unwrap();
    assert_eq!(sim.cache.step().copies(), []);
    sim.run();
    assert_eq!(sim.cache.snapshot().counters.copies_on_write, 1);
}

#[test]
fn a_fork_that_ends_on_a_page_boundary_copies_nothing() {
    let mut sim = Simulation::new(small(8));
    let parent = sim.compute(&range(0, 8));
    let child = sim.fork(parent);
    sim.append(child, 77);
    sim.append(parent, 88);
    sim.schedule(child, 1).unwrap();
    sim.schedule(parent, 1).unwrap();
    assert_eq!(sim.cache.step().copies(), []);
    sim.run();
}

#[test]
fn beams_that_write_in_one_step_each_copy_the_shared_tail() {
    let mut sim = Simulation::new(small(16));
    let first = sim.compute(&range(0, 6));
    let beams = [first, sim.fork(first), sim.fork(first), sim.fork(first)];
    for (token, beam) in (100..).zip(beams) {
        sim.append(beam, token);
        sim.schedule(beam, 1).unwrap();
    }
    assert_eq!(sim.cache.step().copies().len(), 4);
    sim.run();
    assert_eq!(sim.cache.counts().used, Pages(1 + 4));
    // Two beams die, the best one forks again.
    sim.free(beams[0]);
    sim.free(beams[2]);
    let again = sim.fork(beams[3]);
    sim.decode(again, &[1, 2, 3, 4, 5]);
    sim.decode(beams[1], &[6, 7, 8]);
}

#[test]
fn forked_sequences_publish_what_each_computed() {
    let mut sim = Simulation::new(small(16));
    let parent = sim.compute(&range(0, 6));
    let child = sim.fork(parent);
    sim.decode(parent, &[10, 11]);
    sim.decode(child, &[20, 21]);
    sim.free(parent);
    sim.free(child);
    for tail in [[10, 11, 9], [20, 21, 9]] {
        let (_, hit) = sim.admit(&[&range(0, 6)[..], &tail].concat());
        assert_eq!(hit.tokens, Tokens(8));
    }
}

#[test]
fn preemption_keeps_the_pages_cached_and_hands_the_tokens_back() {
    let mut sim = Simulation::new(small(8));
    let seq = sim.compute(&range(0, 9));
    sim.decode(seq, &[50, 51]);
    let prompt = sim.cache.preempt(seq).unwrap();
    let known = sim.known.remove(&seq).unwrap();
    assert_eq!(prompt.tokens(), known.tokens);
    assert_eq!(sim.cache.counts().used, Pages(0));
    let (again, hit) = sim.cache.admit(prompt, Reuse::Longest).unwrap();
    assert_eq!(hit.tokens, Tokens(8), "only what did not fill a page is lost");
    sim.known.insert(again, known);
    sim.finish(again);
}

#[test]
fn one_page_a_slot_is_paging_too() {
    let settings =
        Settings { page_size: PageSize::new(64).unwrap(), prefix_cache: false, ..Settings::new(Pages(3)) };
    let mut sim = Simulation::new(settings);
    let a = sim.compute(&range(0, 10));
    let b = sim.fork(a);
    sim.append(b, 5);
    sim.schedule(b, 1).unwrap();
    assert_eq!(sim.cache.step().copies()[0].slots, Tokens(10), "a fork copies the filled tokens");
    sim.run();
    let c = sim.compute(&range(0, 10));
    assert_eq!(sim.cache.counts().free, Pages(0));
    let (d, _) = sim.admit(&range(0, 10));
    let full = AllocError::OutOfPages { need: Pages(1), free: Pages(0) };
    assert_eq!(sim.schedule(d, 10), Err(full.into()));
    sim.free(c);
    sim.finish(d);
}

#[test]
fn pages_of_one_token_work_like_any_other() {
    let mut sim =
        Simulation::new(Settings { page_size: PageSize::new(1).unwrap(), ..Settings::new(Pages(12)) });
    let seq = sim.compute(&range(0, 5));
    assert_eq!(sim.pages(seq).len(), 5);
    sim.decode(seq, &[9]);
    assert_eq!(sim.pages(seq).len(), 6);
    let (_, hit) = sim.admit(&range(0, 5));
    assert_eq!(hit.tokens, Tokens(4));
}

#[test]
fn a_page_that_the_open_step_is_yet_to_fill_cannot_be_held() {
    let mut sim = Simulation::new(small(8));
    let (first, _) = sim.admit(&range(0, 8));
    sim.schedule(first, 8).unwrap();
    let (second, hit) = sim.admit(&range(0, 9));
    assert_eq!(hit.tokens, Tokens(8));
    for seq in [first, second] {
        assert!(sim.cache.hold(seq, GroupId(0), Pages(0)).unwrap().is_none());
    }
    sim.run();
    assert!(sim.cache.hold(second, GroupId(0), Pages(0)).unwrap().is_some());
}

#[test]
fn a_page_whose_handle_is_held_elsewhere_outlives_its_sequence() {
    let mut sim = Simulation::new(small(2));
    let seq = sim.compute(&range(0, 8));
    let page = sim.cache.hold(seq, GroupId(0), Pages(0)).unwrap().unwrap();
    assert!(sim.cache.hold(seq, GroupId(0), Pages(2)).unwrap().is_none());
    assert!(sim.cache.hold(seq, GroupId(1), Pages(0)).unwrap().is_none());
    sim.cache.free(seq).unwrap();
    sim.known.clear();
    assert_eq!(sim.cache.check().unwrap().held_outside, [page.id()]);
    assert_eq!(sim.cache.available(Claim::Running), Pages(1));
    std::thread::spawn(move || drop(page)).join().unwrap();
    assert_eq!(sim.cache.counts().cached, Pages(2), "on its way back it counts as cached");
    sim.tick(1);
    assert_eq!(sim.cache.available(Claim::Running), Pages(2));
}
