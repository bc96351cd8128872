//! The readable back end: plain loops in one thread, f32 storage, f64 sums. Slow, and meant to be obviously right: the
//! oracle that every other back end is measured against (see [`conformance`](mod@crate::conformance)).

mod arena;
mod attention;
mod dense;

pub use arena::ReferenceArena;
pub use dense::{ReferenceBuf, ReferenceMatrix};

use crate::{
    Activation, AttentionSpec, Backend, BackendError, NormSpec, PageLayout, Rows, Span, TableView, TensorRef,
    WeightFormat,
};
use octavo_types::{PageId, Pages, SlotId};
use std::ops::Range;

/// The definition of every operation, to be read rather than to be fast.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

impl Backend for Reference {
    type Buf = ReferenceBuf;
    type Matrix = ReferenceMatrix;
    type Vector = Vec<f32>;
    type Arena = ReferenceArena;

    fn name(&self) -> String {
        "reference".into()
    }

    fn buf(&self, rows: usize, cols: usize) -> Result<Self::Buf, BackendError> {
        Ok(ReferenceBuf::new(rows, cols))
    }

    fn resize(&self, buf: &mut Self::Buf, rows: usize) -> Result<(), BackendError> {
        buf.resize(rows);
        Ok(())
    }

    fn matrix(&self, parts: &[TensorRef<'_>], format: WeightFormat) -> Result<Self::Matrix, BackendError> {
        Ok(ReferenceMatrix::new(parts, format))
    }

    fn vector(&self, values: TensorRef<'_>, plus: f32) -> Result<Self::Vector, BackendError> {
        assert_eq!(values.rows(), 1, "a vector has one row");
        Ok((0..values.cols()).map(|col| values.get(0, col) + plus).collect())
    }

    fn arena(&self, layout: PageLayout, pages: Pages) -> Result<Self::Arena, BackendError> {
        Ok(ReferenceArena::new(layout, pages))
    }

    fn read(&self, buf: &Self::Buf, out: &mut Vec<f32>) -> Result<(), BackendError> {
        out.clear();
        out.extend_from_slice(buf.values());
        Ok(())
    }

    fn embed(
        &self,
        table: &Self::Matrix,
        tokens: &[u32],
        scale: f32,
        out: &mut Self::Buf,
    ) -> Result<(), BackendError> {
        dense::embed(table, tokens, scale, out);
        Ok(())
    }

    fn rms_norm(
        &self,
        x: &Self::Buf,
        norm: NormSpec<'_, Self::Vector>,
        out: &mut Self::Buf,
    ) -> Result<(), BackendError> {
        dense::rms_norm(x, norm, out);
        Ok(())
    }

    fn add_rms_norm(
        &self,
        x: &mut Self::Buf,
        delta: &Self::Buf,
        before: Option<NormSpec<'_, Self::Vector>>,
        norm: NormSpec<'_, Self::Vector>,
        out: &mut Self::Buf,
    ) -> Result<(), BackendError> {
        dense::add(x, delta, before);
        dense::rms_norm(x, norm, out);
        Ok(())
    }

    fn linear(&self, w: &Self::Matrix, x: &Self::Buf, out: &mut Self::Buf) -> Result<(), BackendError> {
        dense::linear(w, x, out);
        Ok(())
    }

    fn gated(&self, act: Activation, gate_up: &Self::Buf, out: &mut Self::Buf) -> Result<(), BackendError> {
        dense::gated(act, gate_up, out);
        Ok(())
    }

    fn pick_rows(&self, x: &Self::Buf, rows: &[u32], out: &mut Self::Buf) -> Result<(), BackendError> {
        assert_eq!(rows.len(), out.rows(), "rows picked and rows of the output");
        for (i, &row) in rows.iter().enumerate() {
            out.row_mut(i).copy_from_slice(x.row(row as usize));
        }
        Ok(())
    }

    fn angles(
        &self,
        spans: &[Span],
        inv_freq: &[f32],
        scale: f32,
        out: &mut Self::Buf,
    ) -> Result<(), BackendError> {
        attention::angles(spans, inv_freq, scale, out);
        Ok(())
    }

    fn rotate_and_store(
        &self,
        qkv: &mut Self::Buf,
        norms: Option<[NormSpec<'_, Self::Vector>; 2]>,
        angles: &Self::Buf,
        spec: &AttentionSpec,
        rows: Rows<'_>,
        tables: &[TableView<'_>],
        arena: &mut Self::Arena,
    ) -> Result<(), BackendError> {
        attention::rotate(qkv, norms, angles, spec);
        attention::store(qkv, spec, rows, tables, arena);
        Ok(())
    }

    fn attention(
        &self,
        qkv: &Self::Buf,
        spec: &AttentionSpec,
        rows: Rows<'_>,
        tables: &[TableView<'_>],
        arena: &Self::Arena,
        out: &mut Self::Buf,
    ) -> Result<(), BackendError> {
        attention::attend(qkv, spec, rows, tables, arena, out);
        Ok(())
    }

    fn copy_pages(
        &self,
        arena: &mut Self::Arena,
        copies: &[(PageId, PageId, usize)],
    ) -> Result<(), BackendError> {
        for &(from, to, slots) in copies {
            arena.copy(from, to, slots);
        }
        Ok(())
    }

    fn zero_pages(&self, arena: &mut Self::Arena, pages: &[PageId]) -> Result<(), BackendError> {
        for &page in pages {
            arena.zero(page);
        }
        Ok(())
    }

    fn gather(
        &self,
        arena: &Self::Arena,
        layer: usize,
        table: TableView<'_>,
        positions: Range<u32>,
    ) -> Result<[Vec<f32>; 2], BackendError> {
        Ok(attention::gather(arena, layer, table, positions))
    }

    fn scatter(
        &self,
        arena: &mut Self::Arena,
        layer: usize,
        slots: &[SlotId],
        kv: [&[f32]; 2],
    ) -> Result<(), BackendError> {
        attention::scatter(arena, layer, slots, kv);
        Ok(())
    }
}
