//! Pages as such: what is stored, copied, zeroed, read back.

use super::Tolerance;
use super::attention::run_batch;
use super::compare::same;
use super::transfer::keeps_f32;
use super::world::{DTYPES, LAYER, LAYERS, PAGE_SIZES, Shape, World, heads};
use crate::{Backend, Random, TableView, codec};
use octavo_types::{KvDtype, PageId, SlotId};

fn shape(dtype: KvDtype, page_size: usize) -> Shape {
    Shape { heads: heads(3, 3, 80), dtype, page_size, window: None, turn: false, fine: false }
}

/// A row as the codec would give it back.
fn recoded(dtype: KvDtype, row: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; row.len() * codec::element_bytes(dtype)];
    let mut params = vec![0; dtype.parameter_bytes() as usize];
    codec::encode(dtype, row, &mut bytes, &mut params);
    let mut out = vec![0.0; row.len()];
    codec::decode(dtype, &bytes, &params, &mut out);
    out
}

pub fn what_is_gathered_is_what_was_encoded<B: Backend>(backend: &B, _: Tolerance) {
    for dtype in DTYPES {
        for page_size in PAGE_SIZES {
            let shape = Shape { fine: keeps_f32(backend), ..shape(dtype, page_size) };
            let world = run_batch(backend, shape, None);
            for (index, sequence) in world.sequences.iter().enumerate() {
                let (heads, len) = (shape.heads, sequence.done as u32);
                let want = [heads.q, heads.q + heads.kv].map(|head| {
                    let rows = sequence.qkv.chunks(heads.qkv_cols());
                    let part = |row: &[f32]| row[head * heads.dim..][..heads.kv * heads.dim].to_vec();
                    let kv: Vec<f32> = rows.flat_map(part).collect();
                    kv.chunks(heads.dim).flat_map(|row| recoded(dtype, row)).collect::<Vec<_>>()
                });
                let width = heads.kv * heads.dim;
                for range in [0..len, len / 3..len, len / 3..len / 2, len..len] {
                    let got = world.gather(index, range.clone());
                    for half in 0..2 {
                        let case = format!("gather {range:?} of sequence {index}, half {half}, {shape:?}");
                        same(
                            &case,
                            &got[half],
                            &want[half][range.start as usize * width..range.end as usize * width],
                        );
                    }
                }
            }
        }
    }
}

/// Tokens written in pieces, in any order, into pages that are full, in part filled, and shuffled: reading them back
/// gives the tokens in order, and the slots and layers between them what they held before.
pub fn what_is_written_at_slots_is_gathered_in_token_order<B: Backend>(backend: &B, _: Tolerance) {
    for dtype in DTYPES {
        for page_size in PAGE_SIZES {
            scatter_and_gather(backend, shape(dtype, page_size));
        }
    }
}

fn scatter_and_gather<B: Backend>(backend: &B, shape: Shape) {
    let (tokens, size) = (50, shape.page_size);
    let width = shape.heads.kv * shape.heads.dim;
    let mut world = World::new(backend, shape, &[(91, tokens)], 7);
    let pages: Vec<PageId> = world.sequences[0].pages.clone();
    let slot = |position: usize| SlotId((pages[position / size].0 as usize * size + position % size) as u64);
    let room: Vec<SlotId> = (0..pages.len() * size).map(slot).collect();
    let before = [vec![0.5; room.len() * width], vec![-0.25; room.len() * width]];
    for layer in 0..LAYERS {
        backend.scatter(&mut world.arena, layer, &room, before.each_ref().map(Vec::as_slice)).unwrap();
    }
    let mut random = Random::new(92);
    let kv = [2.0, 1.0].map(|range| random.values(tokens * width, range));
    let last = tokens - 1;
    let each = |positions: Vec<usize>| positions.into_iter().map(|i| (i, i)).collect::<Vec<_>>();
    // (position, which token is written there): the last one gets another's row first, and the later row stays.
    let pieces =
        [vec![(last, 3), (last, last)], each((17..last).collect()), vec![], each((0..17).rev().collect())];
    for piece in pieces {
        let slots: Vec<SlotId> = piece.iter().map(|&(position, _)| slot(position)).collect();
        let of = |half: &Vec<f32>| -> Vec<f32> {
            piece.iter().flat_map(|&(_, token)| half[token * width..][..width].to_vec()).collect()
        };
        let [keys, values] = kv.each_ref().map(of);
        backend.scatter(&mut world.arena, LAYER, &slots, [&keys, &values]).unwrap();
    }
    let recode = |rows: &[f32]| -> Vec<f32> {
        rows.chunks(shape.heads.dim).flat_map(|row| recoded(shape.dtype, row)).collect()
    };
    let table = TableView { first: 0, pages: &pages };
    for layer in 0..LAYERS {
        let got = backend.gather(&world.arena, layer, table, 0..room.len() as u32).unwrap();
        for half in 0..2 {
            let written = if layer == LAYER { kv[half].as_slice() } else { &[] };
            let want = [recode(written), recode(&before[half][written.len()..])].concat();
            same(&format!("half {half} of layer {layer}, {shape:?}"), &got[half], &want);
        }
    }
}

pub fn storing_touches_its_own_slots_only<B: Backend>(backend: &B, _: Tolerance) {
    for dtype in DTYPES {
        for page_size in [1, 16, 48] {
            let mut world = World::new(backend, shape(dtype, page_size), &[(51, 50), (52, 50)], 3);
            // Nothing is said of what a new arena holds.
            let pages = world.sequences[0].pages.clone();
            backend.zero_pages(&mut world.arena, &pages).unwrap();
            world.step(&[(0, 50), (1, 30)]);
            let before = [world.gather(0, 0..50), world.gather(1, 0..30)];
            world.step(&[(1, 1)]);
            world.step(&[(1, 19)]);
            for (index, len) in [(0, 50), (1, 30)] {
                for (after, before) in world.gather(index, 0..len).iter().zip(&before[index]) {
                    same(&format!("sequence {index} after a store, {:?}", world.shape), after, before);
                }
            }
            let table = TableView { first: 0, pages: &world.sequences[0].pages };
            for layer in (0..LAYERS).filter(|&layer| layer != LAYER) {
                for half in backend.gather(&world.arena, layer, table, 0..50).unwrap() {
                    same(&format!("layer {layer}, {:?}", world.shape), &half, &vec![0.0; half.len()]);
                }
            }
        }
    }
}

/// A fork: copy the pages of a sequence, the last one in part, and go on from there.
pub fn copied_pages_attend_like_their_originals<B: Backend>(backend: &B, _: Tolerance) {
    for dtype in DTYPES {
        for page_size in [4, 16, 48, 256] {
            let shape = Shape { turn: true, ..shape(dtype, page_size) };
            // The same seed: the fork is fed what its original is fed.
            let mut world = World::new(backend, shape, &[(61, 70), (61, 70), (62, 20)], 4);
            world.fill(0.75);
            world.step(&[(0, 41), (2, 20)]);
            let slots = |index: usize| (41 - (index * page_size).min(41)).min(page_size);
            let pages = world.sequences[0].pages.iter().zip(&world.sequences[1].pages).enumerate();
            let copies: Vec<_> =
                pages.map(|(i, (&from, &to))| (from, to, slots(i))).filter(|copy| copy.2 > 0).collect();
            backend.copy_pages(&mut world.arena, &copies).unwrap();
            world.sequences[1].done = 41;
            let case = format!("fork, {shape:?}");
            for (fork, original) in world.gather(1, 0..41).iter().zip(&world.gather(0, 0..41)) {
                same(&case, fork, original);
            }
            world.step(&[(0, 29), (1, 1)]);
            world.step(&[(1, 28)]);
            let width = shape.heads.q * shape.heads.dim;
            same(&case, &world.sequences[1].out, &world.sequences[0].out[41 * width..]);
        }
    }
}

pub fn copies_run_one_after_another<B: Backend>(backend: &B, _: Tolerance) {
    let mut world = World::new(backend, shape(KvDtype::Int8, 16), &[(71, 16), (72, 16), (73, 16)], 5);
    world.step(&[(0, 16), (1, 16), (2, 16)]);
    let [a, b, c] = [0, 1, 2].map(|i| world.sequences[i].pages[0]);
    let want = world.gather(0, 0..16);
    backend.copy_pages(&mut world.arena, &[(a, b, 16), (b, c, 16)]).unwrap();
    backend.copy_pages(&mut world.arena, &[]).unwrap();
    for index in 0..3 {
        for (got, want) in world.gather(index, 0..16).iter().zip(&want) {
            same(&format!("page {index} of a chain of copies"), got, want);
        }
    }
}

pub fn zeroed_pages_decode_to_zero<B: Backend>(backend: &B, _: Tolerance) {
    for dtype in DTYPES {
        let mut world = World::new(backend, shape(dtype, 16), &[(81, 48), (82, 48)], 6);
        world.step(&[(0, 48), (1, 48)]);
        let kept = [world.gather(0, 0..16), world.gather(0, 32..48), world.gather(1, 0..48)];
        let middle = world.sequences[0].pages[1];
        backend.zero_pages(&mut world.arena, &[middle]).unwrap();
        for half in world.gather(0, 16..32) {
            same(&format!("a zeroed page in {dtype:?}"), &half, &vec![0.0; half.len()]);
        }
        let after = [world.gather(0, 0..16), world.gather(0, 32..48), world.gather(1, 0..48)];
        for (after, before) in after.iter().flatten().zip(kept.iter().flatten()) {
            same(&format!("the neighbours of a zeroed page in {dtype:?}"), after, before);
        }
    }
}
