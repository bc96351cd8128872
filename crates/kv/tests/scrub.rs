//! Pages that must not keep what they held.

mod support;

use octavo_kv::Settings;
use octavo_types::Pages;
use support::{Simulation, range, small};

#[test]
fn a_page_is_zeroed_before_anybody_else_gets_it() {
    let mut sim = Simulation::zeroing(Settings { prefix_cache: false, ..small(2) });
    let first = sim.compute(&range(0, 8));
    let pages = sim.pages(first);
    assert!(pages.iter().all(|page| sim.read_page(*page).iter().all(|slot| *slot != 0)));
    sim.free(first);
    assert!(pages.iter().all(|page| sim.read_page(*page) == [0; 4]));
    let (second, _) = sim.admit(&range(100, 105));
    sim.schedule(second, 5).unwrap();
    assert!(sim.pages(second).iter().all(|page| sim.read_page(*page) == [0; 4]));
    sim.run();
    assert_eq!(sim.read_page(sim.pages(second)[1])[1..], [0; 3]);
}

#[test]
fn cached_pages_keep_their_contents_until_they_are_evicted() {
    let mut sim = Simulation::zeroing(small(2));
    let first = sim.compute(&range(0, 8));
    let pages = sim.pages(first);
    sim.free(first);
    assert!(pages.iter().all(|page| sim.read_page(*page).iter().all(|slot| *slot != 0)));
    sim.cache.evict(Pages(2));
    assert!(pages.iter().all(|page| sim.read_page(*page) == [0; 4]));
}

#[test]
fn a_copy_planned_for_a_sequence_that_is_freed_is_not_made() {
    let mut sim = Simulation::zeroing(small(8));
    sim.leave_cached(&range(0, 8));
    let (seq, hit) = sim.admit(&[0, 1, 2, 9, 9]);
    assert_eq!(hit.copied.0, 3);
    let copy = sim.cache.step().copies()[0];
    sim.free(seq);
    assert_eq!(sim.cache.step().copies(), []);
    sim.run();
    assert_eq!(sim.read_page(copy.to), [0; 4]);
}

#[test]
fn without_zeroing_nothing_is_cleared() {
    let mut sim = Simulation::new(Settings { prefix_cache: false, ..small(2) });
    let first = sim.compute(&range(0, 8));
    let page = sim.pages(first)[0];
    let before = sim.read_page(page);
    sim.free(first);
    assert_eq!(sim.read_page(page), before);
}
