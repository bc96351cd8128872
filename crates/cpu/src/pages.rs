use crate::attention::check_table;
use crate::{Arena, Level, RowAt};
use octavo_backend::{Half, TableView, codec};
use octavo_types::{PageId, SlotId};
use std::ops::Range;

/// Copies the first `slots` of each page, in order: `(from, to, slots)`.
pub fn copy_pages(arena: &mut Arena, copies: &[(PageId, PageId, usize)]) {
    let (layout, keys) = (*arena.layout(), arena.keys());
    for &(from, to, slots) in copies {
        assert!(slots <= layout.page_size, "{slots} slots of a page of {}", layout.page_size);
        if from == to || slots == 0 {
            continue;
        }
        let [source, target] = arena.two_pages(from, to);
        if slots == layout.page_size {
            target.copy_from_slice(source);
            continue;
        }
        for layer in 0..layout.layers {
            for head in 0..layout.kv_heads {
                let at = layout.rows_at(layer, Half::Key, head);
                let bytes = layout.page_size * layout.row_bytes();
                keys.copy(&source[at..][..bytes], &mut target[at..][..bytes], slots);
                let mut copy =
                    |at: usize, bytes: usize| target[at..][..bytes].copy_from_slice(&source[at..][..bytes]);
                copy(layout.rows_at(layer, Half::Value, head), slots * layout.row_bytes());
                for half in [Half::Key, Half::Value] {
                    copy(layout.parameters_at(layer, half, head), slots * layout.parameter_bytes());
                }
            }
        }
    }
}

pub fn zero_pages(arena: &mut Arena, pages: &[PageId]) {
    for &page in pages {
        arena.page_mut(page).fill(0);
    }
}

/// Keys, then values, of one layer of a table, decoded, in token order: each `[len, kv_heads, head_dim]`.
pub fn gather(arena: &Arena, layer: usize, table: TableView<'_>, positions: Range<u32>) -> [Vec<f32>; 2] {
    let layout = *arena.layout();
    if positions.is_empty() {
        return [Vec::new(), Vec::new()];
    }
    check_table(&table, positions.start as usize..positions.end as usize, arena);
    [Half::Key, Half::Value].map(|half| {
        let mut out = vec![0.0; positions.len() * layout.kv_heads * layout.head_dim];
        let mut rows = out.chunks_exact_mut(layout.head_dim);
        let mut encoded = vec![0; layout.row_bytes()];
        for position in positions.clone() {
            let (page, slot) = (position as usize / layout.page_size, position as usize % layout.page_size);
            let page = table.pages[page - table.first as usize];
            for (head, row) in (0..layout.kv_heads).zip(&mut rows) {
                let parameters = arena.load_row(RowAt { page, layer, half, head, slot }, &mut encoded);
                codec::decode(layout.dtype, &encoded, parameters, row);
            }
        }
        out
    })
}

/// Encodes keys and values, each `[slots.len(), kv_heads, head_dim]`, into one layer's slots.
pub fn scatter(level: Level, arena: &mut Arena, layer: usize, slots: &[SlotId], kv: [&[f32]; 2]) {
    let layout = *arena.layout();
    let (size, width) = (layout.page_size as u64, layout.kv_heads * layout.head_dim);
    let (mut encoded, mut parameters) = (vec![0; layout.row_bytes()], vec![0; layout.parameter_bytes()]);
    assert!(level <= Level::detect(), "{level:?} on a machine without it");
    for (half, rows) in [Half::Key, Half::Value].into_iter().zip(kv) {
        assert_eq!(rows.len(), slots.len() * width, "numbers for {} slots", slots.len());
        for (row, slot) in rows.chunks_exact(width).zip(slots) {
            let page = PageId(u32::try_from(slot.0 / size).expect("a page of the arena"));
            let slot = (slot.0 % size) as usize;
            for (head, row) in row.chunks_exact(layout.head_dim).enumerate() {
                crate::codec::encode(level, layout.dtype, row, &mut encoded, &mut parameters);
                arena.store_row(RowAt { page, layer, half, head, slot }, &encoded, &parameters);
            }
        }
    }
}
