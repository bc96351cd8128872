use crate::aligned::Aligned;
use crate::gemm::{Element, PAIR, PANEL, rounded};
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
///   [out / 32][in / 2][64]   one panel is 32 outputs: what a kernel multiplies by two inputs lies together
/// ```
///
/// The last panel is filled up with zeros, and so is a missing last input. A step's 64 weights lie as [`Element::place`]
/// says. Int8 panels are described at [`int8`].
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
        let kind = match format {
            WeightFormat::AsStored => dtype.into(),
            WeightFormat::F32 => Kind::F32,
            WeightFormat::Int8 => Kind::Int8,
        };
        let rows = parts.iter().map(TensorRef::rows).sum::<usize>();
        let panel = panel_bytes(kind, cols);
        let mut panels = Aligned::zeroed(rows.div_ceil(PANEL) * panel);
        if rows > 0 && cols > 0 {
            pool.run_chunks(panels.bytes_mut(), panel, &|index, bytes| {
                let rows: Vec<&[u8]> =
                    (index * PANEL..rows.min((index + 1) * PANEL)).map(|row| find(parts, row)).collect();
                match (kind, dtype) {
                    (Kind::Int8, _) => int8::pack_panel(&rows, dtype, cols, bytes),
                    (Kind::F32, WeightDtype::F32) => pack_panel::<f32, 4, 4>(&rows, bytes, |weight| weight),
                    (Kind::F32, WeightDtype::F16) => pack_panel::<f32, 2, 4>(&rows, bytes, widen::<f16>),
                    (Kind::F32, WeightDtype::Bf16) => pack_panel::<f32, 2, 4>(&rows, bytes, widen::<bf16>),
                    (_, WeightDtype::Bf16) => pack_panel::<bf16, 2, 2>(&rows, bytes, without_subnormals),
                    (_, _) => pack_panel::<f16, 2, 2>(&rows, bytes, |weight| weight),
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
        Kind::F32 => cols.next_multiple_of(PAIR) * PANEL * 4,
        Kind::F16 | Kind::Bf16 => cols.next_multiple_of(PAIR) * PANEL * 2,
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
fn pack_panel<W: Element, const FROM: usize, const SIZE: usize>(
    rows: &[&[u8]],
    panel: &mut [u8],
    convert: impl Fn([u8; FROM]) -> [u8; SIZE],
) {
    const INPUTS: usize = 64;
    for (block, out) in panel.chunks_mut(INPUTS * PANEL * SIZE).enumerate() {
        for (column, row) in rows.iter().enumerate() {
            let weights = row[block * INPUTS * FROM..].as_chunks::<FROM>().0;
            let places = [0, 1].map(|input| W::place(input, column) * SIZE);
            for (slot, weights) in out.chunks_exact_mut(PAIR * PANEL * SIZE).zip(weights.chunks(PAIR)) {
                for (at, weight) in places.into_iter().zip(weights) {
                    slot[at..][..SIZE].copy_from_slice(&convert(*weight));
                }
            }
        }
    }
}

fn widen<W: Element>(weight: [u8; 2]) -> [u8; 4] {
    W::read(&weight).to_le_bytes()
}

/// As the kernels take weights in bf16.
fn without_subnormals(weight: [u8; 2]) -> [u8; 2] {
    rounded(bf16::from_le_bytes(weight).to_f32()).to_le_bytes()
}

fn read_row<W: Element>(panel: &[u8], column: usize, out: &mut [f32]) {
    let size = size_of::<W>();
    for (out, slot) in out.chunks_mut(PAIR).zip(panel.chunks_exact(PAIR * PANEL * size)) {
        for (input, out) in out.iter_mut().enumerate() {
            *out = W::read(&slot[W::place(input, column) * size..]);
        }
    }
}
