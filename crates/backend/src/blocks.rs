//! Block operations on the layouts of other engines, and the way from and to Octavo's pages.
//!
//! | name here | shape | one buffer holds |
//! |---|---|---|
//! | blocks | `[blocks, 2, block_size, kv_heads, head_dim]` | keys and values of one layer |
//! | heads | `[layers, blocks, kv_heads, block_size, head_dim]` | keys of all layers, or values |
//! | pages | `[blocks, layers, 2, kv_heads, block_size, head_dim]` | everything ([`PageLayout`](crate::PageLayout)) |
//!
//! Pages are those whose keys lie in rows: the reference's, a GPU's, and the CPU's where they were asked for.
//!
//! Elements are of any type that can be copied: `f32`, `f16`, or bytes with `head_dim` counted in bytes. Everything
//! moves in contiguous runs: a token's heads, a head's row, a head's whole block, or a whole block. An operation
//! checks all of its arguments before it writes anything.

mod reshape;
#[cfg(test)]
mod tests;

pub use reshape::{
    blocks_to_heads, blocks_to_pages, heads_to_blocks, heads_to_pages, pages_to_blocks, pages_to_heads,
};

use octavo_types::{PageId, SlotId};
use std::ops::Range;

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BlockError {
    #[error("{what} has {got} elements, the shape needs {need}")]
    Length { what: &'static str, got: usize, need: usize },
    #[error("token {token} is mapped to slot {slot}; there are {slots}")]
    Slot { token: usize, slot: u64, slots: usize },
    #[error("{page} is not one of {blocks} blocks")]
    Block { page: PageId, blocks: usize },
    #[error("layer {layer} is not one of {layers}")]
    Layer { layer: usize, layers: usize },
    #[error("only the number of blocks may be 0")]
    Zero,
    #[error("a cache of this shape has more elements than can be counted")]
    TooLarge,
}

/// The shape of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheShape {
    layers: usize,
    blocks: usize,
    block_size: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl CacheShape {
    pub fn new(
        layers: usize,
        blocks: usize,
        block_size: usize,
        kv_heads: usize,
        head_dim: usize,
    ) -> Result<Self, BlockError> {
        let others = [layers, block_size, kv_heads, head_dim];
        if others.contains(&0) {
            return Err(BlockError::Zero);
        }
        others
            .into_iter()
            .chain([blocks.max(1)])
            .try_fold(2, usize::checked_mul)
            .map(|_| Self { layers, blocks, block_size, kv_heads, head_dim })
            .ok_or(BlockError::TooLarge)
    }

    pub fn layers(&self) -> usize {
        self.layers
    }
    pub fn blocks(&self) -> usize {
        self.blocks
    }
    /// Slots of a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }
    /// Elements of one token's keys, or values, in one layer.
    pub fn token(&self) -> usize {
        self.kv_heads * self.head_dim
    }
    /// Elements of one block's keys, or values, in one layer.
    pub fn half(&self) -> usize {
        self.block_size * self.token()
    }
    /// Elements of one layer's keys and values: of a buffer in the layout *blocks*.
    pub fn layer_elements(&self) -> usize {
        self.blocks * 2 * self.half()
    }
    /// Elements of all keys, or of all values: of a buffer in the layout *heads*.
    pub fn heads_elements(&self) -> usize {
        self.layers * self.blocks * self.half()
    }
    /// Elements of everything: of a buffer in the layout *pages*.
    pub fn pages_elements(&self) -> usize {
        2 * self.heads_elements()
    }

    fn block(&self, page: PageId) -> Result<Range<usize>, BlockError> {
        if page.index() >= self.blocks {
            return Err(BlockError::Block { page, blocks: self.blocks });
        }
        let start = page.index() * 2 * self.half();
        Ok(start..start + 2 * self.half())
    }
}

fn length(what: &'static str, got: usize, need: usize) -> Result<(), BlockError> {
    if got == need { Ok(()) } else { Err(BlockError::Length { what, got, need }) }
}

/// Scatters new keys and values, each `[tokens, kv_heads, head_dim]`, into one layer's *blocks*: token `i` goes to
/// slot `slots[i] % block_size` of block `slots[i] / block_size`. Where two tokens have the same slot the later one
/// stays.
pub fn kv_cache_copy<T: Copy>(
    cache: &mut [T],
    keys: &[T],
    values: &[T],
    slots: &[SlotId],
    shape: &CacheShape,
) -> Result<(), BlockError> {
    let token = shape.token();
    let need = slots.len().checked_mul(token).ok_or(BlockError::TooLarge)?;
    length("the cache", cache.len(), shape.layer_elements())?;
    length("the keys", keys.len(), need)?;
    length("the values", values.len(), need)?;
    let total = shape.blocks * shape.block_size;
    if let Some((token, slot)) = slots.iter().enumerate().find(|(_, slot)| slot.0 >= total as u64) {
        return Err(BlockError::Slot { token, slot: slot.0, slots: total });
    }
    for (i, slot) in slots.iter().enumerate() {
        let slot = slot.0 as usize;
        let at = slot / shape.block_size * 2 * shape.half() + slot % shape.block_size * token;
        cache[at..][..token].copy_from_slice(&keys[i * token..][..token]);
        cache[at + shape.half()..][..token].copy_from_slice(&values[i * token..][..token]);
    }
    Ok(())
}

/// Copies whole blocks of one layer from one cache to another of the same shape: `(from, to)`, one after another.
pub fn kv_cache_copy_blocks<T: Copy>(
    to: &mut [T],
    from: &[T],
    pairs: &[(PageId, PageId)],
    shape: &CacheShape,
) -> Result<(), BlockError> {
    length("the destination", to.len(), shape.layer_elements())?;
    length("the source", from.len(), shape.layer_elements())?;
    for (source, target) in ranges(pairs, shape)? {
        to[target].copy_from_slice(&from[source]);
    }
    Ok(())
}

/// Copies whole blocks within one layer's cache, for forks and copy-on-write: `(from, to)`, one after another.
pub fn kv_cache_copy_blocks_within<T: Copy>(
    cache: &mut [T],
    pairs: &[(PageId, PageId)],
    shape: &CacheShape,
) -> Result<(), BlockError> {
    length("the cache", cache.len(), shape.layer_elements())?;
    for (source, target) in ranges(pairs, shape)? {
        cache.copy_within(source, target.start);
    }
    Ok(())
}

type Move = (Range<usize>, Range<usize>);

fn ranges(pairs: &[(PageId, PageId)], shape: &CacheShape) -> Result<Vec<Move>, BlockError> {
    pairs.iter().map(|&(from, to)| Ok((shape.block(from)?, shape.block(to)?))).collect()
}
