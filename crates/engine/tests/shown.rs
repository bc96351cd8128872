//! What is shown of an engine that has nothing to do is what is true.

mod fake;

use fake::{Bench, prompt};
use octavo_engine::{EngineConfig, PageState, Request};
use octavo_kv::{Prompt, Scope, Settings, Snapshot};
use octavo_types::{Pages, Timestamp, Tokens};

/// An engine that has ended a request of five full pages.
fn idle() -> Bench {
    let mut bench = Bench::small(24, 4, 2);
    bench.send(Request::new(prompt(1, 20), 1));
    bench.run();
    bench.assert_nothing_left();
    bench
}

fn shown(bench: &Bench) -> Snapshot {
    bench.engine.metrics().cache().expect("steps have run")
}

#[test]
fn pins_and_dropped_prefixes_are_shown_at_once() {
    let mut bench = idle();
    assert_eq!((shown(&bench).pages.cached, shown(&bench).pinned), (Pages(5), Pages(0)));
    let size = Bench::pool(24, 4).page_size;
    let cached = Prompt::new(prompt(1, 20), Scope::default(), size).unwrap();
    let (pin, _) = bench.engine.pin(&cached).unwrap();
    assert_eq!(shown(&bench).pinned, Pages(5));
    bench.engine.unpin(pin).unwrap();
    assert_eq!(shown(&bench).pinned, Pages(0));
    bench.engine.drop_prefixes();
    assert_eq!((shown(&bench).pages.cached, shown(&bench).pages.free), (Pages(0), Pages(24)));
}

#[test]
fn rates_fall_to_nothing_while_nothing_runs() {
    let mut bench = idle();
    bench.engine.drop_prefixes();
    let rates = |snapshot: Snapshot| (snapshot.allocated_per_second, snapshot.freed_per_second);
    let (allocated, freed) = rates(shown(&bench));
    assert!(allocated > 0.0 && freed > 0.0, "{allocated} {freed}");
    let later = Timestamp(bench.now + 60_000_000);
    bench.engine.idle(later);
    assert_eq!(rates(shown(&bench)), (0.0, 0.0));
    let mut asked = idle();
    asked.engine.tick(later);
    assert_eq!(rates(asked.engine.report().snapshot), (0.0, 0.0));
}

/// A step every 199 ms: each is shown, unless the machine itself takes a tenth of a second for one.
#[test]
fn what_is_shown_is_little_more_than_a_tenth_of_a_second_old() {
    let mut bench = Bench::small(24, 1, 2);
    bench.send(Request::new(prompt(1, 4), 20));
    let is_shown = |_| {
        bench.now += 198_000;
        bench.step();
        shown(&bench).pages.used.0 == bench.used()
    };
    let times = (0..16).map(is_shown).filter(|shown| *shown).count();
    assert!(times > 8, "{times} of 16 steps were shown");
}

/// Whoever is told that it is done finds its pages free, and that this is shown.
#[test]
fn what_has_ended_is_settled_before_the_next_step() {
    let mut bench = Bench::small(24, 4, 2);
    bench.send(Request::new(prompt(1, 20), 1));
    bench.step();
    bench.engine.settle();
    assert_eq!((bench.used(), bench.engine.has_work()), (0, false));
    assert_eq!((shown(&bench).pages.used, bench.engine.metrics().requests_running.get()), (Pages(0), 0));
}

#[test]
fn an_idle_engine_audits_its_cache_once_after_its_last_step() {
    let mut bench = idle();
    let audited = |bench: &mut Bench| {
        bench.now += 1_000_000;
        bench.engine.idle(Timestamp(bench.now));
        bench.engine.report().last_audit.map(|audit| (audit.problem, audit.at.0 >= bench.now))
    };
    assert_eq!(audited(&mut bench), Some((None, true)));
    assert_eq!(audited(&mut bench), Some((None, false)), "nothing has happened since");
    bench.send(Request::new(prompt(2, 4), 1));
    bench.run();
    assert_eq!(audited(&mut bench), Some((None, true)));
}

/// Two that share two pages, one that waits, a pinned prefix, and what is cached of another tenant.
#[test]
fn a_report_names_every_page_sequence_and_tenant() {
    let settings = Settings { pin_quota: Pages(3), ..Bench::pool(24, 4) };
    let size = settings.page_size;
    let chunk = (Tokens(12), Tokens(12));
    let mut bench = Bench::new(EngineConfig { chunk, ..EngineConfig::new(2, Tokens(60)) }, settings);
    let other = Scope::new(b"other", b"");
    bench.send(Request { scope: other, ..Request::new(prompt(3, 8), 1) });
    bench.send(Request::new(prompt(4, 4), 1));
    bench.run();
    bench.engine.pin(&Prompt::new(prompt(4, 4), Scope::default(), size).unwrap()).unwrap();
    let first = bench.send(Request::new(prompt(1, 9), 9));
    bench.step();
    let second = bench.send(Request::new([prompt(1, 8), prompt(2, 20)].concat(), 9));
    bench.send(Request { scope: other, ..Request::new(prompt(5, 4), 1) });
    bench.step();
    let report = bench.engine.report();
    let count = |state| report.pages.iter().filter(|page| **page == state).count();
    assert_eq!((count(PageState::Shared), count(PageState::Pinned), count(PageState::Cached)), (2, 1, 2));
    assert_eq!((count(PageState::Used), count(PageState::Free)), (4, 15));
    let sequences: Vec<_> =
        report.sequences.iter().map(|one| (one.request, one.tokens.0, one.computed.0, one.pages.0)).collect();
    assert_eq!(sequences, [(first, 11, 10, 3), (second, 28, 20, 5)]);
    assert_eq!(report.waiting, 1);
    let tenants: Vec<_> = report
        .tenants
        .iter()
        .map(|one| (one.tenant.is_empty(), one.sequences, one.tokens, one.pages, one.cached.0))
        .collect();
    assert_eq!(tenants, [(true, 2, 39, 8, 1), (false, 0, 0, 0, 2)]);
    // What has ended is not shown, though its pages are not free before the next step.
    bench.step_until(|bench| bench.ended(first));
    assert!(bench.engine.report().sequences.iter().all(|one| one.request != first));
}
