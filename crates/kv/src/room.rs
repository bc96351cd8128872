//! Making room: taking pages, and where they come from.
//!
//! The ladder: pages that are free and not reserved, then cached pages by the policy, then, for running
//! sequences only, the reserve. What lies above it (preempting somebody) is the engine's to decide.

use crate::cache::KvCache;
use crate::evict::Idle;
use crate::page::PageMut;
use crate::plan::Claim;
use crate::pool::AllocError;
use octavo_types::{PageId, Pages, SeqId, Timestamp};
use std::time::Duration;

/// What the cache knows of a page beyond its holders.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageInfo {
    /// When its last holder last used it.
    pub(crate) last_use: Timestamp,
    /// Whether a lookup found it or somebody pinned it since it was filled.
    pub(crate) is_prefix: bool,
    /// Held by nobody, kept for what it contains.
    pub(crate) idle: bool,
    /// When it was taken off the free list.
    pub(crate) taken: Timestamp,
}

/// How long pages lived and lay idle, of those that came to an end of it since it was last asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageTimes {
    /// From being taken to being evicted.
    pub lifetime: Vec<Duration>,
    /// From the last use to being evicted.
    pub idle_before_evict: Vec<Duration>,
    /// From the last use to the next, of pages that nobody held in between.
    pub reuse_gap: Vec<Duration>,
}

impl PageTimes {
    /// Nobody may ever ask: no more than this are kept.
    const MOST: usize = 1 << 14;

    fn note(times: &mut Vec<Duration>, time: Duration) {
        if times.len() < Self::MOST {
            times.push(time);
        }
    }
}

impl PageInfo {
    /// Notes a use, as a holder is about to let go.
    pub(crate) fn stamp(&mut self, at: Timestamp) {
        self.last_use = self.last_use.max(at);
    }
}

impl KvCache {
    /// Pages that a claim could get right now, by eviction too.
    pub fn available(&self, claim: Claim) -> Pages {
        let free = match claim {
            Claim::New => self.pool.free().saturating_sub(self.settings.reserve),
            Claim::Running => self.pool.free(),
        };
        free + self.policy.len()
    }

    /// Takes `n` pages for `owner`, all or none.
    pub(crate) fn take(&mut self, n: Pages, owner: SeqId, claim: Claim) -> Result<Vec<PageMut>, AllocError> {
        self.drain();
        let total = self.settings.total;
        let free = self.available(claim);
        if n > free {
            return Err(AllocError::OutOfPages { need: n, free });
        }
        let unreserved = self.pool.free().saturating_sub(self.settings.reserve);
        let short = n.saturating_sub(unreserved);
        if short > Pages::ZERO {
            self.evict(short.max(self.policy.batch(unreserved, total)));
        }
        let pages = self.pool.take(n, Some(owner))?;
        pages.iter().for_each(|page| self.info[page.id().index()].taken = self.now);
        self.counters.allocated.add(self.now, n);
        Ok(pages)
    }

    /// Makes up to `n` cached pages free, in the order of the policy; returns how many there were.
    pub fn evict(&mut self, n: Pages) -> Pages {
        let mut victims = Vec::with_capacity(n.min(self.policy.len()).as_usize());
        while victims.len() < n.as_usize() {
            let Some((page, class)) = self.policy.victim() else { break };
            self.index.evict(page, self.now);
            let info = &mut self.info[page.index()];
            info.idle = false;
            PageTimes::note(&mut self.times.lifetime, self.now.since(info.taken));
            PageTimes::note(&mut self.times.idle_before_evict, self.now.since(info.last_use));
            self.counters.evicted.count(class);
            victims.push(page);
        }
        let reclaimed = Pages(victims.len() as u32);
        if reclaimed > Pages::ZERO {
            self.cached -= reclaimed;
            self.counters.evictions += 1;
            self.recycle(&victims);
            tracing::debug!(
                policy = self.settings.policy.name(),
                reclaimed = reclaimed.0,
                evictions = self.counters.evictions,
                "evicted cached pages"
            );
        }
        reclaimed
    }

    /// [Takes in](Self::take_in) pages, and evicts what is cached beyond the limit.
    pub(crate) fn drain(&mut self) {
        self.take_in();
        if let Some(limit) = self.settings.cached_limit
            && self.cached > limit
        {
            self.evict(self.cached - limit);
        }
    }

    /// Takes in the pages whose last holder let go, on whatever thread: indexed ones stay as cached pages, the
    /// others become free.
    pub(crate) fn take_in(&mut self) {
        let mut pages = std::mem::take(&mut self.returned);
        self.pool.drain(&mut pages);
        pages.retain(|page| !self.keep(*page));
        self.recycle(&pages);
        pages.clear();
        self.returned = pages;
    }

    fn keep(&mut self, page: PageId) -> bool {
        if !self.index.is_public(page) {
            return false;
        }
        self.cached += Pages(1);
        self.info[page.index()].idle = true;
        self.make_evictable(page);
        true
    }

    /// Hands an idle page to the policy, unless it is pinned.
    pub(crate) fn make_evictable(&mut self, page: PageId) {
        let PageInfo { last_use, is_prefix, idle, .. } = self.info[page.index()];
        if idle && !self.pins.is_pinned(page) {
            let uses = self.index.uses(page);
            self.policy.insert(Idle { page, last_use, is_prefix, uses });
        }
    }

    /// An idle page is used again.
    pub(crate) fn note_reuse(&mut self, page: PageId) {
        let gap = self.now.since(self.info[page.index()].last_use);
        PageTimes::note(&mut self.times.reuse_gap, gap);
    }

    /// What has been noted since the last call.
    pub fn take_page_times(&mut self) -> PageTimes {
        std::mem::take(&mut self.times)
    }

    fn recycle(&mut self, pages: &[PageId]) {
        self.counters.freed.add(self.now, Pages(pages.len() as u32));
        self.pool.recycle(pages);
    }
}
