use crate::aligned::Aligned;
use crate::gemm::{Element, PANEL, column_at};
use crate::{Pool, int8};
use half::{bf16, f16};
use octavo_backend::{TensorRef, WeightDtype, WeightFormat};

/// How the weights of a [`Matrix`] are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    F32,
    F16,
    Bf16,
    Int8,
}

impl From<WeightDtype> for Kind {
    fn from(dtype: WeightDtype) -> Self {
        match dtype {
            WeightDtype::F32 => Self::F32,
            WeightDtype::F16 => Self::F16,
            WeightDtype::Bf16 => Self::Bf16,
        }
    }
}

/// Weights `[out, in]`, packed once for all kernels.
///
/// ```text
///   [out / 32][in][32]       one panel is 32 outputs: what a kernel multiplies by one input lies together
/// ```
///
/// The last panel is filled up with zeros. The 32 weights of an input lie in the order of [`column_at`]. Int8 panels
/// are described at [`int8`].
#[derive(Debug)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    kind: Kind,
    panels: Aligned,
}

impl Matrix {
    /// The parts one below the other. They must have equal columns and types.
    pub fn pack(parts: &[TensorRef<'_>], format: WeightFormat, pool: &Pool) -> Self {
        let first = parts.first().expect("a matrix has at least one part");
        let (cols, dtype) = (first.cols(), first.dtype());
        for part in parts {
            assert!(
                part.cols() == cols && part.dtype() == dtype,
                "parts differ: {dtype:?} of {cols} columns, {part:?}"
            );
        }
        let kind = if format == WeightFormat::Int8 { Kind::Int8 } else { dtype.into() };
        let rows = parts.iter().map(TensorRef::rows).sum::<usize>();
        let panel = panel_bytes(kind, cols);
        let mut panels = Aligned::zeroed(rows.div_ceil(PANEL) * panel);
        if rows > 0 && cols > 0 {
            pool.run_chunks(panels.bytes_mut(), panel, &|index, bytes| {
                let rows: Vec<&[u8]> =
                    (index * PANEL..rows.min((index + 1) * PANEL)).map(|row| find(parts, row)).collect();
                match (kind, dtype) {
                    (Kind::Int8, _) => int8::pack_panel(&rows, dtype, cols, bytes),
                    (_, WeightDtype::F32) => pack_panel::<f32, 4>(&rows, bytes),
                    (_, WeightDtype::F16) => pack_panel::<f16, 2>(&rows, bytes),
                    (_, WeightDtype::Bf16) => pack_panel::<bf16, 2>(&rows, bytes),
                }
            });
        }
        Self { rows, cols, kind, panels }
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// Bytes that a product with one row of activations reads.
    pub fn bytes(&self) -> usize {
        self.rows.div_ceil(PANEL) * self.panel_bytes()
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }
    pub(crate) fn panel_bytes(&self) -> usize {
        panel_bytes(self.kind, self.cols)
    }
    pub(crate) fn panels(&self) -> &[u8] {
        &self.panels.bytes()[..self.bytes()]
    }

    /// Reads one output's weights back, widened: what a table of embeddings shared with the output layer needs.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(
            row < self.rows && out.len() == self.cols,
            "row {row} of {}, {} columns",
            self.rows,
            out.len()
        );
        let panel = &self.panels()[row / PANEL * self.panel_bytes()..][..self.panel_bytes()];
        match self.kind {
            Kind::F32 => read_row::<f32>(panel, row % PANEL, out),
            Kind::F16 => read_row::<f16>(panel, row % PANEL, out),
            Kind::Bf16 => read_row::<bf16>(panel, row % PANEL, out),
            Kind::Int8 => int8::read_row(panel, row % PANEL, out),
        }
    }
}

fn panel_bytes(kind: Kind, cols: usize) -> usize {
    match kind {
        Kind::F32 => cols * PANEL * 4,
        Kind::F16 | Kind::Bf16 => cols * PANEL * 2,
        Kind::Int8 => int8::panel_bytes(cols),
    }
}

/// The bytes of a row of the stacked parts.
fn find<'a>(parts: &[TensorRef<'a>], mut row: usize) -> &'a [u8] {
    for part in parts {
        if row < part.rows() {
            let bytes = part.cols() * part.dtype().bytes();
            return &part.bytes()[row * bytes..][..bytes];
        }
        row -= part.rows();
    }
    unreachable!("a row beyond the parts")
}

/// Transposes up to 32 rows into a panel, a few inputs at a time so that both sides stay in the cache.
fn pack_panel<W: Element, const SIZE: usize>(rows: &[&[u8]], panel: &mut [u8]) {
    const INPUTS: usize = 64;
    for (block, out) in panel.chunks_mut(INPUTS * PANEL * SIZE).enumerate() {
        for at in 0..PANEL {
            let Some(row) = rows.get(column_at::<W>(at)) else { continue };
            let weights = row[block * INPUTS * SIZE..].as_chunks::<SIZE>().0;
            for (slot, weight) in out.chunks_exact_mut(PANEL * SIZE).zip(weights) {
                slot[at * SIZE..][..SIZE].copy_from_slice(weight);
            }
        }
    }
}

fn read_row<W: Element>(panel: &[u8], column: usize, out: &mut [f32]) {
    let size = size_of::<W>();
    let at = (0..PANEL).find(|at| column_at::<W>(*at) == column).expect("a permutation of the panel");
    for (out, slot) in out.iter_mut().zip(panel.chunks_exact(PANEL * size)) {
        *out = W::read(&slot[at * size..][..size]);
    }
}
