//! Attention as it is defined: decode what a row sees, score it all, softmax, sum.

use super::arena::{Place, ReferenceArena};
use super::dense::{ReferenceBuf, dot, normed};
use crate::{AttentionSpec, Half, Heads, NormSpec, Rows, Span, TableView};
use octavo_types::{PageId, SlotId};
use std::ops::Range;

/// Each row of the batch with its span's index and its position.
fn positions(spans: &[Span]) -> impl Iterator<Item = (usize, usize, u32)> {
    let rows = |(index, span): (usize, &Span)| {
        let span = *span;
        (0..span.rows).map(move |i| (span.first_row + i, index, span.start + i as u32))
    };
    spans.iter().enumerate().flat_map(rows)
}

pub(super) fn angles(spans: &[Span], inv_freq: &[f32], scale: f32, out: &mut ReferenceBuf) {
    let n = inv_freq.len();
    assert_eq!(out.cols(), 2 * n, "columns of the angles");
    for (row, _, position) in positions(spans) {
        for (i, frequency) in inv_freq.iter().enumerate() {
            let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
            out.row_mut(row)[i] = (f64::from(scale) * cos) as f32;
            out.row_mut(row)[n + i] = (f64::from(scale) * sin) as f32;
        }
    }
}

/// Norms and rotates the queries and keys of every row, in place.
pub(super) fn rotate(
    qkv: &mut ReferenceBuf,
    norms: Option<[NormSpec<'_, Vec<f32>>; 2]>,
    angles: &ReferenceBuf,
    spec: &AttentionSpec,
) {
    let heads = spec.heads;
    assert_eq!(qkv.cols(), heads.qkv_cols(), "columns of qkv");
    assert_eq!((angles.rows(), angles.cols()), (qkv.rows(), heads.dim), "shape of the angles");
    for row in 0..qkv.rows() {
        let rotated = &mut qkv.row_mut(row)[..(heads.q + heads.kv) * heads.dim];
        for (index, head) in rotated.chunks_mut(heads.dim).enumerate() {
            if let Some(norms) = norms {
                head.copy_from_slice(&normed(head, norms[usize::from(index >= heads.q)]));
            }
            rotate_head(head, angles.row(row));
        }
    }
}

/// Element `i` against element `i + dim / 2`.
fn rotate_head(head: &mut [f32], angles: &[f32]) {
    let (first, second) = head.split_at_mut(angles.len() / 2);
    let (cos, sin) = angles.split_at(angles.len() / 2);
    for (i, (a, b)) in first.iter_mut().zip(second).enumerate() {
        let (cos, sin) = (f64::from(cos[i]), f64::from(sin[i]));
        let (x, y) = (f64::from(*a), f64::from(*b));
        (*a, *b) = ((x * cos - y * sin) as f32, (y * cos + x * sin) as f32);
    }
}

pub(super) fn store(
    qkv: &ReferenceBuf,
    spec: &AttentionSpec,
    rows: Rows<'_>,
    tables: &[TableView<'_>],
    arena: &mut ReferenceArena,
) {
    assert_eq!(rows.spans.len(), tables.len(), "spans and tables");
    let heads = spec.heads;
    for (row, span, position) in positions(rows.spans) {
        let (page, slot) = arena.locate(tables[span], position);
        let (_, kv) = qkv.row(row).split_at(heads.q * heads.dim);
        let (keys, values) = kv.split_at(heads.kv * heads.dim);
        for (half, vectors) in [(Half::Key, keys), (Half::Value, values)] {
            for (head, vector) in vectors.chunks(heads.dim).enumerate() {
                arena.write(Place { layer: spec.layer, half, head, page, slot }, vector);
            }
        }
    }
}

pub(super) fn attend(
    qkv: &ReferenceBuf,
    spec: &AttentionSpec,
    rows: Rows<'_>,
    tables: &[TableView<'_>],
    arena: &ReferenceArena,
    out: &mut ReferenceBuf,
) {
    assert_eq!(rows.spans.len(), tables.len(), "spans and tables");
    let heads = spec.heads;
    assert_eq!((out.rows(), out.cols()), (qkv.rows(), heads.q * heads.dim), "shape of the output");
    for (span, &table) in rows.spans.iter().zip(tables).filter(|(span, _)| span.rows > 0) {
        let first = first_seen(spec, span.start);
        let stored = gather(arena, spec.layer, table, first..span.end());
        for (row, position) in (span.first_row..).zip(span.start..span.end()) {
            let seen = (first_seen(spec, position) - first) as usize..(position + 1 - first) as usize;
            let tokens = seen.start * heads.kv * heads.dim..seen.end * heads.kv * heads.dim;
            let [keys, values] = stored.each_ref().map(|vectors| &vectors[tokens.clone()]);
            attend_row(qkv.row(row), heads, keys, values, spec.scale, out.row_mut(row));
        }
    }
}

/// The first position that a token sees.
fn first_seen(spec: &AttentionSpec, position: u32) -> u32 {
    spec.window.map_or(0, |window| (position + 1).saturating_sub(window))
}

/// All heads of one row; `keys` and `values` are those it sees, `[seen, kv_heads, dim]`.
fn attend_row(qkv: &[f32], heads: Heads, keys: &[f32], values: &[f32], scale: f32, out: &mut [f32]) {
    for (q_head, out) in out.chunks_mut(heads.dim).enumerate() {
        let query = &qkv[q_head * heads.dim..][..heads.dim];
        let at = (q_head / heads.group()) * heads.dim;
        let of_head = |vectors| strided(vectors, at, heads.kv * heads.dim, heads.dim);
        out.copy_from_slice(&softmax_sum(query, of_head(keys), of_head(values), scale));
    }
}

/// The part `at..at + dim` of every token.
fn strided(vectors: &[f32], at: usize, stride: usize, dim: usize) -> Vec<&[f32]> {
    vectors.chunks(stride).map(|token| &token[at..at + dim]).collect()
}

/// `softmax(q · kᵀ * scale) · v` of one query.
fn softmax_sum(query: &[f32], keys: Vec<&[f32]>, values: Vec<&[f32]>, scale: f32) -> Vec<f32> {
    let scores: Vec<f64> = keys.iter().map(|key| dot(query, key) * f64::from(scale)).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    (0..query.len())
        .map(|i| {
            let sum: f64 = weights.iter().zip(&values).map(|(w, value)| w * f64::from(value[i])).sum();
            (sum / total) as f32
        })
        .collect()
}

pub(super) fn gather(
    arena: &ReferenceArena,
    layer: usize,
    table: TableView<'_>,
    positions: Range<u32>,
) -> [Vec<f32>; 2] {
    [Half::Key, Half::Value].map(|half| {
        let row = |(position, head)| {
            let (page, slot) = arena.locate(table, position);
            arena.read(Place { layer, half, head, page, slot })
        };
        let heads = 0..arena.layout().kv_heads;
        positions.clone().flat_map(|p| heads.clone().map(move |head| (p, head))).flat_map(row).collect()
    })
}

pub(super) fn scatter(arena: &mut ReferenceArena, layer: usize, slots: &[SlotId], kv: [&[f32]; 2]) {
    let (heads, dim, size) =
        (arena.layout().kv_heads, arena.layout().head_dim, arena.layout().page_size as u64);
    for (half, rows) in [Half::Key, Half::Value].into_iter().zip(kv) {
        assert_eq!(rows.len(), slots.len() * heads * dim, "numbers for {} slots", slots.len());
        for (row, slot) in rows.chunks(heads * dim).zip(slots) {
            let page = PageId(u32::try_from(slot.0 / size).expect("a page of the arena"));
            for (head, vector) in row.chunks(dim).enumerate() {
                arena.write(Place { layer, half, head, page, slot: (slot.0 % size) as usize }, vector);
            }
        }
    }
}
