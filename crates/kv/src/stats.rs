//! What the cache does, in numbers.

use crate::cache::{Hit, KvCache};
use crate::evict::Class;
use crate::hash::Scope;
use crate::prefix::Stop;
use hashbrown::HashMap;
use octavo_types::{Bytes, PageId, Pages, Timestamp, Tokens};

/// Every page of the pool, counted once: the four add up to `total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCounts {
    /// Held by sequences (or by handles outside the cache).
    pub used: Pages,
    /// Held by nobody, kept for what they contain.
    pub cached: Pages,
    /// Free, for running sequences only.
    pub reserved: Pages,
    /// Free, for anybody.
    pub free: Pages,
    pub total: Pages,
}

impl PageCounts {
    pub fn add_up(&self) -> bool {
        self.used + self.cached + self.reserved + self.free == self.total
    }
}

/// One moment of a cache.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub pages: PageCounts,
    /// Cached or used pages that pins keep.
    pub pinned: Pages,
    /// Cached pages that could be evicted now.
    pub evictable: Pages,
    /// The most pages that were used at once.
    pub peak_used: Pages,
    pub page_bytes: Bytes,
    pub sequences: usize,
    /// Slots of used pages that hold no token.
    pub unused_slots: u64,
    /// Slots of used pages in all.
    pub used_slots: u64,
    pub allocated_per_second: f64,
    pub freed_per_second: f64,
    pub counters: Counters,
}

impl Snapshot {
    /// Share of the pool in use: 0 to 1.
    pub fn utilisation(&self) -> f64 {
        share(self.pages.used.0.into(), self.pages.total.0.into())
    }
    /// Share of the slots in used pages that hold no token: 0 to 1. Free pages are all alike, so there is no
    /// external fragmentation to report.
    pub fn internal_fragmentation(&self) -> f64 {
        share(self.unused_slots, self.used_slots)
    }
    pub fn bytes_used(&self) -> Bytes {
        self.bytes(self.pages.used)
    }
    /// Bytes that could be used: those of cached pages, too, but for what pins keep.
    pub fn bytes_free(&self) -> Bytes {
        self.bytes(self.pages.free + self.pages.reserved + self.evictable)
    }
    pub fn peak_bytes(&self) -> Bytes {
        self.bytes(self.peak_used)
    }
    fn bytes(&self, pages: Pages) -> Bytes {
        Bytes(u64::from(pages.0).saturating_mul(self.page_bytes.0))
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Counted since the cache was made.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Pages taken off the free list.
    pub allocated: Rate,
    /// Pages put back on it.
    pub freed: Rate,
    pub peak_used: Pages,
    /// Times that pages were evicted, and the pages by class.
    pub evictions: u64,
    pub evicted: ByClass,
    /// One a request: what was admitted again does not count.
    pub lookups: u64,
    /// Tokens of admitted prompts that were found, and that were not.
    pub hit_tokens: u64,
    pub missed_tokens: u64,
    pub stops: Stops,
    pub forks: u64,
    /// Shared pages copied because a holder had to write, and beginnings of pages copied for new sequences.
    pub copies_on_write: u64,
    pub partial_copies: u64,
    pub computed_tokens: u64,
    pub failed_steps: u64,
    /// Prefixes left out of the index because another one has their key.
    pub key_collisions: u64,
}

/// Evicted pages by what they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByClass {
    pub old: u64,
    pub recent: u64,
    pub prefix: u64,
}

impl ByClass {
    pub(crate) fn count(&mut self, class: Class) {
        match class {
            Class::Old => self.old += 1,
            Class::Recent => self.recent += 1,
            Class::Prefix => self.prefix += 1,
        }
    }
    pub fn total(&self) -> u64 {
        self.old + self.recent + self.prefix
    }
}

/// Lookups by the reason they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    pub whole_prompt: u64,
    pub page_not_full: u64,
    pub evicted: u64,
    pub never_seen: u64,
    pub differs: u64,
    pub not_looked_up: u64,
}

impl Counters {
    pub(crate) fn count_lookup(&mut self, prompt: Tokens, hit: &Hit) {
        self.lookups += 1;
        self.hit_tokens += u64::from(hit.tokens.0);
        self.missed_tokens += u64::from((prompt - hit.tokens).0);
        self.partial_copies += u64::from(hit.copied > Tokens::ZERO);
        *self.stops.of(&hit.stop) += 1;
    }
}

impl Stops {
    fn of(&mut self, stop: &Stop) -> &mut u64 {
        match stop {
            Stop::WholePrompt => &mut self.whole_prompt,
            Stop::PageNotFull { .. } => &mut self.page_not_full,
            Stop::Evicted { .. } => &mut self.evicted,
            Stop::NeverSeen { .. } => &mut self.never_seen,
            Stop::Differs { .. } => &mut self.differs,
            Stop::NotLookedUp => &mut self.not_looked_up,
        }
    }
}

/// A count, and how fast it grew over the last ten seconds.
#[derive(Clone, Debug, Default)]
pub struct Rate {
    total: u64,
    /// By second, modulo the length: one more than are averaged, for the second that is not over.
    recent: [u64; Rate::SECONDS as usize + 1],
    newest: u64,
}

impl Rate {
    const SECONDS: u64 = 10;

    pub fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn add(&mut self, now: Timestamp, pages: Pages) {
        self.move_to(now);
        self.total += u64::from(pages.0);
        self.recent[self.slot(self.newest)] += u64::from(pages.0);
    }

    /// Over the last ten whole seconds, or as many as have passed.
    pub fn per_second(&self, now: Timestamp) -> f64 {
        let mut moved = self.clone();
        moved.move_to(now);
        let seconds = moved.newest.min(Self::SECONDS);
        if seconds == 0 {
            return moved.total as f64;
        }
        let sum: u64 = (1..=seconds).map(|ago| moved.recent[moved.slot(moved.newest - ago)]).sum();
        sum as f64 / seconds as f64
    }

    fn move_to(&mut self, now: Timestamp) {
        let passed = now.secs().saturating_sub(self.newest).min(self.recent.len() as u64);
        for ahead in 0..passed {
            let slot = self.slot(now.secs() - ahead);
            self.recent[slot] = 0;
        }
        self.newest = self.newest.max(now.secs());
    }

    fn slot(&self, second: u64) -> usize {
        (second % self.recent.len() as u64) as usize
    }
}

/// What one page is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageUse {
    /// Tables and handles that hold it.
    pub holders: u32,
    /// Held by nobody, kept for what it contains.
    pub cached: bool,
    /// Kept by a pin.
    pub pinned: bool,
}

impl KvCache {
    /// `None` for a page that does not exist.
    pub fn page_use(&self, page: PageId) -> Option<PageUse> {
        let holders = self.pool.refs(page).ok()?;
        let cached = self.info[page.index()].idle;
        Some(PageUse { holders, cached, pinned: self.pins.is_pinned(page) })
    }

    /// Cached pages by whose text they hold, in no order. Goes through the whole pool.
    pub fn cached_by_scope(&self) -> Vec<(Scope, Pages)> {
        let mut cached: HashMap<Scope, Pages> = HashMap::new();
        for (info, scope) in self.info.iter().zip(self.index.scopes()) {
            if let Some(scope) = scope.filter(|_| info.idle) {
                *cached.entry(scope).or_default() += Pages(1);
            }
        }
        cached.into_iter().collect()
    }

    pub fn counts(&self) -> PageCounts {
        let total = self.settings.total;
        // Pages on their way back count as cached; they are read before the free list, so that one which
        // another thread returns meanwhile counts as used, never twice.
        let cached = self.cached + self.pool.returned();
        let all_free = self.pool.free();
        let reserved = all_free.min(self.settings.reserve);
        let free = all_free - reserved;
        PageCounts { used: total - cached - all_free, cached, reserved, free, total }
    }

    pub fn snapshot(&self) -> Snapshot {
        let pages = self.counts();
        Snapshot {
            pages,
            pinned: self.pins.pinned(),
            evictable: self.policy.len(),
            peak_used: self.counters.peak_used,
            page_bytes: self.settings.page_bytes,
            sequences: self.sequences.len(),
            unused_slots: self.unused_slots(),
            used_slots: u64::from(pages.used.0) * u64::from(self.settings.page_size.tokens().0),
            allocated_per_second: self.counters.allocated.per_second(self.now),
            freed_per_second: self.counters.freed.per_second(self.now),
            counters: self.counters.clone(),
        }
    }

    /// Only the last page of a table can have room, and tables that were forked may share it.
    fn unused_slots(&self) -> u64 {
        let size = self.settings.page_size;
        let mut tails: Vec<(PageId, u32)> = self
            .sequences
            .values()
            .filter(|sequence| size.offset_of(sequence.scheduled) > Tokens::ZERO)
            .flat_map(|sequence| {
                let room = size.tokens() - size.offset_of(sequence.scheduled);
                let last = size.page_of(sequence.scheduled);
                sequence.tables.iter().filter_map(move |table| Some((table.page(last)?, room.0)))
            })
            .collect();
        tails.sort_unstable();
        tails.dedup_by_key(|(page, _)| *page);
        tails.iter().map(|(_, room)| u64::from(*room)).sum()
    }

    pub(crate) fn note_peak(&mut self) {
        self.counters.peak_used = self.counters.peak_used.max(self.counts().used);
    }
}
