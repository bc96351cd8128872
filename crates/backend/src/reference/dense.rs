//! Everything that is not attention.

use crate::{Activation, NormSpec, TensorRef, WeightFormat, weights};

/// `[rows, cols]`, row-major.
#[derive(Clone, PartialEq, Debug)]
pub struct ReferenceBuf {
    rows: usize,
    cols: usize,
    values: Vec<f32>,
}

impl ReferenceBuf {
    pub(super) fn new(rows: usize, cols: usize) -> Self {
        Self { rows, cols, values: vec![0.0; rows * cols] }
    }
    pub(super) fn resize(&mut self, rows: usize) {
        self.rows = rows;
        self.values.resize(rows * self.cols, 0.0);
    }
    pub fn rows(&self) -> usize {
        self.rows
    }
    pub fn cols(&self) -> usize {
        self.cols
    }
    pub fn values(&self) -> &[f32] {
        &self.values
    }
    pub fn row(&self, row: usize) -> &[f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        &self.values[row * self.cols..][..self.cols]
    }
    pub(super) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        &mut self.values[row * self.cols..][..self.cols]
    }
}

/// Weights `[out, in]`, widened to f32; what was quantised is kept as what it stands for.
#[derive(Clone, Debug)]
pub struct ReferenceMatrix {
    cols: usize,
    rows: Vec<Vec<f32>>,
}

impl ReferenceMatrix {
    pub(super) fn new(parts: &[TensorRef<'_>], format: WeightFormat) -> Self {
        let first = parts.first().expect("a matrix has at least one part");
        let mut rows = Vec::new();
        for part in parts {
            assert_eq!((part.cols(), part.dtype()), (first.cols(), first.dtype()), "parts differ");
            for row in 0..part.rows() {
                let row: Vec<f32> = (0..part.cols()).map(|col| part.get(row, col)).collect();
                rows.push(match format {
                    WeightFormat::AsStored | WeightFormat::F32 => row,
                    WeightFormat::Int8 => weights::requantised(&row),
                });
            }
        }
        Self { cols: first.cols(), rows }
    }
}

pub(super) fn embed(table: &ReferenceMatrix, tokens: &[u32], scale: f32, out: &mut ReferenceBuf) {
    assert_eq!((out.rows, out.cols), (tokens.len(), table.cols), "shape of the embeddings");
    for (i, &token) in tokens.iter().enumerate() {
        for (out, w) in out.row_mut(i).iter_mut().zip(&table.rows[token as usize]) {
            *out = w * scale;
        }
    }
}

/// `x / sqrt(mean(x²) + eps) * w`, rounded to f32 once.
pub(super) fn normed(x: &[f32], norm: NormSpec<'_, Vec<f32>>) -> Vec<f32> {
    assert_eq!(x.len(), norm.weight.len(), "columns and weights of a norm");
    let mean = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / x.len() as f64;
    let inverse = 1.0 / (mean + f64::from(norm.eps)).sqrt();
    x.iter().zip(norm.weight).map(|(&x, &w)| (f64::from(x) * inverse * f64::from(w)) as f32).collect()
}

pub(super) fn rms_norm(x: &ReferenceBuf, norm: NormSpec<'_, Vec<f32>>, out: &mut ReferenceBuf) {
    assert_eq!((x.rows, x.cols), (out.rows, out.cols), "shapes of a norm");
    for row in 0..x.rows {
        out.row_mut(row).copy_from_slice(&normed(x.row(row), norm));
    }
}

pub(super) fn add(x: &mut ReferenceBuf, delta: &ReferenceBuf, before: Option<NormSpec<'_, Vec<f32>>>) {
    assert_eq!((x.rows, x.cols), (delta.rows, delta.cols), "shapes of a sum");
    for row in 0..x.rows {
        let delta = match before {
            Some(norm) => normed(delta.row(row), norm),
            None => delta.row(row).to_vec(),
        };
        for (x, delta) in x.row_mut(row).iter_mut().zip(delta) {
            *x += delta;
        }
    }
}

pub(super) fn linear(w: &ReferenceMatrix, x: &ReferenceBuf, out: &mut ReferenceBuf) {
    assert_eq!((x.cols, out.rows, out.cols), (w.cols, x.rows, w.rows.len()), "shapes of a product");
    for row in 0..x.rows {
        for (o, w) in w.rows.iter().enumerate() {
            out.row_mut(row)[o] = dot(x.row(row), w) as f32;
        }
    }
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

pub(super) fn gated(act: Activation, gate_up: &ReferenceBuf, out: &mut ReferenceBuf) {
    assert_eq!((gate_up.rows, gate_up.cols), (out.rows, 2 * out.cols), "shapes of a gate");
    for row in 0..out.rows {
        let (gate, up) = gate_up.row(row).split_at(out.cols);
        for (col, out) in out.row_mut(row).iter_mut().enumerate() {
            *out = (activation(act, f64::from(gate[col])) * f64::from(up[col])) as f32;
        }
    }
}

fn activation(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}
