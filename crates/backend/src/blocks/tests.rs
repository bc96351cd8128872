//! Against naive index arithmetic, an element at a time.

use super::*;
use crate::{Half, PageLayout, Random};
use half::f16;
use octavo_types::KvDtype;

/// (layers, blocks, block size, heads, head dim)
const SHAPES: [[usize; 5]; 6] = [
    [1, 1, 1, 1, 1],
    [3, 5, 16, 2, 64],
    [2, 4, 4, 3, 5],
    [1, 7, 1, 4, 8],
    [4, 2, 48, 1, 96],
    [2, 0, 16, 2, 8],
];

fn shape(s: [usize; 5]) -> CacheShape {
    CacheShape::new(s[0], s[1], s[2], s[3], s[4]).unwrap()
}

/// Every coordinate `[layer, block, half, slot, head, dim]` of a shape.
fn coordinates(s: [usize; 5]) -> impl Iterator<Item = [usize; 6]> {
    let sizes = [s[0], s[1], 2, s[2], s[3], s[4]];
    (0..sizes.iter().product()).map(move |mut i: usize| {
        let mut at = [0; 6];
        for (at, size) in at.iter_mut().zip(sizes).rev() {
            (*at, i) = (i % size, i / size);
        }
        at
    })
}

/// Row-major index.
fn index<const N: usize>(at: [usize; N], sizes: [usize; N]) -> usize {
    at.iter().zip(sizes).fold(0, |i, (&at, size)| i * size + at)
}
fn in_blocks([layers, blocks, size, heads, dim]: [usize; 5], [_, b, k, s, h, d]: [usize; 6]) -> usize {
    let _ = layers;
    index([b, k, s, h, d], [blocks, 2, size, heads, dim])
}
fn in_heads([layers, blocks, size, heads, dim]: [usize; 5], [l, b, _, s, h, d]: [usize; 6]) -> usize {
    index([l, b, h, s, d], [layers, blocks, heads, size, dim])
}
fn in_pages([layers, blocks, size, heads, dim]: [usize; 5], [l, b, k, s, h, d]: [usize; 6]) -> usize {
    index([b, l, k, h, s, d], [blocks, layers, 2, heads, size, dim])
}

/// An element that says where it belongs.
fn element(s: [usize; 5], at: [usize; 6]) -> u32 {
    1 + index(at, [s[0], s[1], 2, s[2], s[3], s[4]]) as u32
}

/// The same cache in all three layouts: blocks of each layer, heads (keys, values), pages.
fn cache(s: [usize; 5]) -> (Vec<Vec<u32>>, [Vec<u32>; 2], Vec<u32>) {
    let shape = shape(s);
    let mut blocks = vec![vec![0; shape.layer_elements()]; s[0]];
    let mut heads = [vec![0; shape.heads_elements()], vec![0; shape.heads_elements()]];
    let mut pages = vec![0; shape.pages_elements()];
    for at in coordinates(s) {
        blocks[at[0]][in_blocks(s, at)] = element(s, at);
        heads[at[2]][in_heads(s, at)] = element(s, at);
        pages[in_pages(s, at)] = element(s, at);
    }
    (blocks, heads, pages)
}

#[test]
fn every_layout_becomes_every_other_one() {
    for s in SHAPES {
        let shape = shape(s);
        let (blocks, heads, pages) = cache(s);
        let [mut keys, mut values] = [vec![0; heads[0].len()], vec![0; heads[0].len()]];
        let mut made = vec![0; pages.len()];
        for (layer, blocks) in blocks.iter().enumerate() {
            blocks_to_heads(blocks, layer, &mut keys, &mut values, &shape).unwrap();
            blocks_to_pages(blocks, layer, &mut made, &shape).unwrap();
            let [mut from_heads, mut from_pages] = [vec![0; blocks.len()], vec![0; blocks.len()]];
            heads_to_blocks(&heads[0], &heads[1], layer, &mut from_heads, &shape).unwrap();
            pages_to_blocks(&pages, layer, &mut from_pages, &shape).unwrap();
            assert_eq!((&from_heads, &from_pages), (blocks, blocks), "{shape:?}");
        }
        assert_eq!((&keys, &values, &made), (&heads[0], &heads[1], &pages), "{shape:?}");
        made.fill(0);
        heads_to_pages(&heads[0], &heads[1], &mut made, &shape).unwrap();
        keys.fill(0);
        pages_to_heads(&pages, &mut keys, &mut values, &shape).unwrap();
        assert_eq!((&keys, &values, &made), (&heads[0], &heads[1], &pages), "{shape:?}");
    }
}

#[test]
fn a_layer_leaves_the_others_alone() {
    let s = [3, 4, 8, 2, 6];
    let (blocks, mut heads, mut pages) = cache(s);
    let want = (heads.clone(), pages.clone());
    let [keys, values] = &mut heads;
    blocks_to_heads(&blocks[1], 1, keys, values, &shape(s)).unwrap();
    blocks_to_pages(&blocks[1], 1, &mut pages, &shape(s)).unwrap();
    assert_eq!((heads, pages), want);
}

#[test]
fn pages_are_octavos_own() {
    let s = [3, 5, 16, 2, 64];
    let (_, _, pages) = cache(s);
    let dtype = KvDtype::F32;
    let layout = PageLayout { layers: 3, kv_heads: 2, page_size: 16, head_dim: 64, dtype };
    for at @ [layer, page, half, slot, head, dim] in coordinates(s) {
        let half = [Half::Key, Half::Value][half];
        let byte = page * layout.page_bytes()
            + layout.rows_at(layer, half, head)
            + slot * layout.row_bytes()
            + dim * layout.element_bytes();
        assert_eq!(pages[byte / 4], element(s, at));
    }
}

fn scatter_case<T: Copy + PartialEq + std::fmt::Debug>(s: [usize; 5], zero: T, from: impl Fn(f32) -> T) {
    let (shape, slots_in_all) = (shape(s), s[1] * s[2]);
    let mut random = Random::new(1);
    let mut slots: Vec<SlotId> = (0..slots_in_all as u64).map(SlotId).collect();
    random.shuffle(&mut slots);
    slots.truncate(slots_in_all.div_ceil(2));
    let width = s[3] * s[4];
    let [keys, values] =
        [0, 1].map(|_| random.values(slots.len() * width, 1.0).into_iter().map(&from).collect::<Vec<T>>());
    let mut cache = vec![zero; shape.layer_elements()];
    kv_cache_copy(&mut cache, &keys, &values, &slots, &shape).unwrap();
    let mut want = vec![zero; shape.layer_elements()];
    for (token, slot) in slots.iter().enumerate() {
        let (block, offset) = (slot.0 as usize / s[2], slot.0 as usize % s[2]);
        for i in 0..width {
            let at = |half| in_blocks(s, [0, block, half, offset, i / s[4], i % s[4]]);
            want[at(0)] = keys[token * width + i];
            want[at(1)] = values[token * width + i];
        }
    }
    assert_eq!(cache, want, "{shape:?}");
}

#[test]
fn new_keys_and_values_land_in_their_slots_and_nowhere_else() {
    for s in SHAPES {
        scatter_case(s, 0f32, |x| x);
        scatter_case(s, f16::ZERO, f16::from_f32);
    }
}

#[test]
fn blocks_are_copied_within_and_between_caches() {
    for s in SHAPES.into_iter().filter(|s| s[1] >= 4) {
        let shape = shape(s);
        let source = cache(s).0.remove(0);
        let pairs = [(0, 2), (2, 1), (3, 3)].map(|(from, to)| (PageId(from), PageId(to)));
        let block = |cache: &[u32], i: usize| cache[i * 2 * shape.half()..][..2 * shape.half()].to_vec();

        let mut within = source.clone();
        kv_cache_copy_blocks_within(&mut within, &pairs, &shape).unwrap();
        let want = [0, 0, 0, 3].map(|i| block(&source, i));
        assert_eq!([0, 1, 2, 3].map(|i| block(&within, i)), want, "{shape:?}");

        let mut other = vec![0; source.len()];
        kv_cache_copy_blocks(&mut other, &source, &pairs, &shape).unwrap();
        let zero = vec![0; 2 * shape.half()];
        let want = [zero, block(&source, 2), block(&source, 0), block(&source, 3)];
        assert_eq!([0, 1, 2, 3].map(|i| block(&other, i)), want, "{shape:?}");
    }
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_written() {
    let shape = shape([2, 3, 4, 2, 5]);
    let mut cache = vec![0.0; shape.layer_elements()];
    let kv = [1.0; 20];
    let slots = [SlotId(0), SlotId(12)];
    let error = kv_cache_copy(&mut cache, &kv, &kv, &slots, &shape).unwrap_err();
    assert_eq!(error, BlockError::Slot { token: 1, slot: 12, slots: 12 });
    assert_eq!(error.to_string(), "token 1 is mapped to slot 12; there are 12");
    let far = kv_cache_copy(&mut cache, &kv, &kv, &[SlotId(0), SlotId(u64::MAX)], &shape);
    assert_eq!(far, Err(BlockError::Slot { token: 1, slot: u64::MAX, slots: 12 }));
    let short = kv_cache_copy(&mut cache, &kv[1..], &kv, &slots[..1], &shape);
    assert_eq!(short, Err(BlockError::Length { what: "the keys", got: 19, need: 10 }));
    let pairs = [(PageId(0), PageId(1)), (PageId(1), PageId(3))];
    let block = kv_cache_copy_blocks_within(&mut cache, &pairs, &shape);
    assert_eq!(block, Err(BlockError::Block { page: PageId(3), blocks: 3 }));
    assert!(cache.iter().all(|&x| x == 0.0));

    let mut pages = vec![0.0; shape.pages_elements()];
    let layer = blocks_to_pages(&cache, 2, &mut pages, &shape);
    assert_eq!(layer, Err(BlockError::Layer { layer: 2, layers: 2 }));
    let short = pages_to_blocks(&pages[1..], 1, &mut cache, &shape);
    assert_eq!(short, Err(BlockError::Length { what: "the pages", got: 479, need: 480 }));
}

#[test]
fn shapes_that_make_no_sense_are_refused() {
    assert_eq!(CacheShape::new(usize::MAX, 2, 1, 1, 1), Err(BlockError::TooLarge));
    assert_eq!(CacheShape::new(1, 0, usize::MAX, 1, 1), Err(BlockError::TooLarge));
    assert_eq!(CacheShape::new(1, 2, 0, 1, 1), Err(BlockError::Zero));
    assert_eq!(CacheShape::new(1, 2, 1, 1, 0), Err(BlockError::Zero));
    assert!(CacheShape::new(1, 0, 16, 1, 64).is_ok());
}
