use super::allocator::BlockAllocator;
use super::errors::{AllocateSequenceError, ExtendError, FreeSequenceError, ManagerError, PositionError};
use super::stats::{CacheStats, Slots};
use super::table::BlockTable;
use crate::audit::Inconsistent;
use crate::cache::UnknownSequence;
use crate::free_list::MAX_PAGES;
use crate::pool::AllocError;
use hashbrown::HashMap;
use octavo_types::{Bytes, KvSpec, PageId, PageSize, Pages, SeqId, SlotId, Tokens};
use std::collections::HashSet;
use std::ops::Range;

/// A block table and a length for each sequence, over one [`BlockAllocator`].
///
/// Blocks are taken for tokens to come (`allocate_slot`, `reserve`), and tokens are counted once they are there
/// (`advance`); `allocate_sequence` and `extend_sequence` do both at once.
///
/// Invariants: a sequence's blocks hold at least its length; each is allocated, owned by the sequence, and in no
/// other table. Ids counted up by `allocate_slot` are given out once, whether it succeeds or not.
#[derive(Debug)]
pub struct CacheManager {
    spec: KvSpec,
    allocator: BlockAllocator,
    sequences: HashMap<SeqId, Tracked>,
    next: u64,
}

#[derive(Debug, Default)]
struct Tracked {
    table: BlockTable,
    len: Tokens,
}

impl CacheManager {
    pub fn new(spec: KvSpec, total: Pages) -> Result<Self, ManagerError> {
        if total >= MAX_PAGES {
            return Err(ManagerError::TooManyPages { total });
        }
        Self::over(spec, BlockAllocator::new(total))
    }

    /// As many blocks as fit `budget`.
    pub fn with_budget(spec: KvSpec, budget: Bytes) -> Result<Self, ManagerError> {
        let total = spec.pages_in(budget);
        Self::new(spec, total)
    }

    /// Over an allocator of the caller's making, such as one that zeroes what it frees.
    pub fn over(spec: KvSpec, allocator: BlockAllocator) -> Result<Self, ManagerError> {
        if allocator.total() == Pages::ZERO {
            return Err(ManagerError::NoPages { page_bytes: spec.page_bytes() });
        }
        match spec.groups().len() {
            1 => Ok(Self { spec, allocator, sequences: HashMap::new(), next: 0 }),
            groups => Err(ManagerError::LayerGroups { groups }),
        }
    }

    pub fn spec(&self) -> &KvSpec {
        &self.spec
    }

    pub fn allocator(&self) -> &BlockAllocator {
        &self.allocator
    }

    /// Begins a sequence under an id of the caller's choice, with `tokens` in it.
    pub fn allocate_sequence(
        &mut self,
        seq: SeqId,
        tokens: Tokens,
    ) -> Result<&BlockTable, AllocateSequenceError> {
        // The upper half is left to ids that are counted up, which then never run out.
        if i64::try_from(seq.0).is_err() {
            return Err(AllocateSequenceError::IdTooLarge(seq));
        }
        if self.sequences.contains_key(&seq) {
            return Err(AllocateSequenceError::Exists(seq));
        }
        self.next = self.next.max(seq.0 + 1);
        let table = self.take(seq, tokens)?;
        Ok(&self.sequences.entry(seq).insert(Tracked { table, len: tokens }).into_mut().table)
    }

    /// Begins a sequence with blocks for `initial_tokens`, none of which is there yet. Its id was never used
    /// before; one that a failed call would have had is not used again.
    pub fn allocate_slot(&mut self, initial_tokens: Tokens) -> Result<SeqId, AllocError> {
        let seq = SeqId(self.next);
        self.next += 1;
        let table = self.take(seq, initial_tokens)?;
        self.sequences.insert(seq, Tracked { table, len: Tokens::ZERO });
        Ok(seq)
    }

    /// Makes sure that `additional` tokens after the present ones have blocks: takes those missing, all or none.
    pub fn reserve(&mut self, seq: SeqId, additional: Tokens) -> Result<(), ExtendError> {
        let Tracked { table, len } = self.tracked(seq)?;
        let end =
            len.checked_add(additional).ok_or(ExtendError::TooLong { seq, len: *len, more: additional })?;
        let missing = self.page_size().pages_for(end).saturating_sub(table.len());
        let pages = self.allocator.allocate(missing, Some(seq))?;
        self.tracked_mut(seq)?.table.extend(pages);
        Ok(())
    }

    /// Counts `n` more tokens, which must have blocks.
    pub fn advance(&mut self, seq: SeqId, n: Tokens) -> Result<(), PositionError> {
        let Tracked { table, len } = self.tracked(seq)?;
        let end = within(table, self.page_size(), seq, *len, n)?.end;
        self.tracked_mut(seq)?.len = Tokens(end);
        Ok(())
    }

    /// Counts `additional` more tokens, and takes the blocks that they need beyond those the sequence has.
    pub fn extend_sequence(&mut self, seq: SeqId, additional: Tokens) -> Result<(), ExtendError> {
        self.reserve(seq, additional)?;
        self.tracked_mut(seq)?.len += additional;
        Ok(())
    }

    /// Ends a sequence; its blocks are free.
    pub fn free_sequence(&mut self, seq: SeqId) -> Result<(), FreeSequenceError> {
        let Tracked { table, .. } = self.sequences.remove(&seq).ok_or(UnknownSequence(seq))?;
        self.allocator
            .free_owned(seq, table.as_slice())
            .map_err(|error| FreeSequenceError::Blocks { seq, error })
    }

    /// The same under the name that goes with `allocate_slot`.
    pub fn free_slot(&mut self, seq: SeqId) -> Result<(), FreeSequenceError> {
        self.free_sequence(seq)
    }

    /// Tokens that are there.
    pub fn get_seq_len(&self, seq: SeqId) -> Result<Tokens, UnknownSequence> {
        Ok(self.tracked(seq)?.len)
    }

    pub fn block_table(&self, seq: SeqId) -> Result<&BlockTable, UnknownSequence> {
        Ok(&self.tracked(seq)?.table)
    }

    pub fn active_seq_count(&self) -> usize {
        self.sequences.len()
    }

    /// Free blocks: no more sequences than that can begin.
    pub fn free_slot_count(&self) -> Pages {
        self.allocator.num_free()
    }

    /// Tokens that the free blocks hold; at most as many as a sequence can have.
    pub fn free_token_capacity(&self) -> Tokens {
        self.page_size().tokens_in(self.allocator.num_free()).unwrap_or(Tokens(u32::MAX))
    }

    /// Where positions `start..start + n` live: `block * block_size + offset`, one a position.
    pub fn slot_mapping(&self, seq: SeqId, start: Tokens, n: Tokens) -> Result<Vec<SlotId>, PositionError> {
        Ok(self.slots(seq, start, n)?.collect())
    }

    /// The same one by one, for those who put the slots of many sequences into one place.
    pub fn slots(
        &self,
        seq: SeqId,
        start: Tokens,
        n: Tokens,
    ) -> Result<impl Iterator<Item = SlotId> + '_, PositionError> {
        let (table, size) = (self.block_table(seq)?, self.page_size());
        let positions = within(table, size, seq, start, n)?;
        Ok(positions.filter_map(move |at| table.slot(Tokens(at), size)))
    }

    pub fn get_stats(&self) -> CacheStats {
        let size = u64::from(self.page_size().tokens().0);
        let mut slots = Slots { in_blocks: 0, filled: 0 };
        for Tracked { table, len } in self.sequences.values() {
            slots.in_blocks += u64::from(table.len().0) * size;
            slots.filled += u64::from(len.0);
        }
        CacheStats::new(self.allocator.get_stats(), self.spec.page_bytes(), self.sequences.len(), &slots)
    }

    /// Blocks that are allocated but in no table, sorted: lost, unless somebody took them from the allocator.
    pub fn audit_blocks(&self) -> Vec<PageId> {
        let referenced: HashSet<PageId> = self.sequences.values().flat_map(|seq| seq.table.iter()).collect();
        self.allocator.find_unreferenced_blocks(&referenced)
    }

    /// Frees what `audit_blocks` finds, and says how many there were.
    pub fn reclaim_leaked_blocks(&mut self) -> Pages {
        self.allocator.force_free(&self.audit_blocks())
    }

    /// Goes through everything. Lost blocks are not its matter but `audit_blocks`'.
    pub fn check(&self) -> Result<(), Inconsistent> {
        self.allocator.check()?;
        let mut seen = HashSet::new();
        for (&seq, Tracked { table, len }) in &self.sequences {
            if *len > table.room(self.page_size()) || seq.0 >= self.next {
                return Err(Inconsistent(format!("{seq} has {len} in {}", table.len())));
            }
            for page in table.iter() {
                let owner = self.allocator.owner(page).map_err(|error| Inconsistent(error.to_string()))?;
                if owner != Some(seq) || !seen.insert(page) {
                    return Err(Inconsistent(format!("{seq} has {page}, owned by {owner:?}")));
                }
            }
        }
        Ok(())
    }

    fn page_size(&self) -> PageSize {
        self.spec.page_size()
    }

    fn take(&self, seq: SeqId, tokens: Tokens) -> Result<BlockTable, AllocError> {
        Ok(self.allocator.allocate(self.page_size().pages_for(tokens), Some(seq))?.into_iter().collect())
    }

    fn tracked(&self, seq: SeqId) -> Result<&Tracked, UnknownSequence> {
        self.sequences.get(&seq).ok_or(UnknownSequence(seq))
    }

    fn tracked_mut(&mut self, seq: SeqId) -> Result<&mut Tracked, UnknownSequence> {
        self.sequences.get_mut(&seq).ok_or(UnknownSequence(seq))
    }
}

/// `start..start + n`, if all of them have blocks.
fn within(
    table: &BlockTable,
    size: PageSize,
    seq: SeqId,
    start: Tokens,
    n: Tokens,
) -> Result<Range<u32>, PositionError> {
    let room = table.room(size);
    match start.checked_add(n) {
        Some(end) if end <= room || n == Tokens::ZERO => Ok(start.0..end.0),
        _ => Err(PositionError::NoBlock { seq, position: room.max(start), room }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_types::KvDtype;

    fn manager(total: u32) -> CacheManager {
        let spec = KvSpec::full_attention(2, 1, 8, KvDtype::F16, PageSize::DEFAULT).unwrap();
        CacheManager::new(spec, Pages(total)).unwrap()
    }

    #[test]
    fn blocks_of_a_sequence_that_was_lost_track_of_are_found_and_reclaimed() {
        let mut cache = manager(10);
        let kept = cache.allocate_slot(Tokens(20)).unwrap();
        let lost = cache.allocate_slot(Tokens(50)).unwrap();
        let mut blocks = cache.sequences.remove(&lost).unwrap().table.as_slice().to_vec();
        blocks.sort();
        assert_eq!(cache.audit_blocks(), blocks);
        assert_eq!(cache.allocator().find_leaked_blocks(&HashSet::from([kept])).remove(&lost), Some(blocks));
        assert_eq!(cache.reclaim_leaked_blocks(), Pages(4));
        assert_eq!(cache.audit_blocks(), []);
        assert_eq!(cache.free_slot_count(), Pages(8));
        assert_eq!(cache.block_table(kept).unwrap().len(), Pages(2));
        cache.check().unwrap();
    }

    #[test]
    fn a_check_finds_a_block_in_two_tables() {
        let mut cache = manager(10);
        let first = cache.allocate_slot(Tokens(1)).unwrap();
        let second = cache.allocate_slot(Tokens(1)).unwrap();
        cache.check().unwrap();
        let stolen = cache.sequences[&first].table.get(Pages(0)).unwrap();
        cache.sequences.get_mut(&second).unwrap().table.set(Pages(0), stolen).unwrap();
        assert!(cache.check().unwrap_err().to_string().contains("has page 0"));
    }

    #[test]
    fn a_check_finds_a_sequence_longer_than_its_blocks() {
        let mut cache = manager(10);
        let seq = cache.allocate_slot(Tokens(16)).unwrap();
        cache.sequences.get_mut(&seq).unwrap().len = Tokens(17);
        assert!(cache.check().unwrap_err().to_string().contains("has 17 tokens in 1 page"));
    }
}
