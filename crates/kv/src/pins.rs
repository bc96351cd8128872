//! Pins: prefixes that stay cached until they are unpinned, within a quota.

use crate::cache::KvCache;
use crate::hash::{Prompt, Scope};
use octavo_types::{PageId, Pages, Tokens};
use std::collections::BTreeMap;

/// What a pin is called.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PinId(pub u64);

/// What a pin keeps: so many tokens of a prompt. Its pages may be kept by others, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pin {
    pub id: PinId,
    pub scope: Scope,
    pub tokens: Tokens,
    pub pages: Pages,
}

/// Why a prefix cannot be pinned, or unpinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    #[error("no full page of this prompt is cached: run it once, then pin it")]
    NotCached,
    #[error("pinning takes {need} more; {pinned} of the quota of {quota} are pinned")]
    OverQuota { need: Pages, pinned: Pages, quota: Pages },
    #[error("there is no pin {}", .0.0)]
    Unknown(PinId),
}

#[derive(Debug)]
pub(crate) struct Pins {
    /// One a page: how many pins keep it.
    counts: Box<[u32]>,
    /// Pages that at least one pin keeps.
    pinned: Pages,
    by_id: BTreeMap<PinId, Kept>,
    next: u64,
}

/// The pages of a pin.
#[derive(Debug)]
struct Kept {
    scope: Scope,
    tokens: Tokens,
    pages: Vec<PageId>,
}

impl Pins {
    pub(crate) fn new(total: Pages) -> Self {
        let counts = vec![0; total.as_usize()].into();
        Self { counts, pinned: Pages::ZERO, by_id: BTreeMap::new(), next: 0 }
    }

    pub(crate) fn is_pinned(&self, page: PageId) -> bool {
        self.counts[page.index()] > 0
    }

    pub(crate) fn pinned(&self) -> Pages {
        self.pinned
    }

    /// Whether the counts agree with the pins.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut counts = vec![0; self.counts.len()];
        self.by_id.values().flat_map(|kept| &kept.pages).for_each(|page| counts[page.index()] += 1);
        let pinned = counts.iter().filter(|count| **count > 0).count();
        if counts[..] != self.counts[..] || pinned != self.pinned.as_usize() {
            return Err("pins are miscounted".into());
        }
        Ok(())
    }
}

impl KvCache {
    /// Keeps the cached full pages of `prompt` from eviction. Returns how many tokens that covers.
    pub fn pin(&mut self, prompt: &Prompt) -> Result<(PinId, Tokens), PinError> {
        self.drain();
        let (pages, tokens) = self.index.public_prefix(prompt);
        if pages.is_empty() {
            return Err(PinError::NotCached);
        }
        let need = Pages(pages.iter().filter(|page| !self.pins.is_pinned(**page)).count() as u32);
        let (pinned, quota) = (self.pins.pinned, self.settings.pin_quota);
        if pinned + need > quota {
            return Err(PinError::OverQuota { need, pinned, quota });
        }
        for &page in &pages {
            self.policy.remove(page);
            self.info[page.index()].is_prefix = true;
            self.pins.counts[page.index()] += 1;
        }
        self.pins.pinned += need;
        let id = PinId(self.pins.next);
        self.pins.next += 1;
        self.pins.by_id.insert(id, Kept { scope: prompt.scope(), tokens, pages });
        Ok((id, tokens))
    }

    /// All pins, the oldest first.
    pub fn pins(&self) -> impl Iterator<Item = Pin> + '_ {
        self.pins.by_id.iter().map(|(&id, kept)| {
            let Kept { scope, tokens, ref pages } = *kept;
            Pin { id, scope, tokens, pages: Pages(pages.len() as u32) }
        })
    }

    /// Lets go of a pin; pages that no other pin keeps can be evicted again.
    pub fn unpin(&mut self, id: PinId) -> Result<(), PinError> {
        for page in self.pins.by_id.remove(&id).ok_or(PinError::Unknown(id))?.pages {
            let count = &mut self.pins.counts[page.index()];
            *count -= 1;
            if *count == 0 {
                self.pins.pinned -= Pages(1);
                self.make_evictable(page);
            }
        }
        self.drain();
        Ok(())
    }
}
