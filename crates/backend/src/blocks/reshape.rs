//! From layout to layout. What goes there and back is unchanged; buffers that hold all layers keep the other layers.

use super::{BlockError, CacheShape, length};

/// Where slot 0 of a head's keys (`half` 0) or values (`half` 1) of a block begins, and how far apart its slots are.
impl CacheShape {
    fn in_blocks(&self, block: usize, half: usize, head: usize) -> usize {
        (block * 2 + half) * self.half() + head * self.head_dim
    }
    fn in_heads(&self, layer: usize, block: usize, head: usize) -> usize {
        (layer * self.blocks + block) * self.half() + head * self.plane()
    }
    fn in_pages(&self, layer: usize, block: usize, half: usize, head: usize) -> usize {
        ((block * self.layers + layer) * 2 + half) * self.half() + head * self.plane()
    }
    /// Elements of one head's keys, or values, of one block: contiguous in *heads* and *pages*.
    fn plane(&self) -> usize {
        self.block_size * self.head_dim
    }

    fn each_head(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let heads = self.kv_heads;
        (0..self.blocks).flat_map(move |block| (0..heads).map(move |head| (block, head)))
    }

    fn check(&self, layer: usize, blocks: usize) -> Result<(), BlockError> {
        if layer >= self.layers {
            return Err(BlockError::Layer { layer, layers: self.layers });
        }
        length("the blocks", blocks, self.layer_elements())
    }
    fn check_heads(&self, keys: usize, values: usize) -> Result<(), BlockError> {
        length("the keys", keys, self.heads_elements())?;
        length("the values", values, self.heads_elements())
    }

    /// A head's rows, `kv_heads * head_dim` apart, to a plane where they are dense.
    fn pack<T: Copy>(&self, from: &[T], plane: &mut [T]) {
        for (slot, row) in plane.chunks_exact_mut(self.head_dim).enumerate() {
            row.copy_from_slice(&from[slot * self.token()..][..self.head_dim]);
        }
    }
    fn unpack<T: Copy>(&self, plane: &[T], to: &mut [T]) {
        for (slot, row) in plane.chunks_exact(self.head_dim).enumerate() {
            to[slot * self.token()..][..self.head_dim].copy_from_slice(row);
        }
    }
}

/// One layer's *blocks* into its place in *heads*.
pub fn blocks_to_heads<T: Copy>(
    blocks: &[T],
    layer: usize,
    keys: &mut [T],
    values: &mut [T],
    shape: &CacheShape,
) -> Result<(), BlockError> {
    shape.check(layer, blocks.len())?;
    shape.check_heads(keys.len(), values.len())?;
    for (half, heads) in [keys, values].into_iter().enumerate() {
        for (block, head) in shape.each_head() {
            let plane = &mut heads[shape.in_heads(layer, block, head)..][..shape.plane()];
            shape.pack(&blocks[shape.in_blocks(block, half, head)..], plane);
        }
    }
    Ok(())
}

/// One layer out of *heads* as *blocks*.
pub fn heads_to_blocks<T: Copy>(
    keys: &[T],
    values: &[T],
    layer: usize,
    blocks: &mut [T],
    shape: &CacheShape,
) -> Result<(), BlockError> {
    shape.check(layer, blocks.len())?;
    shape.check_heads(keys.len(), values.len())?;
    for (half, heads) in [keys, values].into_iter().enumerate() {
        for (block, head) in shape.each_head() {
            let plane = &heads[shape.in_heads(layer, block, head)..][..shape.plane()];
            shape.unpack(plane, &mut blocks[shape.in_blocks(block, half, head)..]);
        }
    }
    Ok(())
}

/// One layer's *blocks* into its place in *pages*.
pub fn blocks_to_pages<T: Copy>(
    blocks: &[T],
    layer: usize,
    pages: &mut [T],
    shape: &CacheShape,
) -> Result<(), BlockError> {
    shape.check(layer, blocks.len())?;
    length("the pages", pages.len(), shape.pages_elements())?;
    for half in 0..2 {
        for (block, head) in shape.each_head() {
            let plane = &mut pages[shape.in_pages(layer, block, half, head)..][..shape.plane()];
            shape.pack(&blocks[shape.in_blocks(block, half, head)..], plane);
        }
    }
    Ok(())
}

/// One layer out of *pages* as *blocks*.
pub fn pages_to_blocks<T: Copy>(
    pages: &[T],
    layer: usize,
    blocks: &mut [T],
    shape: &CacheShape,
) -> Result<(), BlockError> {
    shape.check(layer, blocks.len())?;
    length("the pages", pages.len(), shape.pages_elements())?;
    for half in 0..2 {
        for (block, head) in shape.each_head() {
            let plane = &pages[shape.in_pages(layer, block, half, head)..][..shape.plane()];
            shape.unpack(plane, &mut blocks[shape.in_blocks(block, half, head)..]);
        }
    }
    Ok(())
}

/// All of *heads* into *pages*: all heads of a layer's block in one run.
pub fn heads_to_pages<T: Copy>(
    keys: &[T],
    values: &[T],
    pages: &mut [T],
    shape: &CacheShape,
) -> Result<(), BlockError> {
    shape.check_heads(keys.len(), values.len())?;
    length("the pages", pages.len(), shape.pages_elements())?;
    for (half, heads) in [keys, values].into_iter().enumerate() {
        for (layer, block) in each_block(shape) {
            let to = shape.in_pages(layer, block, half, 0);
            let from = shape.in_heads(layer, block, 0);
            pages[to..][..shape.half()].copy_from_slice(&heads[from..][..shape.half()]);
        }
    }
    Ok(())
}

/// All of *pages* as *heads*.
pub fn pages_to_heads<T: Copy>(
    pages: &[T],
    keys: &mut [T],
    values: &mut [T],
    shape: &CacheShape,
) -> Result<(), BlockError> {
    shape.check_heads(keys.len(), values.len())?;
    length("the pages", pages.len(), shape.pages_elements())?;
    for (half, heads) in [keys, values].into_iter().enumerate() {
        for (layer, block) in each_block(shape) {
            let from = shape.in_pages(layer, block, half, 0);
            let to = shape.in_heads(layer, block, 0);
            heads[to..][..shape.half()].copy_from_slice(&pages[from..][..shape.half()]);
        }
    }
    Ok(())
}

fn each_block(shape: &CacheShape) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (layers, blocks) = (shape.layers, shape.blocks);
    (0..layers).flat_map(move |layer| (0..blocks).map(move |block| (layer, block)))
}
