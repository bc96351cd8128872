//! Sequences in pages of a back end, run step by step.

use super::transfer::{buf, download, upload, vector};
use crate::{AttentionSpec, Backend, Heads, NormSpec, PageLayout, Random, Rows, Span, TableView};
use octavo_types::{KvDtype, PageId, Pages};

/// Layers of a page, and the one that is used.
pub(super) const LAYERS: usize = 2;
pub(super) const LAYER: usize = 1;

pub(super) const DTYPES: [KvDtype; 5] =
    [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Fp8, KvDtype::Int8];
/// The last one holds a whole sequence of the suite: a page a slot.
pub(super) const PAGE_SIZES: [usize; 7] = [1, 4, 8, 16, 32, 48, 256];

pub(super) const fn heads(q: usize, kv: usize, dim: usize) -> Heads {
    Heads { q, kv, dim }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) heads: Heads,
    pub(super) dtype: KvDtype,
    pub(super) page_size: usize,
    pub(super) window: Option<u32>,
    /// Norm and rotate queries and keys; without, they are stored as they come.
    pub(super) turn: bool,
    /// Feed numbers with all bits of an f32, for back ends that keep them; without, numbers that are exact in bf16.
    pub(super) fine: bool,
}

impl Shape {
    pub(super) fn layout(&self) -> PageLayout {
        let Heads { kv: kv_heads, dim: head_dim, .. } = self.heads;
        PageLayout { layers: LAYERS, kv_heads, page_size: self.page_size, head_dim, dtype: self.dtype }
    }
    pub(super) fn spec(&self) -> AttentionSpec {
        let scale = 1.0 / (self.heads.dim as f32).sqrt();
        AttentionSpec { heads: self.heads, scale, window: self.window, layer: LAYER }
    }
    pub(super) fn inv_freq(&self) -> Vec<f32> {
        let half = self.heads.dim / 2;
        let frequency = |i| 10_000f32.powf(-(i as f32) / half as f32);
        (0..half).map(|i| if self.turn { frequency(i) } else { 0.0 }).collect()
    }
}

/// One sequence: what is fed in, where it lies, what came out.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    /// `[len, q | k | v]`.
    pub(super) qkv: Vec<f32>,
    pub(super) pages: Vec<PageId>,
    pub(super) done: usize,
    /// `[done, q heads, dim]`.
    pub(super) out: Vec<f32>,
}

impl Sequence {
    /// Queries and keys in ±2, values in ±1.
    fn new(shape: &Shape, seed: u64, len: usize) -> Self {
        let mut random = Random::new(seed);
        let values = shape.heads.kv * shape.heads.dim;
        let row = |_| {
            let cols = shape.heads.qkv_cols();
            let mut row = if shape.fine { random.values(cols, 2.0) } else { random.short_values(cols, 2.0) };
            let at = row.len() - values;
            row[at..].iter_mut().for_each(|x| *x /= 2.0);
            row
        };
        Self { qkv: (0..len).flat_map(row).collect(), pages: Vec::new(), done: 0, out: Vec::new() }
    }
}

pub(super) struct World<'a, B: Backend> {
    pub(super) backend: &'a B,
    pub(super) shape: Shape,
    pub(super) arena: B::Arena,
    pub(super) sequences: Vec<Sequence>,
    /// Pages that no sequence has.
    pub(super) spare: Vec<PageId>,
    /// Give the back end pages that have left the window, too.
    pub(super) hold_all: bool,
    norms: [B::Vector; 2],
}

impl<'a, B: Backend> World<'a, B> {
    /// Sequences of `(seed, len)`, in pages that `map` shuffles. A sequence is the same whatever others there are.
    pub(super) fn new(backend: &'a B, shape: Shape, sequences: &[(u64, usize)], map: u64) -> Self {
        let mut sequences: Vec<_> =
            sequences.iter().map(|&(seed, len)| Sequence::new(&shape, seed, len)).collect();
        let cols = shape.heads.qkv_cols();
        let pages_of = |s: &Sequence| (s.qkv.len() / cols).div_ceil(shape.page_size);
        let total = sequences.iter().map(pages_of).sum::<usize>() + 4;
        let mut spare: Vec<PageId> = (0..total as u32).map(PageId).collect();
        Random::new(map).shuffle(&mut spare);
        for sequence in &mut sequences {
            sequence.pages = spare.split_off(spare.len() - pages_of(sequence));
        }
        let arena = backend.arena(shape.layout(), Pages(total as u32)).unwrap();
        let mut random = Random::new(11);
        let norms = [1.0, 1.5].map(|size| vector(backend, &random.short_values(shape.heads.dim, size)));
        Self { backend, shape, arena, sequences, spare, hold_all: false, norms }
    }

    /// One batch: the next `rows` of each `(sequence, rows)`, stored and attended to.
    pub(super) fn step(&mut self, chunks: &[(usize, usize)]) {
        let cols = self.shape.heads.qkv_cols();
        let (mut spans, mut values) = (Vec::new(), Vec::new());
        let mut first_row = 0;
        for &(index, rows) in chunks {
            let sequence = &mut self.sequences[index];
            spans.push(Span { first_row, rows, start: sequence.done as u32 });
            values.extend_from_slice(&sequence.qkv[sequence.done * cols..][..rows * cols]);
            sequence.done += rows;
            first_row += rows;
        }
        let tables: Vec<_> =
            chunks.iter().zip(&spans).map(|(&(index, _), span)| self.table(index, span)).collect();
        let tables: Vec<_> = tables.iter().map(|(first, pages)| TableView { first: *first, pages }).collect();
        let out = self.run(&values, &spans, &tables);
        let width = self.shape.heads.q * self.shape.heads.dim;
        for (&(index, rows), span) in chunks.iter().zip(&spans) {
            self.sequences[index].out.extend_from_slice(&out[span.first_row * width..][..rows * width]);
        }
    }

    /// The pages of a sequence that a span needs: those in its window, up to its end.
    fn table(&self, index: usize, span: &Span) -> (u32, Vec<PageId>) {
        let size = self.shape.page_size as u32;
        let seen = self.shape.window.map_or(0, |window| (span.start + 1).saturating_sub(window));
        let first = if self.hold_all { 0 } else { seen / size };
        let pages = &self.sequences[index].pages;
        let end = (span.end().div_ceil(size) as usize).min(pages.len());
        (first, pages[(first as usize).min(end)..end].to_vec())
    }

    /// Stores and attends; the results of all rows.
    fn run(&mut self, values: &[f32], spans: &[Span], tables: &[TableView<'_>]) -> Vec<f32> {
        let (qkv, tokens) = self.store(values, spans, tables);
        let rows = Rows::new(&tokens, spans);
        let heads = self.shape.heads;
        let mut out = buf(self.backend, tokens.len(), heads.q * heads.dim);
        self.backend.attention(&qkv, &self.shape.spec(), rows, tables, &self.arena, &mut out).unwrap();
        download(self.backend, &out)
    }

    /// Norms and rotates (if the shape says so) and stores; returns the rows as they are then.
    pub(super) fn store(
        &mut self,
        values: &[f32],
        spans: &[Span],
        tables: &[TableView<'_>],
    ) -> (B::Buf, Vec<u32>) {
        let (backend, shape) = (self.backend, self.shape);
        let rows = values.len() / shape.heads.qkv_cols();
        let tokens = vec![0; rows];
        let mut qkv = upload(backend, rows, shape.heads.qkv_cols(), values);
        let mut angles = buf(backend, rows, shape.heads.dim);
        backend.angles(spans, &shape.inv_freq(), 1.0, &mut angles).unwrap();
        let [q, k] = &self.norms;
        let norms =
            shape.turn.then_some([NormSpec { weight: q, eps: 1e-6 }, NormSpec { weight: k, eps: 1e-5 }]);
        let batch = Rows::new(&tokens, spans);
        let arena = &mut self.arena;
        backend.rotate_and_store(&mut qkv, norms, &angles, &shape.spec(), batch, tables, arena).unwrap();
        (qkv, tokens)
    }

    /// Keys and values of a sequence's positions, decoded.
    pub(super) fn gather(&self, index: usize, positions: std::ops::Range<u32>) -> [Vec<f32>; 2] {
        let table = TableView { first: 0, pages: &self.sequences[index].pages };
        self.backend.gather(&self.arena, LAYER, table, positions).unwrap()
    }

    /// Fills every slot of every page with `x`, keys and values.
    pub(super) fn fill(&mut self, x: f32) {
        let mut pages = self.spare.clone();
        pages.extend(self.sequences.iter().flat_map(|s| s.pages.clone()));
        let rows = pages.len() * self.shape.page_size;
        let values = vec![x; rows * self.shape.heads.qkv_cols()];
        let spans = [Span { first_row: 0, rows, start: 0 }];
        self.store(&values, &spans, &[TableView { first: 0, pages: &pages }]);
    }
}
