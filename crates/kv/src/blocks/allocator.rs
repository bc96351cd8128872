use super::errors::FreeError;
use super::stats::BlockStats;
use crate::audit::Inconsistent;
use crate::pool::{AllocError, Dropped, Pool, RefError, Scrub};
use octavo_types::{PageId, Pages, SeqId};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Hands out blocks by id and takes them back. Every method may be called from any thread; none takes a lock.
///
/// Invariant: a block is on the free list exactly if nobody holds a reference to it.
///
/// What cannot be checked is a caller's claim to a reference that another caller holds: two holders of a shared
/// block look alike. [`free_owned`](Self::free_owned) narrows that down to one sequence.
#[derive(Debug)]
pub struct BlockAllocator {
    pool: Arc<Pool>,
}

impl BlockAllocator {
    /// All metadata is allocated here. Panics above `u32::MAX - 1` blocks.
    pub fn new(total: Pages) -> Self {
        Self { pool: Pool::new(total) }
    }

    /// As `new`; blocks are zeroed through `scrub` before they become free.
    pub fn with_scrub(total: Pages, scrub: Box<dyn Scrub>) -> Self {
        Self { pool: Pool::with_scrub(total, scrub) }
    }

    /// Takes `n` blocks, all or none, with one reference each. `owner` is kept for finding leaks.
    /// Panics if it is `SeqId(u64::MAX)`, which stands for none.
    pub fn allocate(&self, n: Pages, owner: Option<SeqId>) -> Result<Vec<PageId>, AllocError> {
        let mut pages = self.pool.room_for(n)?;
        self.pool.take_ids(owner, &mut pages)?;
        Ok(pages)
    }

    /// As `allocate`, for one.
    pub fn allocate_one(&self, owner: Option<SeqId>) -> Result<PageId, AllocError> {
        let mut page = [PageId(0)];
        self.pool.take_ids(owner, &mut page)?;
        Ok(page[0])
    }

    /// Gives one reference to each of `pages` back, or none at all. A block whose last reference it was is free.
    pub fn free(&self, pages: &[PageId]) -> Result<(), FreeError> {
        self.give_back(pages, None)
    }

    /// As `free`, and refuses blocks that were not allocated for `owner`.
    pub fn free_owned(&self, owner: SeqId, pages: &[PageId]) -> Result<(), FreeError> {
        self.give_back(pages, Some(owner))
    }

    /// Frees blocks whatever their references, and says how many it freed; passes over free and unknown ones.
    /// Only for blocks that are known to be lost: whoever still uses one loses it.
    pub fn force_free(&self, pages: &[PageId]) -> Pages {
        let held = |page: &&PageId| self.pool.drop_all(**page) == Ok(true);
        let freed: Vec<PageId> = pages.iter().filter(held).copied().collect();
        self.pool.recycle(&freed);
        Pages(freed.len() as u32)
    }

    /// One more reference to an allocated block; fails where the count would no longer fit.
    pub fn add_ref(&self, page: PageId) -> Result<(), RefError> {
        self.pool.add_ref(page)
    }

    /// 0 for a free block.
    pub fn ref_count(&self, page: PageId) -> Result<u32, RefError> {
        self.pool.refs(page)
    }

    /// The sequence the block was allocated for, if it is allocated and one was named.
    pub fn owner(&self, page: PageId) -> Result<Option<SeqId>, RefError> {
        self.pool.owner(page)
    }

    pub fn total(&self) -> Pages {
        self.pool.total()
    }

    pub fn num_free(&self) -> Pages {
        self.pool.free()
    }

    pub fn num_allocated(&self) -> Pages {
        self.total() - self.num_free()
    }

    /// The most blocks that were allocated at once.
    pub fn peak(&self) -> Pages {
        self.pool.peak()
    }

    /// Whether `n` blocks are free now; other threads may take them before the caller does.
    pub fn can_allocate(&self, n: Pages) -> bool {
        self.num_free() >= n
    }

    pub fn get_stats(&self) -> BlockStats {
        BlockStats::new(self.total(), self.num_free(), self.peak())
    }

    /// A copy.
    pub fn allocated_block_ids(&self) -> HashSet<PageId> {
        self.allocated().collect()
    }

    /// Allocated blocks of owners that are not `active`, by owner, sorted. Blocks without an owner are nobody's
    /// leak.
    pub fn find_leaked_blocks(&self, active: &HashSet<SeqId>) -> BTreeMap<SeqId, Vec<PageId>> {
        let mut leaked: BTreeMap<SeqId, Vec<PageId>> = BTreeMap::new();
        for page in self.allocated() {
            if let Ok(Some(owner)) = self.owner(page)
                && !active.contains(&owner)
            {
                leaked.entry(owner).or_default().push(page);
            }
        }
        leaked
    }

    /// Allocated blocks that are not `referenced`, sorted.
    pub fn find_unreferenced_blocks(&self, referenced: &HashSet<PageId>) -> Vec<PageId> {
        self.allocated().filter(|page| !referenced.contains(page)).collect()
    }

    /// Goes through all blocks; only meaningful while no other thread allocates or frees.
    pub fn check(&self) -> Result<(), Inconsistent> {
        let mut free = vec![false; self.total().as_usize()];
        for page in self.pool.walk().0 {
            if std::mem::replace(&mut free[page.index()], true) {
                return Err(Inconsistent(format!("{page} is on the free list twice")));
            }
        }
        for (page, free) in self.pages().zip(free) {
            let refs = self.ref_count(page).map_err(|error| Inconsistent(error.to_string()))?;
            if free != (refs == 0) {
                return Err(Inconsistent(format!("{page} has {refs} references; it is free: {free}")));
            }
        }
        if self.peak() < self.num_allocated() {
            return Err(Inconsistent(format!("more blocks are allocated than at the peak, {}", self.peak())));
        }
        Ok(())
    }

    fn pages(&self) -> impl Iterator<Item = PageId> + use<> {
        (0..self.total().0).map(PageId)
    }

    fn allocated(&self) -> impl Iterator<Item = PageId> + '_ {
        self.pages().filter(|page| self.ref_count(*page).is_ok_and(|refs| refs > 0))
    }

    /// Claims every last reference, then lets go. A claimed block has no references and lies on no list: it is
    /// this call's alone, so the claim can be undone. A reference to a shared block is only looked at until
    /// nothing can be refused any more: once it is given back, the other holders may free the block, and there
    /// is no way to undo that.
    fn give_back(&self, pages: &[PageId], owner: Option<SeqId>) -> Result<(), FreeError> {
        if let ([page], None) = (pages, owner) {
            // Nothing to undo: the one reference is given back or it is not.
            if self.pool.drop_ref(*page)? == Dropped::Last {
                self.pool.recycle(pages);
            }
            return Ok(());
        }
        let mut shared = BTreeMap::new();
        // Most batches hold last references alone: those need no look into `shared`.
        let is_last = |page: &&PageId| owner.is_none() && self.pool.drop_last(**page) == Ok(Dropped::Last);
        let last = pages.iter().take_while(is_last).count();
        for (done, &page) in pages.iter().enumerate().skip(last) {
            if let Err(error) = self.claim(page, owner, &mut shared) {
                let claimed = pages[..done].iter().filter(|page| !shared.contains_key(*page));
                claimed.for_each(|page| self.pool.undo_drop(*page));
                return Err(error);
            }
        }
        if shared.is_empty() {
            self.pool.recycle(pages);
        } else {
            let claimed = pages.iter().copied().filter(|page| !shared.contains_key(page)).collect();
            self.let_go(claimed, &shared);
        }
        Ok(())
    }

    /// A block is either claimed, and a second reference to it is one too many, or counted in `shared`.
    fn claim(
        &self,
        page: PageId,
        owner: Option<SeqId>,
        shared: &mut BTreeMap<PageId, u32>,
    ) -> Result<(), FreeError> {
        if let Some(asked) = owner {
            self.refuse_foreign(page, asked)?;
        }
        if let Some(times) = shared.get_mut(&page) {
            *times += 1;
            return if *times > self.ref_count(page)? {
                Err(FreeError::NotAllocated { page })
            } else {
                Ok(())
            };
        }
        if self.pool.drop_last(page)? == Dropped::Shared {
            shared.insert(page, 1);
        }
        Ok(())
    }

    fn refuse_foreign(&self, page: PageId, asked: SeqId) -> Result<(), FreeError> {
        if self.ref_count(page)? == 0 {
            return Err(FreeError::NotAllocated { page });
        }
        match self.owner(page)? {
            Some(owner) if owner == asked => Ok(()),
            owner => Err(FreeError::Foreign { page, owner, asked }),
        }
    }

    fn let_go(&self, mut claimed: Vec<PageId>, shared: &BTreeMap<PageId, u32>) {
        for (&page, &times) in shared {
            for _ in 0..times {
                match self.pool.drop_ref(page) {
                    Ok(Dropped::Last) => claimed.push(page),
                    Ok(Dropped::Shared) => {}
                    // Another thread gave back a reference that was not its own, between the claim and now.
                    // The block is free or on its way: there is nothing left to give back.
                    Err(error) => tracing::error!(%error, "a shared block was freed once too often"),
                }
            }
        }
        self.pool.recycle(&claimed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_too_many_to_count_is_refused_and_changes_nothing() {
        let blocks = BlockAllocator::new(Pages(2));
        let page = blocks.allocate_one(None).unwrap();
        blocks.pool.set_refs(page, u32::MAX - 1);
        assert_eq!(blocks.add_ref(page), Ok(()));
        assert_eq!(blocks.add_ref(page), Err(RefError::TooManyHolders { page }));
        assert_eq!(blocks.ref_count(page), Ok(u32::MAX));
        blocks.free(&[page]).unwrap();
        assert_eq!(blocks.ref_count(page), Ok(u32::MAX - 1));
    }

    #[test]
    fn a_check_finds_a_free_block_that_is_held_and_a_held_one_that_nobody_holds() {
        let blocks = BlockAllocator::new(Pages(2));
        let page = blocks.allocate_one(None).unwrap();
        blocks.check().unwrap();
        blocks.pool.set_refs(page, 0);
        assert!(blocks.check().unwrap_err().to_string().contains("page 0 has 0 references"));
        blocks.pool.set_refs(page, 1);
        blocks.pool.set_refs(PageId(1), 1);
        assert!(blocks.check().unwrap_err().to_string().contains("page 1 has 1 references"));
    }
}
