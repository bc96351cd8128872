use crate::{Arena, Buf, Level, Matrix, Norm, Pool};
use octavo_backend::{
    Activation, AttentionSpec, Backend, BackendError, Choice, NormSpec, PageLayout, Rows, Span, TableView,
    TensorRef, WeightFormat,
};
use octavo_types::{PageId, Pages, SlotId};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The CPU as a device: threads, and the instructions they use.
#[derive(Debug)]
pub struct Cpu {
    level: Level,
    pool: Pool,
    /// By the last `choose`.
    chosen: Mutex<Vec<Option<u32>>>,
}

impl Cpu {
    /// Panics if the machine does not have `level`.
    pub fn new(threads: NonZeroUsize, level: Level) -> Self {
        assert!(level <= Level::detect(), "this machine does not have {level:?}");
        Self { level, pool: Pool::new(threads), chosen: Mutex::default() }
    }

    pub fn level(&self) -> Level {
        self.level
    }
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}

fn norm<'a>(spec: NormSpec<'a, Vec<f32>>) -> Norm<'a> {
    Norm { weight: spec.weight, eps: spec.eps }
}

impl Backend for Cpu {
    type Buf = Buf;
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Arena = Arena;

    fn name(&self) -> String {
        format!("CPU, {:?}, {} threads", self.level, self.pool.threads())
    }

    fn buf(&self, rows: usize, cols: usize) -> Result<Buf, BackendError> {
        Ok(Buf::new(rows, cols))
    }

    fn resize(&self, buf: &mut Buf, rows: usize) -> Result<(), BackendError> {
        buf.resize(rows);
        Ok(())
    }

    fn matrix(&self, parts: &[TensorRef<'_>], format: WeightFormat) -> Result<Matrix, BackendError> {
        Ok(Matrix::pack(parts, format, &self.pool))
    }

    fn vector(&self, values: TensorRef<'_>, plus: f32) -> Result<Vec<f32>, BackendError> {
        assert_eq!(values.rows(), 1, "a vector has one row");
        Ok((0..values.cols()).map(|col| values.get(0, col) + plus).collect())
    }

    fn arena(&self, layout: PageLayout, pages: Pages) -> Result<Arena, BackendError> {
        Arena::new(layout, pages)
    }

    fn read(&self, buf: &Buf, out: &mut Vec<f32>) -> Result<(), BackendError> {
        out.clear();
        out.extend_from_slice(buf.data());
        Ok(())
    }

    fn chooses(&self) -> bool {
        true
    }

    fn choose(&self, logits: &Buf, choices: &[Choice]) -> Result<(), BackendError> {
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        chosen.resize(choices.len(), None);
        crate::choose(&self.pool, logits, choices, &mut chosen);
        Ok(())
    }

    fn chosen(&self, count: usize) -> Result<Vec<Option<u32>>, BackendError> {
        let chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(chosen[..count].to_vec())
    }

    fn read_row(&self, buf: &Buf, row: usize, out: &mut Vec<f32>) -> Result<(), BackendError> {
        out.clear();
        out.extend_from_slice(buf.row(row));
        Ok(())
    }

    fn embed(&self, table: &Matrix, tokens: &[u32], scale: f32, out: &mut Buf) -> Result<(), BackendError> {
        crate::embed(&self.pool, table, tokens, scale, out);
        Ok(())
    }

    fn rms_norm(&self, x: &Buf, spec: NormSpec<'_, Vec<f32>>, out: &mut Buf) -> Result<(), BackendError> {
        crate::rms_norm(self.level, &self.pool, x, norm(spec), out);
        Ok(())
    }

    fn add_rms_norm(
        &self,
        x: &mut Buf,
        delta: &Buf,
        before: Option<NormSpec<'_, Vec<f32>>>,
        spec: NormSpec<'_, Vec<f32>>,
        out: &mut Buf,
    ) -> Result<(), BackendError> {
        crate::add_rms_norm(self.level, &self.pool, x, delta, before.map(norm), norm(spec), out);
        Ok(())
    }

    fn linear(&self, w: &Matrix, x: &Buf, out: &mut Buf) -> Result<(), BackendError> {
        crate::gemm(self.level, &self.pool, w, x, out);
        Ok(())
    }

    fn gated(&self, act: Activation, gate_up: &Buf, out: &mut Buf) -> Result<(), BackendError> {
        crate::gated(self.level, &self.pool, act, gate_up, out);
        Ok(())
    }

    fn pick_rows(&self, x: &Buf, rows: &[u32], out: &mut Buf) -> Result<(), BackendError> {
        crate::pick_rows(x, rows, out);
        Ok(())
    }

    fn angles(
        &self,
        spans: &[Span],
        inv_freq: &[f32],
        scale: f32,
        out: &mut Buf,
    ) -> Result<(), BackendError> {
        crate::angles(&self.pool, spans, inv_freq, scale, out);
        Ok(())
    }

    fn rotate_and_store(
        &self,
        qkv: &mut Buf,
        norms: Option<[NormSpec<'_, Vec<f32>>; 2]>,
        angles: &Buf,
        spec: &AttentionSpec,
        rows: Rows<'_>,
        tables: &[TableView<'_>],
        arena: &mut Arena,
    ) -> Result<(), BackendError> {
        crate::rotate_and_store(self.level, &self.pool, qkv, norms, angles, spec, rows, tables, arena);
        Ok(())
    }

    fn attention(
        &self,
        qkv: &Buf,
        spec: &AttentionSpec,
        rows: Rows<'_>,
        tables: &[TableView<'_>],
        arena: &Arena,
        out: &mut Buf,
    ) -> Result<(), BackendError> {
        crate::attention(self.level, &self.pool, qkv, spec, rows, tables, arena, out);
        Ok(())
    }

    fn copy_pages(&self, arena: &mut Arena, copies: &[(PageId, PageId, usize)]) -> Result<(), BackendError> {
        crate::copy_pages(arena, copies);
        Ok(())
    }

    fn zero_pages(&self, arena: &mut Arena, pages: &[PageId]) -> Result<(), BackendError> {
        crate::zero_pages(arena, pages);
        Ok(())
    }

    fn gather(
        &self,
        arena: &Arena,
        layer: usize,
        table: TableView<'_>,
        positions: Range<u32>,
    ) -> Result<[Vec<f32>; 2], BackendError> {
        Ok(crate::gather(arena, layer, table, positions))
    }

    fn scatter(
        &self,
        arena: &mut Arena,
        layer: usize,
        slots: &[SlotId],
        kv: [&[f32]; 2],
    ) -> Result<(), BackendError> {
        crate::scatter(self.level, arena, layer, slots, kv);
        Ok(())
    }
}
