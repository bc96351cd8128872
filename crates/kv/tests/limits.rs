//! Limits: the pool, the reserve, the request, and settings that cannot work.

mod support;

use octavo_kv::{AdmitError, AllocError, Claim, KvCache, Reuse, ScheduleError, Settings, SettingsError};
use octavo_types::{Bytes, Pages, Tokens};
use support::{Simulation, range, small};

#[test]
fn allocation_fails_whole_and_takes_nothing() {
    let mut sim = Simulation::new(small(5));
    let held = sim.compute(&range(0, 8));
    sim.leave_cached(&range(100, 104));
    let before = sim.cache.counts();
    let (seq, _) = sim.admit(&range(200, 216));
    let error = sim.schedule(seq, 16).unwrap_err();
    assert_eq!(error, AllocError::OutOfPages { need: Pages(4), free: Pages(3) }.into());
    assert_eq!(error.to_string(), "need 4 pages, only 3 pages free or evictable");
    assert_eq!(sim.cache.counts(), before);
    assert_eq!(sim.cache.snapshot().counters.evictions, 0, "nothing is evicted in vain");
    sim.schedule(seq, 12).unwrap();
    sim.run();
    sim.free(held);
}

#[test]
fn the_reserve_is_for_running_sequences_only() {
    let mut sim = Simulation::new(Settings { reserve: Pages(2), pin_quota: Pages(0), ..small(6) });
    let counts = sim.cache.counts();
    assert_eq!((counts.reserved, counts.free), (Pages(2), Pages(4)));
    let running = sim.compute(&range(0, 16));
    assert_eq!((sim.cache.counts().reserved, sim.cache.counts().free), (Pages(2), Pages(0)));
    let (new, _) = sim.admit(&range(100, 104));
    let out = AllocError::OutOfPages { need: Pages(1), free: Pages(0) };
    assert_eq!(sim.schedule(new, 4), Err(out.into()));
    sim.append(running, 9);
    sim.cache.schedule(running, Tokens(1), Claim::Running).unwrap();
    sim.run();
    assert_eq!((sim.cache.counts().reserved, sim.cache.counts().free), (Pages(1), Pages(0)));
    sim.free(running);
    let counts = sim.cache.counts();
    assert_eq!((counts.reserved, counts.cached, counts.free), (Pages(2), Pages(4), Pages(0)));
    sim.finish(new);
}

#[test]
fn running_sequences_evict_before_they_touch_the_reserve() {
    let mut sim = Simulation::new(Settings { reserve: Pages(2), pin_quota: Pages(0), ..small(6) });
    let running = sim.compute(&range(0, 8));
    sim.leave_cached(&range(100, 108));
    sim.append(running, 9);
    sim.cache.schedule(running, Tokens(1), Claim::Running).unwrap();
    sim.run();
    assert_eq!((sim.cache.counts().reserved, sim.cache.counts().cached), (Pages(2), Pages(1)));
}

#[test]
fn a_request_over_its_own_limit_is_refused_with_the_numbers() {
    let mut sim = Simulation::new(Settings { sequence_limit: Some(Pages(2)), ..small(16) });
    let long = sim.prompt(0, &range(0, 9));
    let error = sim.cache.admit(long, Reuse::Longest).unwrap_err();
    assert_eq!(error, AdmitError::OverLimit { need: Pages(3), tokens: Tokens(9), limit: Pages(2) });
    assert_eq!(
        error.to_string(),
        "out of memory for this request: 3 pages for its 9 tokens, over the limit of 2 pages a sequence"
    );
    let seq = sim.compute(&range(0, 8));
    sim.append(seq, 1);
    let over = ScheduleError::OverLimit { seq, need: Pages(3), limit: Pages(2) };
    assert_eq!(sim.schedule(seq, 1), Err(over));
}

#[test]
fn a_shared_tail_does_not_count_twice_against_the_limit() {
    let mut sim = Simulation::new(Settings { sequence_limit: Some(Pages(2)), ..small(16) });
    let parent = sim.compute(&range(0, 6));
    let child = sim.fork(parent);
    sim.decode(child, &[7, 8]);
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    let mut sim = Simulation::new(small(3));
    let prompt = sim.prompt(0, &range(0, 13));
    let never = AllocError::NeverFits { need: Pages(4), total: Pages(3) };
    assert_eq!(sim.cache.admit(prompt, Reuse::Longest).unwrap_err(), never.into());
    let seq = sim.compute(&range(0, 12));
    sim.append(seq, 1);
    assert_eq!(sim.schedule(seq, 1), Err(never.into()));
}

#[test]
fn a_window_that_reaches_into_one_page_more_than_it_fills_is_refused_where_that_never_fits() {
    // A window of four sees slots of two pages from the fifth token on.
    let windows = vec![Some(Tokens(4))];
    let mut sim = Simulation::new(Settings { windows: windows.clone(), pin_quota: Pages(0), ..small(1) });
    let prompt = sim.prompt(0, &range(0, 8));
    let never = AllocError::NeverFits { need: Pages(2), total: Pages(1) };
    assert_eq!(sim.cache.admit(prompt, Reuse::Longest).unwrap_err(), never.into());
    sim.compute(&range(0, 4));
    let mut sim = Simulation::new(Settings { windows, sequence_limit: Some(Pages(1)), ..small(8) });
    let prompt = sim.prompt(0, &range(0, 8));
    assert!(matches!(sim.cache.admit(prompt, Reuse::Longest), Err(AdmitError::OverLimit { .. })));
}

#[test]
fn settings_that_cannot_work_are_refused_with_what_to_change() {
    let refused = |settings: Settings| KvCache::new(settings).unwrap_err();
    let none = refused(Settings { page_bytes: Bytes(1024), ..small(0) });
    assert_eq!(none.to_string(), "the pool has no pages: give it memory for at least one page (1024 bytes)");
    let total = Pages(4);
    let reserve = refused(Settings { reserve: Pages(4), ..small(4) });
    assert_eq!(reserve, SettingsError::ReserveTooLarge { reserve: Pages(4), total });
    let quota = refused(Settings { pin_quota: Pages(3), reserve: Pages(1), ..small(4) });
    assert_eq!(quota, SettingsError::PinQuotaTooLarge { quota: Pages(3), total });
    assert_eq!(refused(Settings { windows: vec![], ..small(4) }), SettingsError::NoGroups);
    let groups = refused(Settings { windows: vec![None; 65_536], ..small(4) });
    assert_eq!(groups, SettingsError::TooManyGroups { groups: 65_536 });
    let blind = refused(Settings { windows: vec![None, Some(Tokens(0))], ..small(4) });
    assert_eq!(blind, SettingsError::EmptyWindow { group: 1 });
    let limit = refused(Settings { sequence_limit: Some(Pages(1)), windows: vec![None; 2], ..small(4) });
    assert_eq!(limit, SettingsError::SequenceLimitTooSmall { limit: Pages(1), groups: 2 });
    let huge = Settings { remember_evicted: 0, total: Pages(u32::MAX), ..small(4) };
    assert!(matches!(refused(huge), SettingsError::TooManyPages { .. }));
}
