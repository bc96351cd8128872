//! Angles, rotation and storing, attention.

use crate::arena::{CudaArena, Place};
use crate::backend::{Cuda, Only};
use crate::dense::threads_for;
use crate::device::{Device, Grid};
use crate::kernels::{Kernel, ProductOptions};
use crate::memory::{Memory, launch};
use crate::plan::{Plan, PlanKey, Program, Room, Shape};
use crate::precision::Precision;
use crate::steps::Need;
use crate::values::{CudaBuf, CudaVector};
use octavo_backend::{AttentionSpec, BackendError, NormSpec, PageLayout, Rows, Span, TableView};
use std::sync::Arc;

pub(crate) const ANGLES: Kernel = Kernel::new::<AnglesArgs>("angles").overlapping();
pub(crate) const ROTATE: Kernel = Kernel::new::<RotateArgs>("rotate").overlapping();
pub(crate) const ATTENTION: Kernel = Kernel::new::<AttentionArgs>("attention").overlapping();
pub(crate) const CHUNK: Kernel = Kernel::new::<AttentionArgs>("attention_chunk");

/// The compute capability that multiplies by groups of warps, as in `cu/group.cuh`; later ones do that in other ways.
pub(crate) const GROUPING: (i32, i32) = (9, 0);
/// Threads of a block of `cu/rotate.cu`.
const ROTATING: u32 = 128;

#[repr(C)]
struct AnglesArgs {
    positions: u64,
    frequencies: u64,
    out: u64,
    pairs: u32,
    scale: f32,
}

#[repr(C)]
struct RotateArgs {
    qkv: u64,
    angles: u64,
    q_norm: u64,
    k_norm: u64,
    slots: u64,
    place: Place,
    q_eps: f32,
    k_eps: f32,
    q_heads: u32,
    kv_heads: u32,
    rows: u32,
    unused: i32,
}

#[repr(C)]
struct AttentionArgs {
    qkv: u64,
    out: u64,
    pages: u64,
    items: u64,
    sums: u64,
    weights: u64,
    counters: u64,
    place: Place,
    kv_heads: u32,
    group: u32,
    window: u32,
    out_precision: i32,
    scale: f32,
    columns: i32,
    early: i32,
    unused: i32,
}

/// Room for parts that are merged; grows, and is used again by every layer.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    sums: Option<Memory>,
    weights: Option<Memory>,
    /// Zero between launches.
    counters: Option<Memory>,
    /// How often an address has changed.
    moves: u64,
}

impl Scratch {
    /// Makes room. What was launched or captured before keeps using what it was given: a graph is good for as long as
    /// [`Scratch::moves`] says the same as when it was captured.
    pub(crate) fn reserve(&mut self, device: &Arc<dyn Device>, room: Room) -> Result<(), BackendError> {
        let moves = &mut self.moves;
        let mut grow = |slot: &mut Option<Memory>, bytes: usize, zero: bool| {
            if slot.as_ref().is_none_or(|memory| memory.bytes() < bytes) {
                let make = if zero { Memory::zeroed } else { Memory::new };
                *slot = Some(make(device, bytes.next_power_of_two())?);
                *moves += 1;
            }
            Ok::<(), BackendError>(())
        };
        grow(&mut self.sums, room.sums, false)?;
        grow(&mut self.weights, room.weights, false)?;
        grow(&mut self.counters, room.counters, true)
    }

    pub(crate) fn moves(&self) -> u64 {
        self.moves
    }

    fn addresses(&self) -> [u64; 3] {
        [&self.sums, &self.weights, &self.counters].map(|slot| slot.as_ref().map_or(0, Memory::address))
    }
}

/// A plan whose items are on the device.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) plan: Plan,
    items: Vec<Memory>,
}

impl Placed {
    pub(crate) fn new(device: &Arc<dyn Device>, plan: Plan, origins: &[i32]) -> Result<Self, BackendError> {
        let items = plan.launches.iter().map(|launch| {
            let items = launch.items.iter().map(|item| item.over(origins));
            Memory::of(device, &items.collect::<Vec<_>>())
        });
        let items = items.collect::<Result<_, _>>()?;
        Ok(Self { plan, items })
    }
}

impl Cuda {
    pub(crate) fn run_angles(
        &self,
        spans: &[Span],
        inv_freq: &[f32],
        scale: f32,
        out: &mut CudaBuf,
    ) -> Result<(), BackendError> {
        let positions: Vec<u32> = spans.iter().flat_map(|span| span.start..span.end()).collect();
        let shape = [self.padded(positions.len()), 2 * inv_freq.len()];
        assert_eq!(out.shape(), shape, "shape of the angles");
        let positions = self.input(Need::Positions, out.rows(), &positions)?;
        let args = AnglesArgs {
            positions: positions.address,
            frequencies: self.constant(inv_freq)?,
            out: out.overwrite(Precision::F32),
            pairs: inv_freq.len() as u32,
            scale,
        };
        let grid = Grid::new(positions.count, 1, threads_for(inv_freq.len(), 128));
        if self.left_out(Only::Kernel("angles")) {
            return Ok(());
        }
        // SAFETY: a block a position, and the shape of the output was checked.
        unsafe { launch(&*self.device, ANGLES, grid, &args) }
    }

    #[allow(clippy::too_many_arguments, reason = "the operands of `Backend::rotate_and_store`")]
    pub(crate) fn run_rotate(
        &self,
        qkv: &mut CudaBuf,
        norms: Option<[NormSpec<'_, CudaVector>; 2]>,
        angles: &CudaBuf,
        spec: &AttentionSpec,
        rows: Rows<'_>,
        tables: &[TableView<'_>],
        arena: &mut CudaArena,
    ) -> Result<(), BackendError> {
        let heads = spec.heads;
        check_heads(spec, arena);
        let count = self.padded(rows.tokens.len());
        assert_eq!(qkv.shape(), [count, heads.qkv_cols()], "shape of qkv");
        assert_eq!(angles.shape(), [count, heads.dim], "shape of the angles");
        assert_eq!((qkv.precision(), angles.precision()), (Precision::F32, Precision::F32));
        assert!(norms.iter().flatten().all(|n| n.weight.len == heads.dim), "weights of a head's norm");
        check_rows(rows);
        let mut batches = self.batches.borrow_mut();
        let size = arena.layout().page_size;
        let batch = batches.get(&self.device, size, rows.spans, tables, arena.pages())?;
        let staged = self.group_of(tables).and_then(|group| self.staged(Need::Slots(group), count * 8));
        let args = RotateArgs {
            qkv: qkv.address(),
            angles: angles.address(),
            q_norm: norms.map_or(0, |[q, _]| q.weight.memory.address()),
            k_norm: norms.map_or(0, |[_, k]| k.weight.memory.address()),
            slots: staged.unwrap_or(batch.slots.address()),
            place: arena.place(spec.layer),
            q_eps: norms.map_or(0.0, |[q, _]| q.eps),
            k_eps: norms.map_or(0.0, |[_, k]| k.eps),
            q_heads: heads.q as u32,
            kv_heads: heads.kv as u32,
            rows: qkv.rows() as u32,
            unused: 0,
        };
        let count = if staged.is_some() { count } else { rows.tokens.len() };
        let kernel = ROTATE.with_head(arena.layout()).with_product(ProductOptions::of(qkv));
        let threads = (heads.q + 2 * heads.kv) * lanes_of(heads.dim);
        let grid = Grid::new(count, threads.div_ceil(ROTATING as usize), ROTATING);
        qkv.set_parts(1);
        if self.left_out(Only::Kernel("rotate")) {
            return Ok(());
        }
        // SAFETY: a warp a head of a row; shapes, heads and pages were checked.
        unsafe { launch(&*self.device, kernel, grid, &args) }
    }

    pub(crate) fn run_attention(
        &self,
        qkv: &CudaBuf,
        spec: &AttentionSpec,
        rows: Rows<'_>,
        tables: &[TableView<'_>],
        arena: &CudaArena,
        out: &mut CudaBuf,
    ) -> Result<(), BackendError> {
        let heads = spec.heads;
        check_heads(spec, arena);
        assert_eq!(qkv.shape(), [self.padded(rows.tokens.len()), heads.qkv_cols()], "shape of qkv");
        assert_eq!(out.shape(), [qkv.rows(), heads.q * heads.dim], "shape of the output");
        assert_eq!((qkv.precision(), qkv.parts()), (Precision::F32, 1), "queries are rotated");
        check_rows(rows);
        let mut batches = self.batches.borrow_mut();
        let layout = arena.layout();
        let batch = batches.get(&self.device, layout.page_size, rows.spans, tables, arena.pages())?;
        let groups = self.capability() == GROUPING;
        let key = PlanKey::new(spec, layout, self.deterministic(), groups, self.tuning.get());
        let placed = batch.plan(key, |tables| {
            let plan = Plan::new(self.device.processors(), key, tables.page_size, &tables.spans);
            Placed::new(&self.device, plan, &tables.origins())
        })?;
        let mut scratch = self.scratch.borrow_mut();
        scratch.reserve(&self.device, placed.plan.room(heads.kv, heads.dim))?;
        let [sums, weights, counters] = scratch.addresses();
        let staged = self.staged_work(self.group_of(tables), key, &placed.plan);
        let short = self.short();
        let mut args = AttentionArgs {
            qkv: qkv.address(),
            out: out.overwrite(short),
            pages: self.staged(Need::Pages, 0).unwrap_or(batch.pages.address()),
            items: 0,
            sums,
            weights,
            counters,
            place: arena.place(spec.layer),
            kv_heads: heads.kv as u32,
            group: heads.group() as u32,
            window: spec.window.unwrap_or(0),
            out_precision: short as i32,
            scale: spec.scale * std::f32::consts::LOG2_E,
            columns: 0,
            early: i32::from(staged.is_some()),
            unused: 0,
        };
        for (launch, items) in placed.plan.launches.iter().zip(&placed.items) {
            args.columns = launch.shape.columns as i32;
            args.items = staged.unwrap_or(items.address());
            // SAFETY: the items were made of the checked batch, and there is room for their parts.
            unsafe { self.launch_attention(launch.shape, layout, &args)? };
        }
        Ok(())
    }

    /// # Safety
    /// All addresses of `args` are valid, and `items` are those of a launch of this shape.
    unsafe fn launch_attention(
        &self,
        shape: Shape,
        layout: &PageLayout,
        args: &AttentionArgs,
    ) -> Result<(), BackendError> {
        if self.left_out(Only::Kernel("attention")) {
            return Ok(());
        }
        let kernel = match shape.program {
            Program::Columns(options) => ATTENTION.with_attention(options),
            Program::Chunk(options) => CHUNK.with_chunk(options),
        };
        let kernel = kernel.with_head(layout);
        let grid = Grid::new(shape.shares * layout.kv_heads, 1, 32 * shape.program.warps() as u32);
        let grid = Grid { shared: shape.shared as u32, ..grid };
        // SAFETY: the caller's promise.
        unsafe { launch(&*self.device, kernel, grid, args) }
    }
}

/// `LANES` of `cu/rotate.cu`.
fn lanes_of(head_dim: usize) -> usize {
    match head_dim {
        256 => 32,
        96 | 128 => 16,
        _ => 8,
    }
}

fn check_heads(spec: &AttentionSpec, arena: &CudaArena) {
    let layout = arena.layout();
    assert_eq!((spec.heads.kv, spec.heads.dim), (layout.kv_heads, layout.head_dim), "heads of the arena");
    assert!(spec.heads.group() <= crate::MAX_GROUP, "at most 16 query heads share a key-value head");
}

fn check_rows(rows: Rows<'_>) {
    let mut next = 0;
    for span in rows.spans {
        assert_eq!(span.first_row, next, "spans follow each other");
        next += span.rows;
    }
    assert_eq!(next, rows.tokens.len(), "spans cover the rows");
}

#[cfg(test)]
mod tests;
