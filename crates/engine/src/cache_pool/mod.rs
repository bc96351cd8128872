//! The cache as another engine may use it: slots, views, and rows of numbers in and out.
//!
//! [`CachePool`] is one interface for two ways to lay keys and values out. *Paged*: a sequence takes pages as it
//! grows. *Contiguous*: it has one slot for the longest it may become, which is paging with one page a slot, so that
//! both are one [`KvPool`] and a runner never asks which of them it has.
//!
//! A runner takes a view a step, hands each layer's new keys and values to [`CacheView::update`], attends to what
//! that returns, and says with [`CacheView::advance`] that the step's tokens are there:
//!
//! ```
//! use octavo_backend::Reference;
//! use octavo_engine::{CachePool, KvPool};
//! use octavo_types::{KvDtype, KvSpec, PageSize, Pages, Tokens};
//!
//! // Two layers with one key-value head of four numbers, in eight pages of sixteen tokens.
//! let spec = KvSpec::full_attention(2, 1, 4, KvDtype::F16, PageSize::DEFAULT)?;
//! let mut pool = KvPool::paged(Reference, spec, Pages(8))?;
//!
//! // A prompt of 20 tokens: room for all of it is taken here, or the call fails and takes nothing.
//! let slot = pool.allocate_slot(Tokens(20))?;
//! let (keys, values) = (vec![0.5; 20 * 4], vec![-1.0; 20 * 4]);
//! let mut view = pool.prefill_view(slot)?;
//! for layer in 0..2 {
//!     let seen = view.update(layer, &keys, &values)?;
//!     assert_eq!((seen.batch, seen.len), (1, 20));
//!     // … attend to seen.keys and seen.values, each [batch, len, kv_heads, head_dim] …
//! }
//! view.advance(Tokens(20))?;
//! drop(view);
//!
//! // Then a token a step, of any number of sequences at once.
//! let mut view = pool.decode_view(&[slot])?;
//! for layer in 0..2 {
//!     let seen = view.update(layer, &[0.25; 4], &[2.0; 4])?;
//!     assert_eq!((seen.len, seen.keys[19 * 4], seen.keys[20 * 4]), (21, 0.5, 0.25));
//! }
//! view.advance(Tokens(1))?;
//! drop(view);
//! assert_eq!(pool.get_seq_len(slot)?, Tokens(21));
//!
//! pool.free_slot(slot)?;
//! assert_eq!(pool.free_token_capacity(), Some(Tokens(8 * 16)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **What `update` returns** is what attention reads: of every sequence of the view all positions so far, this
//! step's included, *as stored*, that is encoded and decoded again. For a new prompt in f32 that is the input, bit for
//! bit; for the other precisions it is the input as the cache will remember it. Attention over it gives the same
//! bits whether a prompt comes in one chunk or in many, and whether a token was computed in this step or an earlier
//! one.
//!
//! Layers have no windows here: every position is kept, and masks are the caller's. Octavo's own engine runs on
//! [`KvCache`](octavo_kv::KvCache), which knows tokens, shares prefixes and frees what left a window, and its kernels
//! read pages in place; this is the plain interface, which copies.

mod errors;
mod pool;
mod step;
mod view;

pub use errors::{AdvanceError, AllocateError, PoolError, UpdateError, ViewError};
pub use pool::KvPool;

use octavo_kv::{FreeSequenceError, UnknownSequence};
use octavo_types::{SeqId, Tokens};

/// Room for the keys and values of many sequences, each in a *slot*.
pub trait CachePool: Send {
    /// Begins a sequence with room for `initial_tokens`, none of which is there yet. A failure takes nothing and
    /// leaves no trace; an id is never used again.
    fn allocate_slot(&mut self, initial_tokens: Tokens) -> Result<SeqId, AllocateError>;
    /// Ends a sequence; all of its room is free.
    fn free_slot(&mut self, slot: SeqId) -> Result<(), FreeSequenceError>;
    /// Tokens that are there.
    fn get_seq_len(&self, slot: SeqId) -> Result<Tokens, UnknownSequence>;
    /// No more sequences than that can begin now.
    fn free_slot_count(&self) -> usize;
    /// Tokens that fit what is free; `None` where room is given by the slot and not by the token.
    fn free_token_capacity(&self) -> Option<Tokens>;
    fn is_paged(&self) -> bool;

    /// Any number of tokens a step of one sequence, after those that are there.
    fn prefill_view(&mut self, slot: SeqId) -> Result<Box<dyn CacheView + '_>, ViewError>;
    /// One token a step of each sequence.
    fn decode_view(&mut self, slots: &[SeqId]) -> Result<Box<dyn CacheView + '_>, ViewError>;
    /// One step: `lens` tokens of each sequence, padded at their end to the same number of rows.
    fn batched_prefill_view(
        &mut self,
        slots: &[SeqId],
        lens: &[Tokens],
    ) -> Result<Box<dyn CacheView + '_>, ViewError>;
}

/// Sequences of a pool for the length of a step, or of several.
///
/// Rows are `[batch, rows, kv_heads, head_dim]`, one batch entry a sequence of the view. What a step stores counts
/// once it [`advance`](Self::advance)s; a view dropped before leaves every sequence as long as it was.
pub trait CacheView {
    /// Stores one layer's new keys and values, and returns what attention reads. The first call of a step finds
    /// the room, for all sequences or for none; the other layers go where the first one went.
    fn update(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<Gathered, UpdateError>;
    /// As `update`, for those whose attention reads the pages in place.
    fn store(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<(), UpdateError>;
    /// Ends the step: its tokens are there. `n` is the number of rows that every sequence had, padding included;
    /// a padded sequence grows by its tokens alone.
    fn advance(&mut self, n: Tokens) -> Result<(), AdvanceError>;
    /// Tokens of the longest sequence, those of the open step not included.
    fn seq_len(&self) -> Tokens;
    fn is_paged(&self) -> bool;
}

/// What attention reads of one layer: keys and values, each `[batch, len, kv_heads, head_dim]`, in the order of the
/// positions. Shorter sequences are padded with zeros.
#[derive(Clone, Debug, PartialEq)]
pub struct Gathered {
    pub keys: Vec<f32>,
    pub values: Vec<f32>,
    pub batch: usize,
    /// Positions of the longest sequence, this step's included.
    pub len: usize,
}
