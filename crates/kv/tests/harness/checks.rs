//! What must be true of a cache whatever happened to it.

use super::manager::{Manager, Progress};
use octavo_types::{PageId, Pages, Timestamp};

impl Manager {
    /// What holds after every operation.
    pub(super) fn check(&self) {
        self.sim.check();
        self.check_numbers();
        for (seq, sequence) in self.sim.cache.sequences() {
            let Progress { computed, scheduled, .. } = self.progress[&seq];
            assert_eq!((sequence.computed(), sequence.scheduled()), (computed, scheduled), "{seq}");
            let limit = self.sim.cache.settings().sequence_limit;
            assert!(limit.is_none_or(|limit| sequence.pages() <= limit), "{seq} is over its limit");
        }
        self.check_pins();
        for (page, contents) in self.sim.outside.iter().zip(&self.contents) {
            assert_eq!(self.sim.read_page(page.id()), *contents, "{page:?} changed while it was held");
        }
    }

    /// What is pinned is found.
    fn check_pins(&self) {
        for (_, prompt, covered) in &self.pins {
            let found = self.sim.cache.lookup(prompt);
            assert!(found.tokens >= *covered, "{covered} are pinned, {found:?}");
        }
    }

    fn check_numbers(&self) {
        let settings = self.sim.cache.settings();
        let snapshot = self.sim.cache.snapshot();
        let counts = snapshot.pages;
        assert!(counts.add_up(), "{counts:?}");
        assert_eq!(snapshot.sequences, self.progress.len());
        assert!(snapshot.evictable <= counts.cached && snapshot.peak_used >= counts.used);
        assert!(settings.cached_limit.is_none_or(|limit| snapshot.evictable <= limit));
        assert!(snapshot.pinned <= settings.pin_quota);
        assert!(snapshot.unused_slots <= snapshot.used_slots);
        let counters = &snapshot.counters;
        let off_the_list = counters.allocated.total() - counters.freed.total();
        assert_eq!(off_the_list, u64::from((counts.used + counts.cached).0));
        assert_eq!(counters.hit_tokens + counters.missed_tokens, self.admitted);
    }

    /// Everything is given back when everybody is gone.
    pub(super) fn end(mut self) {
        self.complete();
        while !self.progress.is_empty() {
            self.preempt(0);
            self.check();
        }
        self.sim.outside.clear();
        self.contents.clear();
        self.sim.cache.tick(Timestamp(self.now));
        self.check();
        assert_eq!(self.sim.cache.counts().used, Pages::ZERO);
        while !self.pins.is_empty() {
            self.unpin(0);
        }
        self.evict(Pages(u32::MAX));
        self.check();
        let counts = self.sim.cache.counts();
        assert_eq!(counts.free + counts.reserved, counts.total);
        for page in (0..counts.total.0).map(PageId).filter(|_| self.zeroing) {
            assert!(self.sim.read_page(page).iter().all(|slot| *slot == 0), "{page} is free and not zeroed");
        }
    }
}
