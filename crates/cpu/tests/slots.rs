//! Writing at a layer, page and slot, and reading back, on both back ends.

use octavo_backend::conformance::{
    Tolerance, what_is_written_at_slots_is_gathered_in_token_order as property,
};
use octavo_backend::{Backend, Half, PageLayout, Reference};
use octavo_cpu::{Arena, Cpu, Level, RowAt};
use octavo_types::{KvDtype, PageId, Pages, SlotId};
use std::num::NonZeroUsize;

fn cpus() -> impl Iterator<Item = Cpu> {
    let all = [Level::Portable, Level::Avx2, Level::Avx512];
    all.into_iter().filter(|level| *level <= Level::detect()).map(|level| Cpu::new(NonZeroUsize::MIN, level))
}

#[test]
fn what_is_written_at_a_layer_page_and_slot_is_read_back_in_the_order_of_the_tokens() {
    property(&Reference, Tolerance::F32);
    cpus().for_each(|cpu| property(&cpu, Tolerance::F32));
}

#[test]
fn both_back_ends_store_the_same_bytes_for_every_codec() {
    for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Fp8, KvDtype::Int8] {
        let layout = PageLayout { layers: 2, kv_heads: 3, page_size: 5, head_dim: 20, dtype };
        let values: Vec<f32> = (0..4 * 60).map(|i| (i * 37 % 101) as f32 / 8.0 - 6.0).collect();
        let negated: Vec<f32> = values.iter().map(|x| -x).collect();
        // Two pages, each in part, and out of order.
        let slots = [9, 0, 6, 3].map(SlotId);
        let mut expected = Reference.arena(layout, Pages(2)).unwrap();
        Reference.zero_pages(&mut expected, &[PageId(0), PageId(1)]).unwrap();
        Reference.scatter(&mut expected, 1, &slots, [&values, &negated]).unwrap();
        for cpu in cpus() {
            let mut arena = Arena::in_rows(layout, Pages(2)).unwrap();
            cpu.scatter(&mut arena, 1, &slots, [&values, &negated]).unwrap();
            for page in [PageId(0), PageId(1)] {
                assert!(arena.page(page) == expected.page(page), "{page}, {dtype:?}, {}", cpu.name());
            }
            let mut tiled = cpu.arena(layout, Pages(2)).unwrap();
            cpu.scatter(&mut tiled, 1, &slots, [&values, &negated]).unwrap();
            for at in rows(&layout, 2) {
                let [mut got, mut want] = [vec![0; layout.row_bytes()], vec![0; layout.row_bytes()]];
                let parameters = [tiled.load_row(at, &mut got), arena.load_row(at, &mut want)];
                assert_eq!((parameters[0], got), (parameters[1], want), "{at:?}, {dtype:?}");
            }
        }
    }
}

/// Every row of so many pages.
fn rows(layout: &PageLayout, pages: u32) -> Vec<RowAt> {
    let mut all = Vec::new();
    for page in (0..pages).map(PageId) {
        for (layer, head) in (0..layout.layers).flat_map(|l| (0..layout.kv_heads).map(move |h| (l, h))) {
            for half in [Half::Key, Half::Value] {
                all.extend((0..layout.page_size).map(|slot| RowAt { page, layer, half, head, slot }));
            }
        }
    }
    all
}

#[test]
#[should_panic(expected = "page 2 of an arena of 2")]
fn a_slot_behind_the_last_page_is_refused() {
    let layout = PageLayout { layers: 1, kv_heads: 1, page_size: 4, head_dim: 8, dtype: KvDtype::F16 };
    let cpu = cpus().next().expect("every machine has one");
    let mut arena = cpu.arena(layout, Pages(2)).unwrap();
    cpu.scatter(&mut arena, 0, &[SlotId(8)], [&[0.0; 8], &[0.0; 8]]).unwrap();
}
