//! The operations of [`Backend`], each checked and launched by its own file.

use crate::arena::CudaArena;
use crate::attention::Scratch;
use crate::batch::Batches;
use crate::choose::Choosing;
use crate::device::Device;
use crate::memory::Memory;
use crate::plan::Tuning;
use crate::precision::Precision;
use crate::steps::Steps;
use crate::values::{CudaBuf, CudaMatrix, CudaVector};
use crate::{FIRST_WITH_FP8, MAX_GROUP};
use octavo_backend::{
    Activation, AttentionSpec, Backend, BackendError, Choice, Heads, NormSpec, PageLayout, Pass, Rows, Span,
    Step, TableView, TensorRef, WeightFormat,
};
use octavo_types::{Bytes, PageId, Pages, SlotId};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct Options {
    /// A row's results have the same bits whatever else is in the batch.
    pub deterministic: bool,
    /// Where compiled kernels are kept, in a folder of their own; `None` compiles them in every process.
    pub cache: Option<PathBuf>,
    /// Decode steps are recorded once and replayed; without, every operation of every step is launched by itself.
    pub graphs: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { deterministic: false, cache: None, graphs: true }
    }
}

/// A kind of work that a step is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Only {
    Kernel(&'static str),
    /// Outputs and columns.
    Product(usize, usize),
}

/// A GPU and what runs on it, one thing after another.
pub struct Cuda {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) batches: RefCell<Batches>,
    pub(crate) scratch: RefCell<Scratch>,
    pub(crate) steps: RefCell<Steps>,
    pub(crate) choosing: RefCell<Choosing>,
    pub(crate) tuning: Cell<Tuning>,
    /// Values that operations get with every call and that never change.
    constants: RefCell<Vec<(Vec<f32>, Memory)>>,
    deterministic: bool,
    /// Weights are random, whatever is given.
    pub(crate) invents: Cell<bool>,
    /// Nothing else is launched: for measurements of a part.
    pub(crate) only: Cell<Option<Only>>,
    /// The sixteen bits of activations: those of the weights loaded last.
    short: Cell<Precision>,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cuda({})", self.device.name())
    }
}

impl Cuda {
    pub(crate) fn on(device: Arc<dyn Device>, deterministic: bool, graphs: bool) -> Self {
        Self {
            device,
            batches: RefCell::default(),
            scratch: RefCell::default(),
            steps: RefCell::new(Steps::new(graphs)),
            choosing: RefCell::default(),
            tuning: Cell::default(),
            constants: RefCell::default(),
            deterministic,
            invents: Cell::new(false),
            only: Cell::new(None),
            short: Cell::new(Precision::Bf16),
        }
    }

    /// Compute capability, major and minor.
    pub fn capability(&self) -> (i32, i32) {
        self.device.capability()
    }

    /// Device memory that could still be allocated.
    pub fn free_memory(&self) -> Result<Bytes, BackendError> {
        self.device.free_memory().map(Bytes)
    }

    /// Whether a model with pages of this layout can run here: what [`Backend::arena`] would say, before any weight
    /// is loaded.
    pub fn check(&self, layout: &PageLayout, heads: Heads) -> Result<(), BackendError> {
        if heads.group() > MAX_GROUP {
            return Err(BackendError::Unsupported {
                what: format!("{} query heads for each key-value head on CUDA", heads.group()),
                instead: format!("up to {MAX_GROUP} are; use --device cpu for this model"),
            });
        }
        crate::arena::check(layout, self.capability() >= FIRST_WITH_FP8)
    }

    pub(crate) fn left_out(&self, work: Only) -> bool {
        self.only.get().is_some_and(|only| only != work)
    }

    /// The address of `values`, which are uploaded once.
    pub(crate) fn constant(&self, values: &[f32]) -> Result<u64, BackendError> {
        let mut constants = self.constants.borrow_mut();
        if let Some((_, memory)) = constants.iter().find(|(other, _)| other == values) {
            return Ok(memory.address());
        }
        let memory = Memory::of(&self.device, values)?.kept();
        let address = memory.address();
        constants.push((values.to_vec(), memory));
        Ok(address)
    }

    /// Steps that were replayed instead of launched, and the kernels of the last.
    pub fn replays(&self) -> (u64, usize) {
        self.steps.borrow().replays()
    }

    pub(crate) fn deterministic(&self) -> bool {
        self.deterministic
    }

    pub(crate) fn short(&self) -> Precision {
        self.short.get()
    }
}

impl Backend for Cuda {
    type Buf = CudaBuf;
    type Matrix = CudaMatrix;
    type Vector = CudaVector;
    type Arena = CudaArena;

    fn name(&self) -> String {
        self.device.name()
    }

    fn works_meanwhile(&self) -> bool {
        true
    }

    fn buf(&self, rows: usize, cols: usize) -> Result<CudaBuf, BackendError> {
        CudaBuf::new(&self.device, rows, cols)
    }

    fn resize(&self, buf: &mut CudaBuf, rows: usize) -> Result<(), BackendError> {
        buf.resize(&self.device, rows)
    }

    fn matrix(&self, parts: &[TensorRef<'_>], format: WeightFormat) -> Result<CudaMatrix, BackendError> {
        if format != WeightFormat::AsStored {
            return Err(BackendError::Unsupported {
                what: format!("weights in {format:?} on CUDA"),
                instead: "leave them as they are stored, or use --device cpu".into(),
            });
        }
        let matrix = match self.invents.get() {
            true => self.invented_matrix(parts)?,
            false => CudaMatrix::new(&self.device, parts)?,
        };
        self.short.set(matrix.precision);
        Ok(matrix)
    }

    fn vector(&self, values: TensorRef<'_>, plus: f32) -> Result<CudaVector, BackendError> {
        let plus = if self.invents.get() { 1.0 } else { plus };
        CudaVector::new(&self.device, values, plus)
    }

    fn arena(&self, layout: PageLayout, pages: Pages) -> Result<CudaArena, BackendError> {
        CudaArena::new(&self.device, layout, pages)
    }

    fn read(&self, buf: &CudaBuf, out: &mut Vec<f32>) -> Result<(), BackendError> {
        self.settle(buf)?;
        buf.read(out)
    }

    fn step_rows(&self, step: &Step<'_, CudaArena>) -> usize {
        self.recorded_rows(step).unwrap_or(step.rows.tokens.len())
    }

    fn begin(&self, step: &Step<'_, CudaArena>) -> Result<Pass, BackendError> {
        self.begin_step(step)
    }

    fn end(&self, ran: Result<(), BackendError>) -> Result<Pass, BackendError> {
        self.end_pass(ran)
    }

    fn warms_up(&self) -> bool {
        true
    }

    fn rehearse(&self, begins: bool) -> Result<(), BackendError> {
        self.steps.borrow_mut().rehearsing = begins;
        self.device.rehearse(begins)
    }

    fn chooses(&self) -> bool {
        true
    }

    fn choose(&self, logits: &CudaBuf, choices: &[Choice]) -> Result<(), BackendError> {
        self.run_choose(logits, choices)
    }

    fn chosen(&self, count: usize) -> Result<Vec<Option<u32>>, BackendError> {
        self.read_chosen(count)
    }

    fn read_row(&self, buf: &CudaBuf, row: usize, out: &mut Vec<f32>) -> Result<(), BackendError> {
        self.settle(buf)?;
        buf.read_row(row, out)
    }

    fn embed(
        &self,
        table: &CudaMatrix,
        tokens: &[u32],
        scale: f32,
        out: &mut CudaBuf,
    ) -> Result<(), BackendError> {
        self.run_embed(table, tokens, scale, out)
    }

    fn rms_norm(
        &self,
        x: &CudaBuf,
        norm: NormSpec<'_, CudaVector>,
        out: &mut CudaBuf,
    ) -> Result<(), BackendError> {
        self.run_norm(x, None, None, norm, out)
    }

    fn add_rms_norm(
        &self,
        x: &mut CudaBuf,
        delta: &CudaBuf,
        before: Option<NormSpec<'_, CudaVector>>,
        norm: NormSpec<'_, CudaVector>,
        out: &mut CudaBuf,
    ) -> Result<(), BackendError> {
        self.run_norm(x, Some(delta), before, norm, out)
    }

    fn linear(&self, w: &CudaMatrix, x: &CudaBuf, out: &mut CudaBuf) -> Result<(), BackendError> {
        self.run_linear(w, x, out, Precision::F32, None).map(|_| ())
    }

    fn linear_short(&self, w: &CudaMatrix, x: &CudaBuf, out: &mut CudaBuf) -> Result<(), BackendError> {
        self.run_linear(w, x, out, w.precision, None).map(|_| ())
    }

    fn linear_gated(
        &self,
        act: Activation,
        w: &CudaMatrix,
        x: &CudaBuf,
        gate_up: &mut CudaBuf,
        out: &mut CudaBuf,
    ) -> Result<(), BackendError> {
        if self.run_linear(w, x, gate_up, w.precision, Some((act, out)))? {
            return Ok(());
        }
        self.run_gated(act, gate_up, out)
    }

    fn gated(&self, act: Activation, gate_up: &CudaBuf, out: &mut CudaBuf) -> Result<(), BackendError> {
        self.run_gated(act, gate_up, out)
    }

    fn pick_rows(&self, x: &CudaBuf, rows: &[u32], out: &mut CudaBuf) -> Result<(), BackendError> {
        self.run_pick(x, rows, out)
    }

    fn angles(
        &self,
        spans: &[Span],
        inv_freq: &[f32],
        scale: f32,
        out: &mut CudaBuf,
    ) -> Result<(), BackendError> {
        self.run_angles(spans, inv_freq, scale, out)
    }

    fn rotate_and_store(
        &self,
        qkv: &mut CudaBuf,
        norms: Option<[NormSpec<'_, CudaVector>; 2]>,
        angles: &CudaBuf,
        spec: &AttentionSpec,
        rows: Rows<'_>,
        tables: &[TableView<'_>],
        arena: &mut CudaArena,
    ) -> Result<(), BackendError> {
        self.run_rotate(qkv, norms, angles, spec, rows, tables, arena)
    }

    fn attention(
        &self,
        qkv: &CudaBuf,
        spec: &AttentionSpec,
        rows: Rows<'_>,
        tables: &[TableView<'_>],
        arena: &CudaArena,
        out: &mut CudaBuf,
    ) -> Result<(), BackendError> {
        self.run_attention(qkv, spec, rows, tables, arena, out)
    }

    fn copy_pages(
        &self,
        arena: &mut CudaArena,
        copies: &[(PageId, PageId, usize)],
    ) -> Result<(), BackendError> {
        self.run_copies(arena, copies)
    }

    fn zero_pages(&self, arena: &mut CudaArena, pages: &[PageId]) -> Result<(), BackendError> {
        self.run_zero(arena, pages)
    }

    fn gather(
        &self,
        arena: &CudaArena,
        layer: usize,
        table: TableView<'_>,
        positions: Range<u32>,
    ) -> Result<[Vec<f32>; 2], BackendError> {
        self.run_gather(arena, layer, table, positions)
    }

    fn scatter(
        &self,
        arena: &mut CudaArena,
        layer: usize,
        slots: &[SlotId],
        kv: [&[f32]; 2],
    ) -> Result<(), BackendError> {
        self.run_scatter(arena, layer, slots, kv)
    }
}
