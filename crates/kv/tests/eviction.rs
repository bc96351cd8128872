//! Which page goes when room is needed, and which never does.

mod support;

use octavo_kv::{Adaptive, Class, Idle, Lru, Policy, PolicyKind, Priority, Settings, Wanted};
use octavo_types::{PageId, Pages, Timestamp, Tokens};
use proptest::prelude::*;
use support::{Simulation, range, small};

fn cached(sim: &Simulation, tokens: &[u32]) -> u32 {
    sim.cache.lookup(&sim.prompt(0, tokens)).tokens.0
}

#[test]
fn cached_pages_are_evicted_only_when_nothing_is_free() {
    let mut sim = Simulation::new(small(6));
    sim.leave_cached(&range(0, 12));
    sim.leave_cached(&range(100, 112));
    assert_eq!(sim.cache.counts().cached, Pages(6));
    assert_eq!(sim.cache.snapshot().counters.evictions, 0);
    sim.compute(&range(200, 204));
    assert_eq!(sim.cache.snapshot().counters.evicted.total(), 1);
    assert_eq!(sim.cache.counts().cached, Pages(5));
}

#[test]
fn the_end_of_a_prefix_goes_before_its_beginning() {
    let mut sim = Simulation::new(small(6));
    sim.leave_cached(&range(0, 12));
    for left in [8, 4, 0] {
        sim.cache.evict(Pages(1));
        assert_eq!(cached(&sim, &range(0, 13)), left);
    }
}

#[test]
fn the_page_used_longest_ago_goes_first_even_if_it_was_released_last() {
    let mut sim = Simulation::new(small(6));
    sim.tick(1);
    let idle_long = sim.compute(&range(0, 4));
    sim.tick(2);
    let busy = sim.compute(&range(100, 104));
    sim.tick(3);
    sim.free(busy);
    sim.tick(4);
    sim.free(idle_long);
    sim.cache.evict(Pages(1));
    assert_eq!((cached(&sim, &range(0, 5)), cached(&sim, &range(100, 105))), (0, 4));
}

#[test]
fn every_step_counts_as_a_use_of_all_the_pages_of_its_sequences() {
    let mut sim = Simulation::new(small(8));
    sim.tick(1);
    let old = sim.compute(&range(0, 4));
    sim.tick(2);
    let other = sim.compute(&range(100, 104));
    sim.tick(3);
    sim.decode(old, &[9]);
    sim.free(old);
    sim.free(other);
    sim.cache.evict(Pages(1));
    assert_eq!((cached(&sim, &range(0, 5)), cached(&sim, &range(100, 105))), (4, 0));
}

#[test]
fn a_hit_is_a_use() {
    let mut sim = Simulation::new(small(8));
    sim.tick(1);
    sim.leave_cached(&range(0, 4));
    sim.tick(2);
    sim.leave_cached(&range(100, 104));
    sim.tick(3);
    sim.leave_cached(&range(0, 5));
    sim.cache.evict(Pages(1));
    assert_eq!((cached(&sim, &range(0, 5)), cached(&sim, &range(100, 105))), (4, 0));
}

#[test]
fn copying_the_beginning_of_a_page_is_a_use() {
    let mut sim = Simulation::new(small(8));
    sim.tick(1);
    sim.leave_cached(&range(0, 4));
    sim.tick(2);
    sim.leave_cached(&range(100, 104));
    sim.tick(3);
    let (seq, hit) = sim.admit(&[0, 1, 2, 90]);
    assert_eq!(hit.copied, Tokens(3));
    sim.finish(seq);
    sim.cache.evict(Pages(1));
    assert_eq!((cached(&sim, &range(0, 5)), cached(&sim, &range(100, 105))), (4, 0));
}

#[test]
fn a_page_is_in_use_until_it_leaves_the_window() {
    let mut sim = Simulation::new(Settings { windows: vec![Some(Tokens(4))], ..small(8) });
    sim.tick(1);
    let seq = sim.compute(&range(0, 4));
    sim.tick(2);
    sim.leave_cached(&range(100, 104));
    sim.tick(3);
    sim.decode(seq, &[4, 5, 6]);
    assert_eq!(sim.pages(seq).len(), 1, "the next token does not see the first page");
    sim.cache.evict(Pages(1));
    assert_eq!((cached(&sim, &range(0, 5)), cached(&sim, &range(100, 105))), (4, 0));
}

#[test]
fn pages_of_running_sequences_are_never_evicted() {
    for policy in PolicyKind::ALL {
        let mut sim = Simulation::new(Settings { policy, ..small(6) });
        // Two of its pages were cached before.
        sim.leave_cached(&range(0, 8));
        let running = sim.compute(&range(0, 12));
        sim.leave_cached(&range(100, 108));
        assert_eq!(sim.cache.evict(Pages(100)), Pages(2));
        assert_eq!(sim.cache.evict(Pages(100)), Pages(0));
        let (greedy, _) = sim.admit(&range(200, 216));
        assert!(sim.schedule(greedy, 16).is_err());
        sim.schedule(greedy, 12).unwrap();
        sim.run();
        sim.decode(running, &[]);
        sim.verify();
    }
}

#[test]
fn a_limit_on_cached_pages_is_kept_by_evicting() {
    let mut sim = Simulation::new(Settings { cached_limit: Some(Pages(2)), ..small(16) });
    sim.leave_cached(&range(0, 12));
    assert_eq!(sim.cache.counts().cached, Pages(2));
    assert_eq!(cached(&sim, &range(0, 13)), 8);
    sim.leave_cached(&range(100, 108));
    assert_eq!(sim.cache.counts().cached, Pages(2));
    assert_eq!(cached(&sim, &range(100, 109)), 8);
}

#[test]
fn evictions_and_reclaimed_pages_are_counted() {
    let mut sim = Simulation::new(small(4));
    sim.leave_cached(&range(0, 16));
    sim.cache.evict(Pages(3));
    sim.cache.evict(Pages(3));
    let counters = sim.cache.snapshot().counters;
    assert_eq!((counters.evictions, counters.evicted.total()), (2, 4));
}

#[test]
fn prefix_pages_outlive_recent_ones_and_recent_ones_old_ones() {
    let mut sim = Simulation::new(Settings { policy: PolicyKind::Priority, ..small(32) });
    sim.tick(1);
    sim.leave_cached(&range(0, 4));
    sim.tick(2);
    sim.leave_cached(&range(0, 5)); // a hit makes the page a prefix page
    for (second, start) in [(3, 100), (4, 200), (5, 300)] {
        sim.tick(second);
        sim.leave_cached(&range(start, start + 4));
    }
    // Idle: one prefix page, then 100.., 200.., 300..; the newest quarter (300..) is recent.
    for (gone, class) in [(100, Class::Old), (200, Class::Old), (300, Class::Recent), (0, Class::Prefix)] {
        assert_eq!(cached(&sim, &range(gone, gone + 5)), 4);
        let before = sim.cache.snapshot().counters.evicted;
        sim.cache.evict(Pages(1));
        assert_eq!(cached(&sim, &range(gone, gone + 5)), 0, "{gone} goes next");
        let after = sim.cache.snapshot().counters.evicted;
        let counted = [
            (Class::Old, after.old - before.old),
            (Class::Recent, after.recent - before.recent),
            (Class::Prefix, after.prefix - before.prefix),
        ];
        assert!(counted.iter().all(|(c, n)| *n == u64::from(*c == class)), "{gone}: {counted:?}");
    }
}

#[test]
fn pages_that_were_pinned_or_copied_from_are_prefix_pages() {
    let mut sim = Simulation::new(Settings { policy: PolicyKind::Priority, ..small(32) });
    sim.leave_cached(&range(0, 4));
    let (pin, _) = sim.cache.pin(&sim.prompt(0, &range(0, 4))).unwrap();
    sim.cache.unpin(pin).unwrap();
    sim.leave_cached(&range(100, 104));
    sim.leave_cached(&[100, 101, 102, 90]);
    sim.leave_cached(&range(200, 208));
    sim.cache.evict(Pages(3));
    let left = [range(0, 5), range(100, 105)].map(|tokens| cached(&sim, &tokens));
    assert_eq!((left, sim.cache.counts().cached), ([4, 4], Pages(2)));
    sim.cache.evict(Pages(2));
    let evicted = sim.cache.snapshot().counters.evicted;
    assert_eq!((evicted.prefix, evicted.total()), (2, 5));
}

#[test]
fn a_page_filled_anew_is_no_prefix_page_for_what_it_held_before() {
    let mut sim = Simulation::new(Settings { policy: PolicyKind::Priority, ..small(2) });
    sim.leave_cached(&range(0, 4));
    let (hit, _) = sim.admit(&range(0, 5));
    sim.free(hit);
    sim.cache.evict(Pages(1));
    sim.leave_cached(&range(100, 108));
    sim.cache.evict(Pages(2));
    let evicted = sim.cache.snapshot().counters.evicted;
    assert_eq!((evicted.prefix, evicted.total()), (1, 3), "only the first was found by anybody");
}

#[test]
fn adaptive_batches_grow_as_the_pool_fills() {
    let policy = Adaptive::new(Pages(4000));
    let batch = |free| policy.batch(Pages(free), Pages(4000)).0;
    assert_eq!((batch(0), batch(1000), batch(4000)), (64, 1, 1));
    let sizes: Vec<u32> = (0..=1000).step_by(10).map(batch).collect();
    assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
    assert!(sizes.iter().all(|size| (1..=64).contains(size)));
    assert_eq!(policy.batch(Pages(0), Pages(320)), Pages(10), "a small pool is not emptied at once");
}

#[test]
fn adaptive_keeps_prefixes_that_come_back_and_lets_go_of_those_seen_once() {
    let hits = |policy| {
        let mut sim = Simulation::new(Settings { policy, ..small(64) });
        let mut second = 0;
        let mut unique = 1000;
        // Four prefixes return, each after more one-time prompts than the pool holds.
        for round in 0..400 {
            sim.cache.tick(Timestamp::from_secs(second));
            let known = round % 4 * 100;
            sim.leave_cached(&range(known, known + 9));
            for _ in 0..20 {
                second += 1;
                unique += 100;
                sim.cache.tick(Timestamp::from_secs(second));
                sim.leave_cached(&range(unique, unique + 8));
            }
        }
        sim.cache.snapshot().counters.hit_tokens / 8
    };
    assert_eq!(hits(PolicyKind::Lru), 0);
    assert!(
        hits(PolicyKind::Adaptive) > 300,
        "of 400 prompts that had been seen: {}",
        hits(PolicyKind::Adaptive)
    );
}

#[test]
fn adaptive_goes_by_the_last_use_without_regret_and_by_earlier_uses_with_it() {
    let idle = |page, second, uses| Idle {
        page: PageId(page),
        last_use: Timestamp::from_secs(second),
        is_prefix: true,
        uses,
    };
    for (wanted, expected) in
        [(Wanted::Found, range(0, 8)), (Wanted::Evicted, range(0, 8).into_iter().rev().collect())]
    {
        let mut policy = Adaptive::new(Pages(8));
        // Pages are evicted some time after their last use.
        for second in 0..4000 {
            policy.insert(idle(0, second, 1));
            policy.insert(idle(1, second + 100, 1));
            while policy.victim().is_some() {}
        }
        for _ in 0..100_000 {
            policy.note(wanted);
        }
        for page in 0..8 {
            policy.insert(idle(page, 5000 + u64::from(page), 8 - page));
        }
        let order: Vec<u32> = std::iter::from_fn(|| policy.victim()).map(|(page, _)| page.0).collect();
        assert_eq!(order, expected, "{wanted:?}");
    }
}

#[test]
fn adaptive_evicts_in_batches_and_the_others_one_by_one() {
    for (policy, evicted) in [(PolicyKind::Adaptive, 10), (PolicyKind::Lru, 1), (PolicyKind::Priority, 1)] {
        let mut sim = Simulation::new(Settings { policy, ..small(320) });
        sim.leave_cached(&range(0, 1280));
        sim.compute(&range(2000, 2004));
        assert_eq!(sim.cache.snapshot().counters.evicted.total(), evicted, "{policy}");
        assert_eq!(sim.cache.snapshot().counters.evictions, 1);
    }
}

#[test]
fn a_page_that_the_pool_does_not_have_is_in_no_policy() {
    for kind in PolicyKind::ALL {
        let mut policy = kind.build(Pages(4));
        policy.remove(PageId(4));
        assert!(!policy.contains(PageId(4)) && policy.is_empty(), "{kind}");
    }
}

#[test]
fn policies_are_chosen_by_name() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    let error = "fifo".parse::<PolicyKind>().unwrap_err();
    assert_eq!(error.to_string(), "unknown eviction policy `fifo`: use lru, priority or adaptive");
    assert_eq!(PolicyKind::default(), PolicyKind::Lru);
}

#[derive(Clone, Debug)]
enum Op {
    Insert { page: u32, at: u64, is_prefix: bool },
    Remove { page: u32 },
    Victim,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0u32..24, 0u64..6, any::<bool>()).prop_map(|(page, at, is_prefix)| Op::Insert { page, at, is_prefix }),
        1 => (0u32..24).prop_map(|page| Op::Remove { page }),
        1 => Just(Op::Victim),
    ]
}

/// The naive policy: a list, searched from end to end.
#[derive(Default)]
struct Naive {
    pages: Vec<Idle>,
}

impl Naive {
    /// The first of those used longest ago; prefix pages only when there are no others, if `classes`.
    fn victim(&mut self, classes: bool) -> Option<PageId> {
        let rank = |idle: &Idle| (classes && idle.is_prefix, idle.last_use);
        let at = (0..self.pages.len()).min_by_key(|at| (rank(&self.pages[*at]), *at))?;
        Some(self.pages.remove(at).page)
    }

    /// A page that nobody found is recent while those used after it are less than a quarter of all.
    fn class(&self, page: PageId) -> Class {
        let at = self.pages.iter().position(|idle| idle.page == page).unwrap();
        if self.pages[at].is_prefix {
            return Class::Prefix;
        }
        let others = (0..self.pages.len()).filter(|other| !self.pages[*other].is_prefix);
        let after =
            others.filter(|other| (self.pages[*other].last_use, *other) > (self.pages[at].last_use, at));
        if after.count() < self.pages.len().div_ceil(4) { Class::Recent } else { Class::Old }
    }
}

/// Where pages go by their use alone, the naive policy says their class as well.
fn agrees_with_naive(mut policy: impl Policy, classes: bool, ops: Vec<Op>) {
    let mut naive = Naive::default();
    for op in ops {
        match op {
            Op::Insert { page, at, is_prefix } => {
                let idle = Idle { page: PageId(page), last_use: Timestamp(at), is_prefix, uses: 1 };
                if !policy.contains(idle.page) {
                    policy.insert(idle);
                    naive.pages.push(idle);
                }
            }
            Op::Remove { page } => {
                policy.remove(PageId(page));
                naive.pages.retain(|idle| idle.page != PageId(page));
            }
            Op::Victim => {
                let victim = policy.victim();
                let class = victim.map(|(page, _)| naive.class(page));
                assert_eq!(victim.map(|(page, _)| page), naive.victim(classes));
                assert!(classes || victim.map(|(_, class)| class) == class, "{victim:?} is {class:?}");
            }
        }
        assert_eq!(policy.len().as_usize(), naive.pages.len());
        for page in (0..24).map(PageId) {
            assert_eq!(policy.contains(page), naive.pages.iter().any(|idle| idle.page == page));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lru_agrees_with_a_list_searched_from_end_to_end(ops in prop::collection::vec(op(), 1..60)) {
        agrees_with_naive(Lru::new(Pages(24)), false, ops);
    }

    /// Without earlier uses that would lend them time.
    #[test]
    fn adaptive_agrees_with_a_list_searched_from_end_to_end(ops in prop::collection::vec(op(), 1..60)) {
        agrees_with_naive(Adaptive::new(Pages(24)), false, ops);
    }

    /// Pages released in the order of their use, as the engine does: then recent pages are the newest.
    #[test]
    fn priority_agrees_with_a_list_searched_from_end_to_end(mut ops in prop::collection::vec(op(), 1..60)) {
        let mut time = 0;
        for op in &mut ops {
            if let Op::Insert { at, .. } = op {
                time += 1;
                *at = time;
            }
        }
        agrees_with_naive(Priority::new(Pages(24)), true, ops);
    }
}

#[test]
fn a_hit_can_never_be_evicted_by_its_own_admission() {
    let mut sim = Simulation::new(small(4));
    sim.leave_cached(&range(0, 16));
    let (seq, hit) = sim.admit(&[&range(0, 14)[..], &[90]].concat());
    assert_eq!(hit.tokens, Tokens(12), "no page is left for a copy of the fourth");
    sim.finish(seq);
}
