//! Layer groups over one pool: full attention beside sliding windows.

mod support;

use octavo_kv::{Settings, Stop};
use octavo_types::{GroupId, PageSize, Pages, Tokens};
use support::{Simulation, range, small};

/// One full group, and one that sees `window` tokens.
fn mixed(total: u32, window: u32) -> Settings {
    Settings { windows: vec![None, Some(Tokens(window))], ..small(total) }
}

fn held(sim: &Simulation, seq: octavo_types::SeqId, group: u16) -> (u32, u32) {
    let table = sim.cache.sequence(seq).unwrap().table(GroupId(group));
    (table.first().0, table.end().0)
}

#[test]
fn pages_that_left_the_window_are_freed_while_the_sequence_runs() {
    let mut sim = Simulation::new(mixed(32, 6));
    let seq = sim.compute(&range(0, 4));
    for token in 0..20 {
        sim.decode(seq, &[token]);
        let computed = 5 + token;
        // The next token sits at `computed` and sees positions computed-5 ..= computed.
        let first = (computed + 1).saturating_sub(6) / 4;
        assert_eq!(held(&sim, seq, 1), (first, computed.div_ceil(4)));
        assert_eq!(held(&sim, seq, 0), (0, computed.div_ceil(4)));
    }
}

#[test]
fn a_window_alone_needs_constant_memory_however_long_the_sequence() {
    let settings = Settings { windows: vec![Some(Tokens(8))], prefix_cache: false, ..small(4) };
    let mut sim = Simulation::new(settings);
    let seq = sim.compute(&range(0, 8));
    for token in 0..200 {
        sim.decode(seq, &[token]);
        assert!(sim.cache.counts().used <= Pages(3));
    }
}

#[test]
fn a_long_prompt_goes_through_a_small_pool_chunk_by_chunk() {
    let settings = Settings { windows: vec![Some(Tokens(8))], ..small(6) };
    let mut sim = Simulation::new(settings);
    let (seq, _) = sim.admit(&range(0, 100));
    while sim.left(seq) > 0 {
        let chunk = sim.left(seq).min(8);
        sim.schedule(seq, chunk).unwrap();
        sim.run();
    }
}

#[test]
fn a_hit_needs_every_full_page_and_the_last_window() {
    let mut sim = Simulation::new(mixed(64, 6));
    let seq = sim.compute(&range(0, 24));
    sim.free(seq);
    let (seq, hit) = sim.admit(&range(0, 25));
    assert_eq!(hit.tokens, Tokens(24));
    assert_eq!(held(&sim, seq, 0), (0, 6));
    assert_eq!(held(&sim, seq, 1), (4, 6), "of the windowed group only what the next token sees");
    sim.finish(seq);
}

#[test]
fn a_hit_ends_where_the_window_before_it_is_whole() {
    // The windowed group's pages were used longer ago (they left the window), so they go first.
    let mut sim = Simulation::new(mixed(64, 6));
    let (seq, _) = sim.admit(&range(0, 24));
    for second in 1..=6 {
        sim.tick(second);
        sim.schedule(seq, 4).unwrap();
        sim.run();
    }
    sim.free(seq);
    let cached = sim.cache.counts().cached;
    assert_eq!(cached, Pages(12));
    // Evict the windowed pages 0..4 that left the window early.
    sim.cache.evict(Pages(4));
    sim.check();
    let (whole, hit) = sim.admit(&range(0, 25));
    assert_eq!(hit.tokens, Tokens(24), "the last window is still there");
    sim.finish(whole);
    let prompt = [&range(0, 14)[..], &[99, 99, 99]].concat();
    let hit = sim.cache.lookup(&sim.prompt(0, &prompt));
    assert_eq!(hit.tokens, Tokens(0), "no shorter prefix has its window");
    assert!(matches!(hit.stop, Stop::Evicted { .. }), "{hit:?}");
}

#[test]
fn groups_of_one_model_share_the_pool() {
    let windows = vec![None, None, Some(Tokens(8)), Some(Tokens(8)), Some(Tokens(8))];
    let mut sim = Simulation::new(Settings { windows, ..small(20) });
    let seq = sim.compute(&range(0, 12));
    assert_eq!(sim.cache.counts().used, Pages(2 * 3 + 3 * 2));
    assert_eq!(sim.cache.counts().cached, Pages(3), "what left the windows can still be found");
    sim.decode(seq, &[1]);
    assert_eq!(sim.cache.counts().used, Pages(2 * 4 + 3 * 3));
    sim.decode(seq, &[2, 3, 4]);
    assert_eq!(sim.cache.counts().used, Pages(2 * 4 + 3 * 2));
}

#[test]
fn forks_of_windowed_sequences_copy_every_groups_tail() {
    let mut sim = Simulation::new(mixed(32, 6));
    let parent = sim.compute(&range(0, 10));
    let child = sim.fork(parent);
    sim.append(child, 70);
    sim.schedule(child, 1).unwrap();
    assert_eq!(sim.cache.step().copies().len(), 2);
    sim.run();
    sim.decode(parent, &[80, 81, 82, 83, 84]);
    sim.decode(child, &[90, 91, 92, 93, 94]);
}

#[test]
fn a_window_of_one_token_sees_only_itself() {
    let mut sim = Simulation::new(Settings {
        windows: vec![Some(Tokens(1))],
        page_size: PageSize::new(2).unwrap(),
        ..Settings::new(Pages(4))
    });
    let seq = sim.compute(&range(0, 4));
    assert_eq!(sim.cache.counts().used, Pages(0));
    sim.decode(seq, &[1, 2, 3]);
}
