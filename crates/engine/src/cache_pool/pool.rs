use super::errors::{AllocateError, PoolError, ViewError};
use super::view::{Incoming, View};
use super::{CachePool, CacheView};
use octavo_backend::{Backend, PageLayout};
use octavo_kv::{BlockTable, CacheManager, FreeSequenceError, UnknownSequence};
use octavo_types::{KvSpec, PageSize, Pages, SeqId, Tokens};

/// Keys and values of many sequences on a back end: the books of a [`CacheManager`], and the bytes.
pub struct KvPool<B: Backend> {
    pub(super) manager: CacheManager,
    pub(super) backend: B,
    pub(super) arena: B::Arena,
    /// What one sequence may have, where it has one page and no more.
    pub(super) slot: Option<Tokens>,
}

impl<B: Backend> KvPool<B> {
    /// `pages` of the geometry's size, taken as sequences grow.
    pub fn paged(backend: B, spec: KvSpec, pages: Pages) -> Result<Self, PoolError> {
        Self::build(backend, spec, pages, None)
    }

    /// `slots` sequences of up to `max_seq_len` tokens: one page each, of that size. The geometry's own page size is
    /// not used.
    pub fn contiguous(backend: B, spec: &KvSpec, slots: u32, max_seq_len: Tokens) -> Result<Self, PoolError> {
        let size = PageSize::new(max_seq_len.0).ok_or(PoolError::EmptySlot)?;
        Self::build(backend, spec.with_page_size(size)?, Pages(slots), Some(max_seq_len))
    }

    fn build(backend: B, spec: KvSpec, pages: Pages, slot: Option<Tokens>) -> Result<Self, PoolError> {
        let manager = CacheManager::new(spec, pages)?;
        let arena = backend.arena(PageLayout::new(manager.spec()), pages)?;
        Ok(Self { manager, backend, arena, slot })
    }

    pub fn spec(&self) -> &KvSpec {
        self.manager.spec()
    }
    pub fn backend(&self) -> &B {
        &self.backend
    }
    /// The pages, for operations of the back end that read them in place through [`block_table`](Self::block_table).
    pub fn arena(&self) -> &B::Arena {
        &self.arena
    }
    /// The pages of a sequence, in the order of its positions.
    pub fn block_table(&self, slot: SeqId) -> Result<&BlockTable, UnknownSequence> {
        self.manager.block_table(slot)
    }

    pub(super) fn layers(&self) -> usize {
        self.spec().layers_per_page() as usize
    }

    /// Numbers of one token's keys, or values, in one layer.
    pub(super) fn width(&self) -> usize {
        let [kv_heads, _, head_dim] = self.spec().plane_shape();
        kv_heads as usize * head_dim as usize
    }

    fn view(&mut self, slots: &[SeqId], incoming: Incoming) -> Result<Box<dyn CacheView + '_>, ViewError> {
        Ok(Box::new(View::new(self, slots, incoming)?))
    }
}

impl<B: Backend> std::fmt::Debug for KvPool<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvPool")
            .field("device", &self.backend.name())
            .field("blocks", &self.manager)
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}

impl<B: Backend> CachePool for KvPool<B> {
    fn allocate_slot(&mut self, initial_tokens: Tokens) -> Result<SeqId, AllocateError> {
        let room = match self.slot {
            Some(slot) if initial_tokens > slot => {
                return Err(AllocateError::TooLong { asked: initial_tokens, slot });
            }
            Some(slot) => slot,
            None => initial_tokens,
        };
        Ok(self.manager.allocate_slot(room)?)
    }

    fn free_slot(&mut self, slot: SeqId) -> Result<(), FreeSequenceError> {
        self.manager.free_slot(slot)
    }

    fn get_seq_len(&self, slot: SeqId) -> Result<Tokens, UnknownSequence> {
        self.manager.get_seq_len(slot)
    }

    fn free_slot_count(&self) -> usize {
        self.manager.free_slot_count().as_usize()
    }

    fn free_token_capacity(&self) -> Option<Tokens> {
        self.is_paged().then(|| self.manager.free_token_capacity())
    }

    fn is_paged(&self) -> bool {
        self.slot.is_none()
    }

    fn prefill_view(&mut self, slot: SeqId) -> Result<Box<dyn CacheView + '_>, ViewError> {
        self.view(&[slot], Incoming::AsGiven)
    }

    fn decode_view(&mut self, slots: &[SeqId]) -> Result<Box<dyn CacheView + '_>, ViewError> {
        self.view(slots, Incoming::One)
    }

    fn batched_prefill_view(
        &mut self,
        slots: &[SeqId],
        lens: &[Tokens],
    ) -> Result<Box<dyn CacheView + '_>, ViewError> {
        if slots.len() != lens.len() {
            return Err(ViewError::Lengths { slots: slots.len(), lens: lens.len() });
        }
        self.view(slots, Incoming::Padded(lens.to_vec()))
    }
}
