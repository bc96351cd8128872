//! A snapshot in which every number is another one.

use octavo::{Pages, Snapshot};

pub(crate) fn number(s: &mut Snapshot) {
    let (pages, counters) = (&mut s.pages, &mut s.counters);
    (pages.used, pages.cached, pages.reserved, pages.free) = (Pages(20), Pages(30), Pages(4), Pages(46));
    (pages.total, s.pinned, s.evictable, s.peak_used) = (Pages(100), Pages(5), Pages(6), Pages(70));
    (s.unused_slots, s.used_slots) = (80, 320);
    (s.allocated_per_second, s.freed_per_second) = (1.5, 2.5);
    let stops = &mut counters.stops;
    (stops.whole_prompt, stops.page_not_full, stops.evicted) = (7, 8, 9);
    (stops.never_seen, stops.differs, stops.not_looked_up) = (10, 11, 12);
    (counters.evicted.old, counters.evicted.recent, counters.evicted.prefix) = (13, 14, 15);
    (counters.hit_tokens, counters.missed_tokens, counters.copies_on_write) = (16, 17, 18);
    (counters.partial_copies, counters.forks, counters.computed_tokens) = (19, 21, 22);
    (counters.evictions, counters.key_collisions, counters.lookups) = (23, 24, 25);
    counters.failed_steps = 26;
}
