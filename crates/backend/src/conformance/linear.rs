//! Products with weights.

use super::Tolerance;
use super::compare::close;
use super::transfer::{Tensor, buf, download, keeps_weights, upload};
use crate::{Activation, Backend, Random, Reference, WeightDtype, WeightFormat};

/// How a weight is stored and kept: every pair.
pub(super) const KINDS: [(WeightDtype, WeightFormat); 8] = [
    (WeightDtype::F32, WeightFormat::AsStored),
    (WeightDtype::F16, WeightFormat::AsStored),
    (WeightDtype::Bf16, WeightFormat::AsStored),
    (WeightDtype::F16, WeightFormat::F32),
    (WeightDtype::Bf16, WeightFormat::F32),
    (WeightDtype::F32, WeightFormat::Int8),
    (WeightDtype::F16, WeightFormat::Int8),
    (WeightDtype::Bf16, WeightFormat::Int8),
];

/// `[rows, in] · [out, in]ᵀ`, the weights in parts of these many outputs.
const SHAPES: [(usize, &[usize], usize); 13] = [
    (0, &[16], 64),
    (1, &[1], 1),
    (1, &[33], 7),
    (1, &[31, 1, 2], 63),
    (1, &[256], 320),
    (2, &[5], 1000),
    (3, &[32], 64),
    (4, &[40, 8, 8], 96),
    (5, &[100], 129),
    (8, &[64], 65),
    (17, &[48], 100),
    (64, &[96], 200),
    (131, &[40], 72),
];

/// Weights `[out, in]` of the suite.
pub(super) fn weights(kind: (WeightDtype, WeightFormat), parts: &[usize], cols: usize) -> Vec<Tensor> {
    let mut random = Random::new(8);
    parts
        .iter()
        .map(|&rows| Tensor::new(kind.0, rows, cols, &random.short_values(rows * cols, 0.5)))
        .collect()
}

/// `x` is `[rows, in]`.
pub(super) fn product<B: Backend>(
    backend: &B,
    parts: &[Tensor],
    format: WeightFormat,
    x: &[f32],
    cols: usize,
    short: bool,
) -> Vec<f32> {
    let views: Vec<_> = parts.iter().map(Tensor::view).collect();
    let outputs = views.iter().map(|view| view.rows()).sum();
    let w = backend.matrix(&views, format).unwrap();
    let rows = x.len() / cols;
    let x = upload(backend, rows, cols, x);
    let mut out = buf(backend, rows, outputs);
    match short {
        true => backend.linear_short(&w, &x, &mut out).unwrap(),
        false => backend.linear(&w, &x, &mut out).unwrap(),
    }
    download(backend, &out)
}

pub fn linear_matches_the_reference<B: Backend>(backend: &B, tolerance: Tolerance) {
    for kind in KINDS.into_iter().filter(|kind| keeps_weights(backend, kind.1)) {
        for (rows, parts, cols) in SHAPES {
            let case = format!("linear {kind:?}: [{rows}, {cols}] by {parts:?} outputs");
            let weights = weights(kind, parts, cols);
            let x = Random::new(9).short_values(rows * cols, 2.0);
            let want = product(&Reference, &weights, kind.1, &x, cols, false);
            let sizes = sizes(&weights, &x, cols);
            let relative = match kind {
                (_, WeightFormat::Int8) => tolerance.linear_int8,
                (WeightDtype::Bf16, WeightFormat::AsStored) => tolerance.linear_bf16,
                (_, WeightFormat::AsStored | WeightFormat::F32) => tolerance.linear,
            };
            for short in [false, true] {
                let got = product(backend, &weights, kind.1, &x, cols, short);
                close(&format!("{case}, short {short}"), &got, &want, |i| relative * sizes[i]);
            }
        }
    }
}

/// `[gate | up]` of products of these rows, gated outputs and columns.
const GATED: [(usize, usize, usize); 7] =
    [(0, 8, 16), (1, 40, 72), (3, 5, 33), (8, 24, 320), (11, 136, 264), (30, 48, 96), (70, 16, 64)];

pub fn gated_products_match_the_reference<B: Backend>(backend: &B, tolerance: Tolerance) {
    let acts = [Activation::Silu, Activation::Gelu];
    for (act, (rows, outputs, cols)) in acts.into_iter().flat_map(|act| GATED.map(|shape| (act, shape))) {
        let weights = weights((WeightDtype::Bf16, WeightFormat::AsStored), &[outputs, outputs], cols);
        let x = Random::new(9).short_values(rows * cols, 1.0);
        let [got, want] =
            [gated(backend, act, &weights, &x, cols), gated(&Reference, act, &weights, &x, cols)];
        let product = product(&Reference, &weights, WeightFormat::AsStored, &x, cols, false);
        let sizes = sizes(&weights, &x, cols);
        let allowed = |i: usize| {
            let (gate, up) =
                (i / outputs * 2 * outputs + i % outputs, i / outputs * 2 * outputs + outputs + i % outputs);
            // An activation is no steeper than 1.2, and no larger than what it is of.
            let by_product = 1.2 * sizes[gate] * product[up].abs() + sizes[up] * product[gate].abs();
            tolerance.linear_bf16 * by_product + tolerance.elementwise * (want[i].abs() + product[up].abs())
        };
        close(&format!("gated {act:?}: [{rows}, {cols}] by {outputs}"), &got, &want, allowed);
    }
}

fn gated<B: Backend>(backend: &B, act: Activation, parts: &[Tensor], x: &[f32], cols: usize) -> Vec<f32> {
    let views: Vec<_> = parts.iter().map(Tensor::view).collect();
    let outputs = views.iter().map(|view| view.rows()).sum();
    let w = backend.matrix(&views, WeightFormat::AsStored).unwrap();
    let rows = x.len() / cols;
    let x = upload(backend, rows, cols, x);
    let (mut gate_up, mut out) = (buf(backend, rows, outputs), buf(backend, rows, outputs / 2));
    backend.linear_gated(act, &w, &x, &mut gate_up, &mut out).unwrap();
    download(backend, &out)
}

/// `Σ|x·w|` of every result.
fn sizes(weights: &[Tensor], x: &[f32], cols: usize) -> Vec<f32> {
    let outputs: Vec<Vec<f32>> = weights
        .iter()
        .flat_map(|part| (0..part.view().rows()).map(|o| (0..cols).map(|i| part.view().get(o, i)).collect()))
        .collect();
    let size = |row: &[f32], w: &Vec<f32>| row.iter().zip(w).map(|(x, w)| (x * w).abs()).sum();
    x.chunks(cols).flat_map(|row| outputs.iter().map(move |w| size(row, w))).collect()
}
