//! The page pool: which pages are free, who holds the others, and how often.
//!
//! States of a page, each entered by the arrow's operation only:
//!
//! ```text
//!   free ──take──▶ held ──last drop──▶ returned ──drain──▶ idle ──recycle──▶ free
//!                   ▲                                        │
//!                   └─────────────────revive─────────────────┘
//! ```
//!
//! Invariants: a page is on the free list or on the return stack only with no references; the owner is set
//! while a page is held; `recycle` asks for the page's bytes to be cleared, where that is configured, before
//! anybody can take it again.

use crate::free_list::{Links, MAX_PAGES, Stack};
use crate::page::{PageMut, PageRef};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use octavo_types::{PageId, Pages, SeqId};
use std::fmt;
use std::sync::Arc;

/// Why pages were not handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    #[error("need {need}, only {free} free or evictable")]
    OutOfPages { need: Pages, free: Pages },
    #[error("need {need}; the whole pool has {total}")]
    NeverFits { need: Pages, total: Pages },
}

/// Why a reference was not taken or given back. The page is as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RefError {
    #[error("{page} does not exist: the pool has {total}")]
    Unknown { page: PageId, total: Pages },
    #[error("{page} is not allocated")]
    NotHeld { page: PageId },
    #[error("{page} has {} holders, the most that can be counted", u32::MAX)]
    TooManyHolders { page: PageId },
}

/// Clears bytes. The owner of the memory gives one to the pool when freed pages must not keep what they held.
pub trait Scrub: Send + Sync {
    /// Called before any of `pages` can be handed out again, on the thread that frees them. Work may be
    /// queued, as long as it happens before whatever the next holder does.
    fn zero(&self, pages: &[PageId]);
}

#[derive(Debug)]
struct Meta {
    refs: AtomicU32,
    /// The sequence that took the page, or `NO_OWNER`.
    owner: AtomicU64,
}

/// In the place of a sequence's id; `take_ids` refuses an owner of that number.
const NO_OWNER: u64 = u64::MAX;

/// Fixed set of equal pages. Every method may be called from any thread, and none takes a lock.
pub struct Pool {
    links: Links,
    free: Stack,
    returned: Stack,
    meta: Box<[Meta]>,
    most_held: AtomicU32,
    scrub: Option<Box<dyn Scrub>>,
}

/// What a reference given back left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
    Last,
    Shared,
}

impl Pool {
    /// All metadata is allocated here; nothing is afterwards. Panics above `u32::MAX - 1` pages.
    pub fn new(total: Pages) -> Arc<Self> {
        Self::build(total, None)
    }

    /// As `new`; pages are zeroed through `scrub` before they become free.
    pub fn with_scrub(total: Pages, scrub: Box<dyn Scrub>) -> Arc<Self> {
        Self::build(total, Some(scrub))
    }

    pub(crate) fn build(total: Pages, scrub: Option<Box<dyn Scrub>>) -> Arc<Self> {
        assert!(total < MAX_PAGES, "a pool has at most {} pages", MAX_PAGES.0 - 1);
        let meta =
            (0..total.0).map(|_| Meta { refs: AtomicU32::new(0), owner: AtomicU64::new(NO_OWNER) }).collect();
        let pool = Self {
            links: Links::new(total),
            free: Stack::new(),
            returned: Stack::new(),
            meta,
            most_held: AtomicU32::new(0),
            scrub,
        };
        // Page 0 on top, so that a fresh pool is filled from the front of the arena.
        let all: Vec<PageId> = (0..total.0).rev().map(PageId).collect();
        pool.free.push(&pool.links, &all);
        Arc::new(pool)
    }

    pub fn total(&self) -> Pages {
        Pages(self.meta.len() as u32)
    }

    /// Pages on the free list.
    pub fn free(&self) -> Pages {
        self.free.len(&self.links)
    }

    /// Pages whose last holder let go and that nobody has drained yet.
    pub fn returned(&self) -> Pages {
        self.returned.len(&self.links)
    }

    /// The most pages that were off the free list at once.
    pub fn peak(&self) -> Pages {
        Pages(self.most_held.load(Ordering::Relaxed))
    }

    /// How many hold the page: 0 for a page that is free or only kept for its contents.
    pub fn refs(&self, page: PageId) -> Result<u32, RefError> {
        Ok(self.meta(page)?.refs.load(Ordering::Acquire))
    }

    /// The sequence that took the page, while it is held.
    pub fn owner(&self, page: PageId) -> Result<Option<SeqId>, RefError> {
        let owner = self.meta(page)?.owner.load(Ordering::Relaxed);
        Ok((owner != NO_OWNER).then_some(SeqId(owner)))
    }

    /// Takes `n` pages, all or none. Panics if the owner is `SeqId(u64::MAX)`, which stands for none.
    pub fn take(self: &Arc<Self>, n: Pages, owner: Option<SeqId>) -> Result<Vec<PageMut>, AllocError> {
        let mut ids = self.room_for(n)?;
        self.take_ids(owner, &mut ids)?;
        Ok(ids.into_iter().map(|id| PageMut::new(id, Arc::clone(self))).collect())
    }

    /// Puts every returned page back on the free list; for users that keep no contents. Returns how many.
    pub fn reclaim(&self) -> Pages {
        let mut pages = Vec::new();
        self.drain(&mut pages);
        self.recycle(&pages);
        Pages(pages.len() as u32)
    }

    /// A list as long as `n`, to be filled by `take_ids`.
    pub(crate) fn room_for(&self, n: Pages) -> Result<Vec<PageId>, AllocError> {
        if n > self.total() {
            return Err(AllocError::NeverFits { need: n, total: self.total() });
        }
        Ok(vec![PageId(0); n.as_usize()])
    }

    /// As `take`, by id, as many as `out` holds: the caller answers for giving each reference back once.
    pub(crate) fn take_ids(&self, owner: Option<SeqId>, out: &mut [PageId]) -> Result<(), AllocError> {
        assert_ne!(owner, Some(SeqId(NO_OWNER)), "this number stands for no owner");
        let need = Pages(out.len() as u32);
        let left = self.free.pop(&self.links, out).map_err(|free| AllocError::OutOfPages { need, free })?;
        for &page in out.iter() {
            self.mark_held(page, owner);
        }
        let held = self.total() - left;
        if held.0 > self.most_held.load(Ordering::Relaxed) {
            self.most_held.fetch_max(held.0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// One more reference to a page that somebody holds.
    pub(crate) fn share(self: &Arc<Self>, page: PageId) -> Result<PageRef, RefError> {
        self.add_ref(page)?;
        Ok(PageRef::new(page, Arc::clone(self)))
    }

    /// Gives an idle page (no references, on no stack) to a new holder, contents and all.
    pub(crate) fn revive(self: &Arc<Self>, page: PageId, owner: SeqId) -> PageRef {
        self.mark_held(page, Some(owner));
        PageRef::new(page, Arc::clone(self))
    }

    fn mark_held(&self, page: PageId, owner: Option<SeqId>) {
        let meta = &self.meta[page.index()];
        meta.owner.store(owner.map_or(NO_OWNER, |seq| seq.0), Ordering::Relaxed);
        meta.refs.store(1, Ordering::Release);
    }

    pub(crate) fn add_ref(&self, page: PageId) -> Result<(), RefError> {
        self.meta(page)?
            .refs
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |refs| match refs {
                0 | u32::MAX => None,
                _ => Some(refs + 1),
            })
            .map(drop)
            .map_err(|refs| match refs {
                0 => RefError::NotHeld { page },
                _ => RefError::TooManyHolders { page },
            })
    }

    /// Gives one reference back. After `Last` the page is idle and the caller's: it goes to `recycle` or back
    /// through `undo_drop`.
    pub(crate) fn drop_ref(&self, page: PageId) -> Result<Dropped, RefError> {
        let before = self
            .meta(page)?
            .refs
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |refs| refs.checked_sub(1))
            .map_err(|_| RefError::NotHeld { page })?;
        Ok(if before == 1 { Dropped::Last } else { Dropped::Shared })
    }

    /// Gives the reference back if it is the last one; otherwise leaves the count alone and says `Shared`.
    pub(crate) fn drop_last(&self, page: PageId) -> Result<Dropped, RefError> {
        match self.meta(page)?.refs.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(Dropped::Last),
            Err(0) => Err(RefError::NotHeld { page }),
            Err(_) => Ok(Dropped::Shared),
        }
    }

    /// Gives all references back, whoever holds them. True if there were any: then as after `Last`.
    pub(crate) fn drop_all(&self, page: PageId) -> Result<bool, RefError> {
        Ok(self.meta(page)?.refs.swap(0, Ordering::AcqRel) > 0)
    }

    /// Takes back a drop that was the last and whose page has not been passed on. Never after `Shared`: the
    /// other holders may have let the page go since.
    pub(crate) fn undo_drop(&self, page: PageId) {
        let before = self.meta[page.index()].refs.fetch_add(1, Ordering::AcqRel);
        debug_assert_eq!(before, 0, "{page} is held");
    }

    /// Clears idle pages if asked to, and makes them free.
    pub(crate) fn recycle(&self, pages: &[PageId]) {
        if pages.is_empty() {
            return;
        }
        for &page in pages {
            let meta = &self.meta[page.index()];
            debug_assert_eq!(meta.refs.load(Ordering::Relaxed), 0, "{page} is held");
            meta.owner.store(NO_OWNER, Ordering::Relaxed);
        }
        if let Some(scrub) = &self.scrub {
            scrub.zero(pages);
        }
        self.free.push(&self.links, pages);
    }

    /// The last holder of `page`, on whatever thread, let go of it.
    pub(crate) fn push_returned(&self, page: PageId) {
        self.returned.push(&self.links, &[page]);
    }

    /// Moves the returned pages into `out`, the first returned first. They are idle and the caller's.
    pub(crate) fn drain(&self, out: &mut Vec<PageId>) {
        self.returned.take_all(&self.links, out);
    }

    /// Free pages, then returned ones; only while no other thread uses the pool.
    pub(crate) fn walk(&self) -> (impl Iterator<Item = PageId> + '_, impl Iterator<Item = PageId> + '_) {
        (self.free.walk(&self.links), self.returned.walk(&self.links))
    }

    #[cfg(test)]
    pub(crate) fn set_refs(&self, page: PageId, refs: u32) {
        self.meta[page.index()].refs.store(refs, Ordering::Release);
    }

    fn meta(&self, page: PageId) -> Result<&Meta, RefError> {
        self.meta.get(page.index()).ok_or(RefError::Unknown { page, total: self.total() })
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("total", &self.total())
            .field("free", &self.free())
            .finish_non_exhaustive()
    }
}
