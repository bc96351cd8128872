use super::*;
use crate::emulated::emulated;
use half::f16;
use octavo_backend::blocks as cpu;

/// Layers, blocks, slots, heads, elements: runs of sixteen bytes and of a few.
const SHAPES: [[usize; 5]; 3] = [[2, 5, 4, 3, 8], [1, 3, 16, 1, 5], [3, 2, 1, 2, 3]];

fn shape([layers, blocks, size, heads, dim]: [usize; 5]) -> CacheShape {
    CacheShape::new(layers, blocks, size, heads, dim).unwrap()
}

fn numbers(from: usize, count: usize) -> Vec<f32> {
    (from..from + count).map(|i| i as f32).collect()
}

fn read<T: Element>(blocks: &CudaBlocks<T>) -> Vec<T> {
    // SAFETY: any bits are a value.
    let mut out = vec![unsafe { std::mem::zeroed() }; blocks.len()];
    blocks.read(&mut out).unwrap();
    out
}

/// A cache, new keys and new values of seven tokens.
fn copied<T: Element + PartialEq + std::fmt::Debug>(make: impl Fn(f32) -> T) {
    let cuda = emulated(false);
    for shape in SHAPES.map(shape) {
        let total = (shape.blocks() * shape.block_size()) as u64;
        let slots: Vec<SlotId> = [0, total - 1, 1, 0, total / 2, 1, 0].map(SlotId).to_vec();
        let of = |from, count| -> Vec<T> { numbers(from, count).into_iter().map(&make).collect() };
        let (keys, values) = (of(1, 7 * shape.token()), of(600, 7 * shape.token()));
        let mut want = of(0, shape.layer_elements());
        let mut got = cuda.blocks(&want).unwrap();
        cpu::kv_cache_copy(&mut want, &keys, &values, &slots, &shape).unwrap();
        let (keys, values) = (cuda.blocks(&keys).unwrap(), cuda.blocks(&values).unwrap());
        cuda.kv_cache_copy(&mut got, &keys, &values, &slots, &shape).unwrap();
        assert_eq!(read(&got), want);
    }
}

#[test]
fn new_keys_and_values_land_where_the_cpu_puts_them() {
    copied(|x| x);
    copied(f16::from_f32);
    copied(|x| x as u8);
}

#[test]
fn blocks_are_copied_one_after_another() {
    let cuda = emulated(false);
    let shape = shape([1, 5, 4, 3, 8]);
    let pairs = [(0, 1), (1, 2), (3, 0), (4, 4), (2, 3), (0, 3)].map(|(from, to)| (PageId(from), PageId(to)));
    let mut want = numbers(0, shape.layer_elements());
    let mut got = cuda.blocks(&want).unwrap();
    cpu::kv_cache_copy_blocks_within(&mut want, &pairs, &shape).unwrap();
    cuda.kv_cache_copy_blocks_within(&mut got, &pairs, &shape).unwrap();
    assert_eq!(read(&got), want);
    let from = numbers(5000, shape.layer_elements());
    cpu::kv_cache_copy_blocks(&mut want, &from, &pairs, &shape).unwrap();
    cuda.kv_cache_copy_blocks(&mut got, &cuda.blocks(&from).unwrap(), &pairs, &shape).unwrap();
    assert_eq!(read(&got), want);
}

#[test]
fn every_layout_becomes_every_other_one() {
    let cuda = emulated(false);
    for shape in SHAPES.map(shape) {
        let layer = shape.layers() - 1;
        let blocks = numbers(1, shape.layer_elements());
        let [mut keys, mut values] = [10_000, 20_000].map(|from| numbers(from, shape.heads_elements()));
        let mut pages = numbers(30_000, shape.pages_elements());
        let there = |x: &[f32]| cuda.blocks(x).unwrap();
        let mut at = (there(&blocks), there(&keys), there(&values), there(&pages));

        cuda.blocks_to_heads(&at.0, layer, &mut at.1, &mut at.2, &shape).unwrap();
        cpu::blocks_to_heads(&blocks, layer, &mut keys, &mut values, &shape).unwrap();
        assert_eq!((read(&at.1), read(&at.2)), (keys.clone(), values.clone()));

        cuda.heads_to_pages(&at.1, &at.2, &mut at.3, &shape).unwrap();
        cpu::heads_to_pages(&keys, &values, &mut pages, &shape).unwrap();
        assert_eq!(read(&at.3), pages);

        let mut back = there(&vec![0.0; blocks.len()]);
        cuda.pages_to_blocks(&at.3, layer, &mut back, &shape).unwrap();
        assert_eq!(read(&back), blocks);

        let mut again = there(&vec![0.0; pages.len()]);
        cuda.blocks_to_pages(&back, layer, &mut again, &shape).unwrap();
        let mut want = vec![0.0; pages.len()];
        cpu::blocks_to_pages(&blocks, layer, &mut want, &shape).unwrap();
        assert_eq!(read(&again), want);

        let (mut k, mut v) = (there(&vec![0.0; keys.len()]), there(&vec![0.0; values.len()]));
        cuda.pages_to_heads(&at.3, &mut k, &mut v, &shape).unwrap();
        assert_eq!((read(&k), read(&v)), (keys, values));
        let mut last = there(&vec![0.0; blocks.len()]);
        cuda.heads_to_blocks(&k, &v, layer, &mut last, &shape).unwrap();
        assert_eq!(read(&last), blocks);
    }
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_written() {
    let cuda = emulated(false);
    let shape = shape(SHAPES[0]);
    let before = numbers(0, shape.layer_elements());
    let mut cache = cuda.blocks(&before).unwrap();
    let new = cuda.blocks(&numbers(0, shape.token())).unwrap();
    let slot = (shape.blocks() * shape.block_size()) as u64;
    let refused = cuda.kv_cache_copy(&mut cache, &new, &new, &[SlotId(slot)], &shape).unwrap_err();
    assert!(refused.to_string().contains("is mapped to slot"), "{refused}");
    for page in [shape.blocks() as u32, 9] {
        let pairs = [(PageId(0), PageId(1)), (PageId(page), PageId(0))];
        assert!(cuda.kv_cache_copy_blocks_within(&mut cache, &pairs, &shape).is_err());
    }
    assert!(
        cuda.blocks_to_heads(
            &cache,
            2,
            &mut cuda.blocks(&before).unwrap(),
            &mut cuda.blocks(&before).unwrap(),
            &shape
        )
        .is_err()
    );
    assert_eq!(read(&cache), before);
}

#[test]
fn buffers_of_other_lengths_are_refused_by_name() {
    let cuda = emulated(false);
    let shape = shape(SHAPES[0]);
    let of = |count| cuda.blocks(&vec![0f32; count]).unwrap();
    let refused = |result: Result<(), BlocksError>, what: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(what), "{error}, not about {what}");
    };
    let (mut blocks, mut less) = (of(shape.layer_elements()), of(shape.layer_elements() - 1));
    let (token, slot) = (of(shape.token()), [SlotId(0)]);
    refused(cuda.kv_cache_copy(&mut less, &token, &token, &slot, &shape), "the cache");
    refused(cuda.kv_cache_copy(&mut blocks, &less, &token, &slot, &shape), "the keys");
    refused(cuda.kv_cache_copy(&mut blocks, &token, &less, &slot, &shape), "the values");
    refused(cuda.kv_cache_copy_blocks(&mut less, &blocks, &[], &shape), "the destination");
    refused(cuda.kv_cache_copy_blocks(&mut blocks, &less, &[], &shape), "the source");
    refused(cuda.kv_cache_copy_blocks_within(&mut less, &[], &shape), "the cache");
    let (mut heads, mut pages) = (of(shape.heads_elements()), of(shape.pages_elements()));
    refused(cuda.blocks_to_heads(&less, 0, &mut heads, &mut of(1), &shape), "the blocks");
    refused(cuda.blocks_to_heads(&blocks, 0, &mut of(1), &mut heads, &shape), "the keys");
    refused(cuda.heads_to_blocks(&heads, &token, 0, &mut blocks, &shape), "the values");
    refused(cuda.blocks_to_pages(&blocks, 0, &mut less, &shape), "the pages");
    refused(cuda.pages_to_blocks(&less, 0, &mut blocks, &shape), "the pages");
    refused(cuda.heads_to_pages(&heads, &heads, &mut less, &shape), "the pages");
    refused(cuda.heads_to_pages(&heads, &token, &mut pages, &shape), "the values");
    refused(cuda.pages_to_heads(&less, &mut heads, &mut of(shape.heads_elements()), &shape), "the pages");
}

#[test]
fn more_rows_of_a_block_than_a_grid_has_places_for_are_refused() {
    let cuda = emulated(false);
    let shape = shape([1, 1, MOST_IN_Y, 2, 1]);
    let blocks = cuda.blocks(&vec![0u8; shape.layer_elements()]).unwrap();
    let [mut keys, mut values] = [(); 2].map(|()| cuda.blocks(&vec![0u8; shape.heads_elements()]).unwrap());
    let refused = cuda.blocks_to_heads(&blocks, 0, &mut keys, &mut values, &shape).unwrap_err();
    assert!(matches!(refused, BlocksError::Block(BlockError::TooLarge)), "{refused}");
}
