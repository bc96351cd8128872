//! Block operations on the layouts of other engines, on the device: those of [`octavo_backend::blocks`], see there for
//! the layouts and what each does. All are moves of runs of bytes, by one kernel.

use crate::backend::Cuda;
use crate::device::Grid;
use crate::kernels::Kernel;
use crate::memory::{Memory, launch};
use crate::pages::independent;
use octavo_backend::BackendError;
use octavo_backend::blocks::{BlockError, CacheShape};
use octavo_types::{PageId, SlotId};
use std::collections::HashMap;
use std::marker::PhantomData;

pub(crate) const MOVE: Kernel = Kernel::new::<MoveArgs>("move");

/// Blocks of a grid along its second axis.
const MOST_IN_Y: usize = 65_535;

#[repr(C)]
struct MoveArgs {
    from: u64,
    to: u64,
    from_numbers: u64,
    to_numbers: u64,
    from_strides: [u64; 4],
    to_strides: [u64; 4],
    counts: [u32; 3],
    bytes: u32,
    unit: u32,
    unused: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum BlocksError {
    #[error(transparent)]
    Block(#[from] BlockError),
    #[error(transparent)]
    Device(#[from] BackendError),
}

/// Elements of a cache that are their bytes.
/// # Safety
/// Any bits are a value, and there is no padding.
pub unsafe trait Element: Copy {}
// SAFETY: plain numbers.
unsafe impl Element for f32 {}
// SAFETY: sixteen bits.
unsafe impl Element for half::f16 {}
// SAFETY: sixteen bits.
unsafe impl Element for half::bf16 {}
// SAFETY: plain numbers.
unsafe impl Element for u8 {}

/// Elements on the device.
#[derive(Debug)]
pub struct CudaBlocks<T> {
    memory: Memory,
    len: usize,
    of: PhantomData<T>,
}

impl<T: Element> CudaBlocks<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn read(&self, out: &mut [T]) -> Result<(), BackendError> {
        assert_eq!(out.len(), self.len, "elements of the buffer");
        // SAFETY: elements are their bytes, any of which are a value.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast::<u8>(), size_of_val(out)) };
        self.memory.read(bytes)
    }
}

/// Where runs lie: strides in elements, the numbers along the first axis if they are not 0, 1, ...
#[derive(Clone, Copy)]
struct Side<'a> {
    address: u64,
    first: usize,
    strides: [usize; 4],
    numbers: Option<&'a [u32]>,
}

impl Cuda {
    pub fn blocks<T: Element>(&self, values: &[T]) -> Result<CudaBlocks<T>, BackendError> {
        // SAFETY: elements are their bytes.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        Ok(CudaBlocks { memory: Memory::of(&self.device, bytes)?, len: values.len(), of: PhantomData })
    }

    /// See [`octavo_backend::blocks::kv_cache_copy`].
    pub fn kv_cache_copy<T: Element>(
        &self,
        cache: &mut CudaBlocks<T>,
        keys: &CudaBlocks<T>,
        values: &CudaBlocks<T>,
        slots: &[SlotId],
        shape: &CacheShape,
    ) -> Result<(), BlocksError> {
        let (token, size) = (shape.token(), shape.block_size());
        let need = slots.len().checked_mul(token).ok_or(BlockError::TooLarge)?;
        length("the cache", cache.len, shape.layer_elements())?;
        length("the keys", keys.len, need)?;
        length("the values", values.len, need)?;
        let total = shape.blocks() * size;
        if let Some((token, slot)) = slots.iter().enumerate().find(|(_, slot)| slot.0 >= total as u64) {
            return Err(BlockError::Slot { token, slot: slot.0, slots: total }.into());
        }
        // Of several tokens for one slot the last stays: blocks of threads run in any order.
        let last: HashMap<u64, usize> = slots.iter().enumerate().map(|(i, slot)| (slot.0, i)).collect();
        let kept: Vec<usize> = (0..slots.len()).filter(|i| last[&slots[*i].0] == *i).collect();
        let sources: Vec<u32> = kept.iter().map(|&i| i as u32).collect();
        let place = |&i: &usize| (slots[i].0 as usize / size * 2 * size + slots[i].0 as usize % size) as u32;
        let targets: Vec<u32> = kept.iter().map(place).collect();
        for (half, new) in [keys, values].into_iter().enumerate() {
            let strides = [token, 0, 0, 0];
            let from = Side { address: new.memory.address(), first: 0, strides, numbers: Some(&sources) };
            let address = cache.memory.address();
            let to = Side { address, first: half * shape.half(), strides, numbers: Some(&targets) };
            self.move_runs::<T>(from, to, [kept.len(), 1, 1, 1], token)?;
        }
        Ok(())
    }

    /// See [`octavo_backend::blocks::kv_cache_copy_blocks`].
    pub fn kv_cache_copy_blocks<T: Element>(
        &self,
        to: &mut CudaBlocks<T>,
        from: &CudaBlocks<T>,
        pairs: &[(PageId, PageId)],
        shape: &CacheShape,
    ) -> Result<(), BlocksError> {
        length("the destination", to.len, shape.layer_elements())?;
        length("the source", from.len, shape.layer_elements())?;
        check_pairs(pairs, shape)?;
        // Of several sources for one block the last stays.
        let last: HashMap<PageId, PageId> = pairs.iter().map(|&(from, to)| (to, from)).collect();
        let pairs: Vec<_> = last.into_iter().map(|(to, from)| (from, to)).collect();
        self.copy_blocks::<T>(from.memory.address(), to.memory.address(), &pairs, shape)
    }

    /// See [`octavo_backend::blocks::kv_cache_copy_blocks_within`].
    pub fn kv_cache_copy_blocks_within<T: Element>(
        &self,
        cache: &mut CudaBlocks<T>,
        pairs: &[(PageId, PageId)],
        shape: &CacheShape,
    ) -> Result<(), BlocksError> {
        length("the cache", cache.len, shape.layer_elements())?;
        check_pairs(pairs, shape)?;
        let moved: Vec<_> =
            pairs.iter().filter(|(from, to)| from != to).map(|&(from, to)| (from, to, 0)).collect();
        let mut rest = &moved[..];
        while !rest.is_empty() {
            let (together, later) = rest.split_at(independent(rest));
            let pairs: Vec<_> = together.iter().map(|&(from, to, _)| (from, to)).collect();
            self.copy_blocks::<T>(cache.memory.address(), cache.memory.address(), &pairs, shape)?;
            rest = later;
        }
        Ok(())
    }

    fn copy_blocks<T: Element>(
        &self,
        from: u64,
        to: u64,
        pairs: &[(PageId, PageId)],
        shape: &CacheShape,
    ) -> Result<(), BlocksError> {
        let block = 2 * shape.half();
        let (sources, targets): (Vec<u32>, Vec<u32>) = pairs.iter().map(|(from, to)| (from.0, to.0)).unzip();
        let side =
            |address, numbers| Side { address, first: 0, strides: [block, 0, 0, 0], numbers: Some(numbers) };
        self.move_runs::<T>(side(from, &sources), side(to, &targets), [pairs.len(), 1, 1, 1], block)
    }

    /// See [`octavo_backend::blocks::blocks_to_heads`].
    pub fn blocks_to_heads<T: Element>(
        &self,
        blocks: &CudaBlocks<T>,
        layer: usize,
        keys: &mut CudaBlocks<T>,
        values: &mut CudaBlocks<T>,
        shape: &CacheShape,
    ) -> Result<(), BlocksError> {
        check_layer(layer, blocks.len, shape)?;
        check_heads(keys.len, values.len, shape)?;
        for (half, heads) in [keys, values].into_iter().enumerate() {
            self.move_heads::<T>(in_blocks(blocks, half, shape), in_heads(heads, layer, shape), shape)?;
        }
        Ok(())
    }

    /// See [`octavo_backend::blocks::heads_to_blocks`].
    pub fn heads_to_blocks<T: Element>(
        &self,
        keys: &CudaBlocks<T>,
        values: &CudaBlocks<T>,
        layer: usize,
        blocks: &mut CudaBlocks<T>,
        shape: &CacheShape,
    ) -> Result<(), BlocksError> {
        check_layer(layer, blocks.len, shape)?;
        check_heads(keys.len, values.len, shape)?;
        for (half, heads) in [keys, values].into_iter().enumerate() {
            self.move_heads::<T>(in_heads(heads, layer, shape), in_blocks(blocks, half, shape), shape)?;
        }
        Ok(())
    }

    /// See [`octavo_backend::blocks::blocks_to_pages`].
    pub fn blocks_to_pages<T: Element>(
        &self,
        blocks: &CudaBlocks<T>,
        layer: usize,
        pages: &mut CudaBlocks<T>,
        shape: &CacheShape,
    ) -> Result<(), BlocksError> {
        check_layer(layer, blocks.len, shape)?;
        length("the pages", pages.len, shape.pages_elements())?;
        for half in 0..2 {
            self.move_heads::<T>(in_blocks(blocks, half, shape), in_pages(pages, layer, half, shape), shape)?;
        }
        Ok(())
    }

    /// See [`octavo_backend::blocks::pages_to_blocks`].
    pub fn pages_to_blocks<T: Element>(
        &self,
        pages: &CudaBlocks<T>,
        layer: usize,
        blocks: &mut CudaBlocks<T>,
        shape: &CacheShape,
    ) -> Result<(), BlocksError> {
        check_layer(layer, blocks.len, shape)?;
        length("the pages", pages.len, shape.pages_elements())?;
        for half in 0..2 {
            self.move_heads::<T>(in_pages(pages, layer, half, shape), in_blocks(blocks, half, shape), shape)?;
        }
        Ok(())
    }

    /// See [`octavo_backend::blocks::heads_to_pages`].
    pub fn heads_to_pages<T: Element>(
        &self,
        keys: &CudaBlocks<T>,
        values: &CudaBlocks<T>,
        pages: &mut CudaBlocks<T>,
        shape: &CacheShape,
    ) -> Result<(), BlocksError> {
        check_heads(keys.len, values.len, shape)?;
        length("the pages", pages.len, shape.pages_elements())?;
        for (half, heads) in [keys, values].into_iter().enumerate() {
            let (from, to) = (all_in_heads(heads, shape), all_in_pages(pages, half, shape));
            self.move_runs::<T>(from, to, [shape.blocks(), shape.layers(), 1, 1], shape.half())?;
        }
        Ok(())
    }

    /// See [`octavo_backend::blocks::pages_to_heads`].
    pub fn pages_to_heads<T: Element>(
        &self,
        pages: &CudaBlocks<T>,
        keys: &mut CudaBlocks<T>,
        values: &mut CudaBlocks<T>,
        shape: &CacheShape,
    ) -> Result<(), BlocksError> {
        check_heads(keys.len, values.len, shape)?;
        length("the pages", pages.len, shape.pages_elements())?;
        for (half, heads) in [keys, values].into_iter().enumerate() {
            let (from, to) = (all_in_pages(pages, half, shape), all_in_heads(heads, shape));
            self.move_runs::<T>(from, to, [shape.blocks(), shape.layers(), 1, 1], shape.half())?;
        }
        Ok(())
    }

    /// Rows of all heads of all blocks of a layer.
    fn move_heads<T: Element>(
        &self,
        from: Side<'_>,
        to: Side<'_>,
        shape: &CacheShape,
    ) -> Result<(), BlocksError> {
        let counts = [shape.blocks(), shape.kv_heads(), shape.block_size(), 1];
        self.move_runs::<T>(from, to, counts, shape.head_dim())
    }

    /// Runs of `len` elements.
    fn move_runs<T: Element>(
        &self,
        from: Side<'_>,
        to: Side<'_>,
        counts: [usize; 4],
        len: usize,
    ) -> Result<(), BlocksError> {
        let size = size_of::<T>();
        let bytes = len * size;
        let sides = [from, to].map(|side| {
            let strides = side.strides.map(|stride| (stride * size) as u64);
            (side.address + (side.first * size) as u64, strides)
        });
        let all =
            sides.iter().flat_map(|&(address, strides)| strides.into_iter().chain([address, bytes as u64]));
        let common =
            all.fold(16, |unit, x| if x.is_multiple_of(unit) { unit } else { 1 << x.trailing_zeros() });
        let unit = [16, 4, 2].into_iter().find(|unit| common >= *unit).unwrap_or(1);
        let list = |side: Side<'_>| side.numbers.map(|numbers| Memory::of(&self.device, numbers)).transpose();
        let (from_numbers, to_numbers) = (list(from)?, list(to)?);
        let short = |n: usize| u32::try_from(n).map_err(|_| BlockError::TooLarge);
        let rest = counts[1] * counts[2] * counts[3];
        if rest > MOST_IN_Y {
            return Err(BlockError::TooLarge.into());
        }
        let args = MoveArgs {
            from: sides[0].0,
            to: sides[1].0,
            from_numbers: from_numbers.as_ref().map_or(0, Memory::address),
            to_numbers: to_numbers.as_ref().map_or(0, Memory::address),
            from_strides: sides[0].1,
            to_strides: sides[1].1,
            counts: [short(counts[1])?, short(counts[2])?, short(counts[3])?],
            bytes: short(bytes)?,
            unit: unit as u32,
            unused: 0,
        };
        // SAFETY: the callers checked that all runs lie within both buffers, and no run is written twice.
        unsafe { launch(&*self.device, MOVE, Grid::new(counts[0], rest, 128), &args)? };
        Ok(())
    }
}

/// Block, head, slot.
fn in_blocks<T>(blocks: &CudaBlocks<T>, half: usize, shape: &CacheShape) -> Side<'static> {
    let strides = [2 * shape.half(), shape.head_dim(), shape.token(), 0];
    Side { address: blocks.memory.address(), first: half * shape.half(), strides, numbers: None }
}

fn in_heads<T>(heads: &CudaBlocks<T>, layer: usize, shape: &CacheShape) -> Side<'static> {
    let strides = [shape.half(), shape.block_size() * shape.head_dim(), shape.head_dim(), 0];
    let first = layer * shape.blocks() * shape.half();
    Side { address: heads.memory.address(), first, strides, numbers: None }
}

fn in_pages<T>(pages: &CudaBlocks<T>, layer: usize, half: usize, shape: &CacheShape) -> Side<'static> {
    let page = 2 * shape.layers() * shape.half();
    let strides = [page, shape.block_size() * shape.head_dim(), shape.head_dim(), 0];
    Side { address: pages.memory.address(), first: (2 * layer + half) * shape.half(), strides, numbers: None }
}

/// Block, layer.
fn all_in_heads<T>(heads: &CudaBlocks<T>, shape: &CacheShape) -> Side<'static> {
    let strides = [shape.half(), shape.blocks() * shape.half(), 0, 0];
    Side { address: heads.memory.address(), first: 0, strides, numbers: None }
}

fn all_in_pages<T>(pages: &CudaBlocks<T>, half: usize, shape: &CacheShape) -> Side<'static> {
    let strides = [2 * shape.layers() * shape.half(), 2 * shape.half(), 0, 0];
    Side { address: pages.memory.address(), first: half * shape.half(), strides, numbers: None }
}

fn length(what: &'static str, got: usize, need: usize) -> Result<(), BlockError> {
    if got == need { Ok(()) } else { Err(BlockError::Length { what, got, need }) }
}

fn check_layer(layer: usize, blocks: usize, shape: &CacheShape) -> Result<(), BlockError> {
    if layer >= shape.layers() {
        return Err(BlockError::Layer { layer, layers: shape.layers() });
    }
    length("the blocks", blocks, shape.layer_elements())
}

fn check_heads(keys: usize, values: usize, shape: &CacheShape) -> Result<(), BlockError> {
    length("the keys", keys, shape.heads_elements())?;
    length("the values", values, shape.heads_elements())
}

fn check_pairs(pairs: &[(PageId, PageId)], shape: &CacheShape) -> Result<(), BlockError> {
    let mut pages = pairs.iter().flat_map(|&(from, to)| [from, to]);
    match pages.find(|page| page.index() >= shape.blocks()) {
        Some(page) => Err(BlockError::Block { page, blocks: shape.blocks() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
