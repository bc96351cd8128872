//! Copies and reshapes of other engines' blocks on the GPU: the bytes that the CPU gives.

use super::conformance::open;
use anyhow::{Result, bail};
use octavo_backend::blocks::{self as cpu, CacheShape};
use octavo_cuda::{Cuda, CudaBlocks, Element};
use octavo_types::{PageId, SlotId};

/// Layers, blocks, slots, heads, elements: as models have them, and runs of a few bytes.
const SHAPES: [[usize; 5]; 4] = [[4, 300, 16, 8, 128], [2, 33, 32, 2, 64], [3, 7, 16, 3, 5], [1, 2, 1, 1, 3]];

pub(super) fn run(number: usize) -> Result<()> {
    let cuda = open(number, false)?;
    let mut wrong = Vec::new();
    for [layers, blocks, size, heads, dim] in SHAPES {
        let shape = CacheShape::new(layers, blocks, size, heads, dim)?;
        let of_floats = check(&cuda, &shape, |i| (i as f32).sin())?;
        let of_bytes = check(&cuda, &shape, |i| (i * 37 % 251) as u8)?;
        for (operation, right) in of_floats.into_iter().chain(of_bytes) {
            if !right {
                wrong.push(format!("{operation} of {shape:?}"));
            }
        }
        println!("{layers} layers, {blocks} blocks of {size} slots, {heads} heads of {dim}: compared");
    }
    if !wrong.is_empty() {
        bail!("not as on the CPU: {}", wrong.join("; "));
    }
    Ok(())
}

/// Each operation, and whether it left on the GPU what it leaves on the CPU.
fn check<T: Element + PartialEq + Default>(
    cuda: &Cuda,
    shape: &CacheShape,
    element: impl Fn(usize) -> T,
) -> Result<Vec<(&'static str, bool)>> {
    let numbers = |from: usize, count: usize| -> Vec<T> { (from..from + count).map(&element).collect() };
    let same = |there: &CudaBlocks<T>, here: &[T]| {
        let mut found = vec![T::default(); there.len()];
        there.read(&mut found)?;
        anyhow::Ok(found == here)
    };
    let mut results = Vec::new();
    let layer = shape.layers() - 1;

    let mut here = numbers(0, shape.layer_elements());
    let mut there = cuda.blocks(&here)?;
    // Some slots get several tokens: the last stays.
    let total = (shape.blocks() * shape.block_size()) as u64;
    let slots: Vec<SlotId> = (0..total + 7).map(|i| SlotId(i * 7919 % total)).collect();
    let new = [11, 5000].map(|from| numbers(from, slots.len() * shape.token()));
    let [keys, values] = [cuda.blocks(&new[0])?, cuda.blocks(&new[1])?];
    cpu::kv_cache_copy(&mut here, &new[0], &new[1], &slots, shape)?;
    cuda.kv_cache_copy(&mut there, &keys, &values, &slots, shape)?;
    results.push(("kv_cache_copy", same(&there, &here)?));

    // Each pair reads what earlier ones wrote.
    let count = shape.blocks() as u32;
    let pair = |i: u32| (PageId(i * 31 % count), PageId((i * 17 + 1) % count));
    let pairs: Vec<_> = (0..count).map(pair).collect();
    cpu::kv_cache_copy_blocks_within(&mut here, &pairs, shape)?;
    cuda.kv_cache_copy_blocks_within(&mut there, &pairs, shape)?;
    results.push(("kv_cache_copy_blocks_within", same(&there, &here)?));
    let other = numbers(90_000, shape.layer_elements());
    cpu::kv_cache_copy_blocks(&mut here, &other, &pairs, shape)?;
    cuda.kv_cache_copy_blocks(&mut there, &cuda.blocks(&other)?, &pairs, shape)?;
    results.push(("kv_cache_copy_blocks", same(&there, &here)?));

    let [mut keys, mut values] = [70, 80].map(|from| numbers(from, shape.heads_elements()));
    let [mut far_keys, mut far_values] = [cuda.blocks(&keys)?, cuda.blocks(&values)?];
    cpu::blocks_to_heads(&here, layer, &mut keys, &mut values, shape)?;
    cuda.blocks_to_heads(&there, layer, &mut far_keys, &mut far_values, shape)?;
    results.push(("blocks_to_heads", same(&far_keys, &keys)? && same(&far_values, &values)?));

    let mut pages = numbers(3, shape.pages_elements());
    let mut far_pages = cuda.blocks(&pages)?;
    cpu::heads_to_pages(&keys, &values, &mut pages, shape)?;
    cuda.heads_to_pages(&far_keys, &far_values, &mut far_pages, shape)?;
    results.push(("heads_to_pages", same(&far_pages, &pages)?));
    cpu::blocks_to_pages(&other, layer, &mut pages, shape)?;
    cuda.blocks_to_pages(&cuda.blocks(&other)?, layer, &mut far_pages, shape)?;
    results.push(("blocks_to_pages", same(&far_pages, &pages)?));

    cpu::pages_to_heads(&pages, &mut keys, &mut values, shape)?;
    cuda.pages_to_heads(&far_pages, &mut far_keys, &mut far_values, shape)?;
    results.push(("pages_to_heads", same(&far_keys, &keys)? && same(&far_values, &values)?));
    cpu::heads_to_blocks(&keys, &values, 0, &mut here, shape)?;
    cuda.heads_to_blocks(&far_keys, &far_values, 0, &mut there, shape)?;
    results.push(("heads_to_blocks", same(&there, &here)?));
    cpu::pages_to_blocks(&pages, layer, &mut here, shape)?;
    cuda.pages_to_blocks(&far_pages, layer, &mut there, shape)?;
    results.push(("pages_to_blocks", same(&there, &here)?));
    Ok(results)
}
