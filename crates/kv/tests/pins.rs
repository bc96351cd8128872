//! Prefixes that stay.

mod support;

use octavo_kv::{Pin, PinError, PinId, Settings};
use octavo_types::{Pages, Tokens};
use support::{Simulation, range, small};

fn pinning(total: u32, quota: u32) -> Simulation {
    Simulation::new(Settings { pin_quota: Pages(quota), ..small(total) })
}

#[test]
fn a_pinned_prefix_survives_any_pressure_until_it_is_unpinned() {
    let mut sim = pinning(8, 4);
    sim.leave_cached(&range(0, 8));
    let (pin, tokens) = sim.cache.pin(&sim.prompt(0, &range(0, 8))).unwrap();
    assert_eq!(tokens, Tokens(8));
    sim.check();
    for start in (100..200).step_by(24) {
        sim.leave_cached(&range(start, start + 24));
    }
    let hit = sim.cache.lookup(&sim.prompt(0, &range(0, 9)));
    assert_eq!(hit.tokens, Tokens(8));
    let snapshot = sim.cache.snapshot();
    assert_eq!((snapshot.pinned, snapshot.pages.cached, snapshot.evictable), (Pages(2), Pages(8), Pages(6)));
    sim.cache.unpin(pin).unwrap();
    sim.check();
    assert_eq!(sim.cache.evict(Pages(100)), Pages(8));
    assert_eq!(sim.cache.unpin(pin), Err(PinError::Unknown(pin)));
    assert_eq!(sim.cache.unpin(PinId(77)), Err(PinError::Unknown(PinId(77))));
}

#[test]
fn pins_have_a_quota() {
    let mut sim = pinning(16, 3);
    sim.leave_cached(&range(0, 8));
    sim.leave_cached(&range(100, 108));
    let (first, _) = sim.cache.pin(&sim.prompt(0, &range(0, 8))).unwrap();
    let over = PinError::OverQuota { need: Pages(2), pinned: Pages(2), quota: Pages(3) };
    assert_eq!(sim.cache.pin(&sim.prompt(0, &range(100, 108))), Err(over));
    sim.check();
    assert!(sim.cache.pin(&sim.prompt(0, &range(100, 104))).is_ok());
    sim.cache.unpin(first).unwrap();
    assert_eq!(sim.cache.snapshot().pinned, Pages(1));
    sim.check();
}

#[test]
fn two_pins_on_a_page_count_it_once_and_both_must_go() {
    let mut sim = pinning(16, 3);
    sim.leave_cached(&range(0, 8));
    let (first, _) = sim.cache.pin(&sim.prompt(0, &range(0, 8))).unwrap();
    let (second, _) = sim.cache.pin(&sim.prompt(0, &range(0, 8))).unwrap();
    assert_eq!(sim.cache.snapshot().pinned, Pages(2));
    let scope = sim.prompt(0, &range(0, 8)).scope();
    let kept = |id| Pin { id, scope, tokens: Tokens(8), pages: Pages(2) };
    assert!(sim.cache.pins().eq([kept(first), kept(second)]));
    sim.cache.unpin(first).unwrap();
    assert!(sim.cache.pins().eq([kept(second)]));
    assert_eq!(sim.cache.evict(Pages(9)), Pages(0));
    sim.cache.unpin(second).unwrap();
    assert_eq!(sim.cache.evict(Pages(9)), Pages(2));
    sim.check();
}

#[test]
fn a_page_in_use_can_be_pinned_and_stays_when_it_is_released() {
    let mut sim = pinning(8, 4);
    let seq = sim.compute(&range(0, 8));
    sim.cache.pin(&sim.prompt(0, &range(0, 8))).unwrap();
    sim.free(seq);
    assert_eq!(sim.cache.evict(Pages(9)), Pages(0));
    let (again, hit) = sim.admit(&range(0, 9));
    assert_eq!(hit.tokens, Tokens(8));
    sim.finish(again);
    sim.free(again);
    assert_eq!(sim.cache.evict(Pages(9)), Pages(0));
}

#[test]
fn what_is_not_cached_or_not_computed_yet_cannot_be_pinned() {
    let mut sim = pinning(8, 4);
    assert_eq!(sim.cache.pin(&sim.prompt(0, &range(0, 8))), Err(PinError::NotCached));
    let (seq, _) = sim.admit(&range(0, 8));
    sim.schedule(seq, 8).unwrap();
    assert_eq!(sim.cache.pin(&sim.prompt(0, &range(0, 8))), Err(PinError::NotCached));
    sim.run();
    assert!(sim.cache.pin(&sim.prompt(0, &range(0, 8))).is_ok());
    assert_eq!(sim.cache.pin(&sim.prompt(1, &range(0, 8))), Err(PinError::NotCached), "another tenant's");
}

#[test]
fn a_pin_keeps_what_a_lookup_asks_for_beside_a_window_of_one() {
    let windows = vec![None, Some(Tokens(1))];
    let mut sim = Simulation::new(Settings { pin_quota: Pages(4), windows, ..small(16) });
    sim.leave_cached(&[1; 4]);
    let (_, tokens) = sim.cache.pin(&sim.prompt(0, &[1; 4])).unwrap();
    assert_eq!(tokens, Tokens(4));
    sim.cache.evict(Pages(8));
    assert_eq!(sim.cache.lookup(&sim.prompt(0, &[1, 1, 1, 1, 9])).tokens, Tokens(4));
}

#[test]
fn of_a_windowed_group_only_the_last_window_is_pinned() {
    let windows = vec![None, Some(Tokens(6))];
    let mut sim = Simulation::new(Settings { pin_quota: Pages(20), windows, ..small(40) });
    sim.leave_cached(&range(0, 24));
    let (_, tokens) = sim.cache.pin(&sim.prompt(0, &range(0, 24))).unwrap();
    assert_eq!(tokens, Tokens(24));
    assert_eq!(sim.cache.snapshot().pinned, Pages(6 + 2));
    sim.cache.evict(Pages(99));
    sim.check();
    assert_eq!(sim.cache.lookup(&sim.prompt(0, &range(0, 25))).tokens, Tokens(24));
}
