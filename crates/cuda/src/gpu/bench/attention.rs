//! Attention over random pages, decoding and in chunks.

use super::{Bench, FillArgs, Tuning};
use crate::arena::CudaArena;
use crate::precision::Precision;
use crate::values::CudaBuf;
use octavo_backend::{
    AttentionSpec, Backend, BackendError, Heads, PageLayout, Random, Rows, Span, TableView,
};
use octavo_types::{KvDtype, PageId, Pages};

/// The cache of one layer is rotated among as many layers as this many bytes hold: several times the L2.
const ROTATED: usize = 512 << 20;
/// Positions up to which results are compared with plain arithmetic.
const CHECKED: usize = 33_000;

/// `batch` sequences of `context` tokens, of which the last `rows` of each are in the batch.
#[derive(Clone, Copy, Debug)]
pub struct AttentionCase {
    pub heads: Heads,
    pub dtype: KvDtype,
    pub page_size: usize,
    pub batch: usize,
    pub context: usize,
    pub rows: usize,
    /// Read the same layer again and again, from the cache if it fits.
    pub resident: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Of one layer.
    pub micros: f64,
    /// Bytes of keys and values, with their parameters, of one layer.
    pub bytes: usize,
    /// The largest difference from plain arithmetic among some results; `None` where the context is too long.
    pub error: Option<f64>,
}

/// Everything a case needs, on the device.
struct World {
    arena: CudaArena,
    qkv: CudaBuf,
    out: CudaBuf,
    tables: Vec<Vec<PageId>>,
    spans: Vec<Span>,
    tokens: Vec<u32>,
}

impl AttentionCase {
    fn layer_bytes(&self) -> usize {
        let vectors = 2 * self.heads.kv * self.batch * self.context;
        vectors * self.dtype.vector_bytes(self.heads.dim as u32) as usize
    }

    fn layers(&self) -> usize {
        if self.resident { 1 } else { (ROTATED / self.layer_bytes()).clamp(1, 40) }
    }

    fn layout(&self) -> PageLayout {
        let Heads { kv: kv_heads, dim: head_dim, .. } = self.heads;
        PageLayout { layers: self.layers(), kv_heads, page_size: self.page_size, head_dim, dtype: self.dtype }
    }

    fn spec(&self, layer: usize) -> AttentionSpec {
        AttentionSpec { heads: self.heads, scale: 1.0 / (self.heads.dim as f32).sqrt(), window: None, layer }
    }
}

impl Bench {
    /// One result for each of the `tunings`, over the same pages.
    pub fn attention(
        &self,
        case: &AttentionCase,
        tunings: &[Tuning],
    ) -> Result<Vec<Result<Measured, BackendError>>, BackendError> {
        let mut world = self.world(case)?;
        let launches = case.layers().max(4);
        let known = self.known(case, &world, (launches - 1) % case.layers())?;
        let measured = tunings.iter().map(|&tuning| {
            self.cuda.tuning.set(tuning);
            let micros =
                self.time(|| (0..launches).try_for_each(|i| self.run(case, &mut world, i % case.layers())));
            self.cuda.tuning.set(Tuning::default());
            let error = self.error(&world, &known)?;
            Ok(Measured { micros: micros? / launches as f64, bytes: case.layer_bytes(), error })
        });
        Ok(measured.collect())
    }

    fn run(&self, case: &AttentionCase, world: &mut World, layer: usize) -> Result<(), BackendError> {
        let tables: Vec<_> = world.tables.iter().map(|pages| TableView { first: 0, pages }).collect();
        let rows = Rows::new(&world.tokens, &world.spans);
        self.cuda.attention(&world.qkv, &case.spec(layer), rows, &tables, &world.arena, &mut world.out)
    }

    fn world(&self, case: &AttentionCase) -> Result<World, BackendError> {
        let each = case.context.div_ceil(case.page_size);
        let mut pages: Vec<PageId> = (0..(each * case.batch) as u32).map(PageId).collect();
        Random::new(3).shuffle(&mut pages);
        let arena = self.cuda.arena(case.layout(), Pages(pages.len() as u32))?;
        self.fill_arena(&arena, pages.len())?;
        let count = case.batch * case.rows;
        let mut qkv = self.cuda.buf(count, case.heads.qkv_cols())?;
        self.fill(&FillArgs {
            out: qkv.overwrite(Precision::F32),
            count: (count * case.heads.qkv_cols()) as u64,
            seed: 5,
            precision: Precision::F32 as i32,
            size: 2.0,
            tail_word: 0,
            page_words: 1,
            tail: 0,
        })?;
        let out = self.cuda.buf(count, case.heads.q * case.heads.dim)?;
        let start = (case.context - case.rows) as u32;
        let span = |i| Span { first_row: i * case.rows, rows: case.rows, start };
        Ok(World {
            arena,
            qkv,
            out,
            tables: pages.chunks(each).map(<[_]>::to_vec).collect(),
            spans: (0..case.batch).map(span).collect(),
            tokens: vec![0; count],
        })
    }

    pub(super) fn fill_arena(&self, arena: &CudaArena, pages: usize) -> Result<(), BackendError> {
        let layout = arena.layout();
        let bytes = layout.page_bytes() * pages;
        // A scale of 2⁻⁸ for fp8; for int8 2⁻⁷ and a zero point of -1.
        let (precision, tail_word) = match layout.dtype {
            KvDtype::F32 => (0, 0),
            KvDtype::Bf16 => (1, 0),
            KvDtype::F16 => (2, 0),
            KvDtype::Fp8 => (3, (1.0f32 / 256.0).to_bits()),
            KvDtype::Int8 => (3, 0xbc00_2000),
        };
        let parameters = layout.page_bytes() / (layout.row_bytes() + layout.parameter_bytes());
        self.fill(&FillArgs {
            out: arena.address(),
            count: (bytes / layout.element_bytes().max(if precision == 3 { 4 } else { 1 })) as u64,
            seed: 9,
            precision,
            size: 1.0,
            tail_word,
            page_words: (layout.page_bytes() / 4) as u64,
            tail: (parameters * layout.row_bytes() / 4) as u64,
        })
    }

    /// What the first and the last row should be, by plain arithmetic on what the pages hold.
    fn known(
        &self,
        case: &AttentionCase,
        world: &World,
        layer: usize,
    ) -> Result<Vec<(usize, Vec<f64>)>, BackendError> {
        if case.context > CHECKED {
            return Ok(Vec::new());
        }
        let mut qkv = Vec::new();
        self.cuda.read(&world.qkv, &mut qkv)?;
        let row = |(sequence, row): (usize, usize)| {
            let table = TableView { first: 0, pages: &world.tables[sequence] };
            let seen = (case.context - case.rows + row + 1) as u32;
            let kv = self.cuda.gather(&world.arena, layer, table, 0..seen)?;
            let row = sequence * case.rows + row;
            let query = &qkv[row * case.heads.qkv_cols()..][..case.heads.q * case.heads.dim];
            Ok((row, attend(&case.spec(layer), query, &kv)))
        };
        [(0, 0), (case.batch - 1, case.rows - 1)].map(row).into_iter().collect()
    }

    /// The largest difference from the known rows.
    fn error(&self, world: &World, known: &[(usize, Vec<f64>)]) -> Result<Option<f64>, BackendError> {
        let mut got = Vec::new();
        self.cuda.read(&world.out, &mut got)?;
        let of_row = |(row, want): &(usize, Vec<f64>)| {
            let got = &got[row * want.len()..][..want.len()];
            let errors = got.iter().zip(want).map(|(got, want)| (f64::from(*got) - want).abs());
            errors.fold(0.0, |a, e| if e.is_nan() { f64::INFINITY } else { e.max(a) })
        };
        Ok(known.iter().map(of_row).reduce(f64::max))
    }
}

/// All query heads of one row.
fn attend(spec: &AttentionSpec, query: &[f32], [keys, values]: &[Vec<f32>; 2]) -> Vec<f64> {
    let Heads { kv, dim, .. } = spec.heads;
    let mut out = vec![0.0; query.len()];
    for (head, (q, out)) in query.chunks(dim).zip(out.chunks_mut(dim)).enumerate() {
        let at = head / spec.heads.group() * dim;
        let dot = |token: &[f32]| -> f64 {
            q.iter().zip(&token[at..]).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum()
        };
        let scores: Vec<f64> =
            keys.chunks(kv * dim).map(|token| dot(token) * f64::from(spec.scale)).collect();
        let largest = scores.iter().copied().fold(f64::MIN, f64::max);
        let total: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
        for (score, token) in scores.iter().zip(values.chunks(kv * dim)) {
            let weight = (score - largest).exp() / total;
            for (out, v) in out.iter_mut().zip(&token[at..]) {
                *out += weight * f64::from(*v);
            }
        }
    }
    out
}
