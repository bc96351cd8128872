//! What is shown of an engine that has nothing to do is what is true.

mod fake;

use fake::{Bench, prompt};
use octavo_engine::Request;
use octavo_kv::{Prompt, Scope, Snapshot};
use octavo_types::{Pages, Timestamp};

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
