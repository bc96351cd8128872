//! Operations on rows, without attention.

use super::Tolerance;
use super::compare::{close, close_by_row, same};
use super::transfer::{Tensor, buf, download, keeps_weights, upload, vector};
use crate::{Activation, Backend, NormSpec, Random, Reference, WeightDtype, WeightFormat};

pub(super) const WIDTHS: [usize; 6] = [1, 7, 64, 100, 129, 896];

pub fn buffers_resize_and_read_back<B: Backend>(backend: &B, _: Tolerance) {
    for cols in WIDTHS {
        let values = Random::new(1).short_values(5 * cols, 4.0);
        let x = upload(backend, 5, cols, &values);
        same(&format!("values of [5, {cols}]"), &download(backend, &x), &values);
    }
    let x = upload(backend, 3, 8, &Random::new(2).short_values(24, 1.0));
    let mut out = buf(backend, 1, 8);
    for rows in [0, 1, 3, 2, 40, 0, 3] {
        backend.resize(&mut out, rows).unwrap();
        assert_eq!(download(backend, &out).len(), rows * 8, "a buffer resized to {rows} rows");
        let picked: Vec<u32> = (0..rows as u32).map(|i| i % 3).collect();
        backend.pick_rows(&x, &picked, &mut out).unwrap();
        let all = download(backend, &x);
        let want: Vec<f32> = picked.iter().flat_map(|&i| all[i as usize * 8..][..8].to_vec()).collect();
        same(&format!("rows in a buffer resized to {rows}"), &download(backend, &out), &want);
    }
}

pub fn embeddings_match_the_reference<B: Backend>(backend: &B, tolerance: Tolerance) {
    let tokens = [3u32, 0, 9, 9, 1, 39, 16];
    for dtype in [WeightDtype::F32, WeightDtype::F16, WeightDtype::Bf16] {
        for cols in WIDTHS {
            let values = Random::new(3).short_values(40 * cols, 2.0);
            let parts = [
                Tensor::new(dtype, 33, cols, &values[..33 * cols]),
                Tensor::new(dtype, 7, cols, &values[33 * cols..]),
            ];
            for (format, count, scale) in [
                (WeightFormat::AsStored, 7, 1.0),
                (WeightFormat::AsStored, 1, 3.25),
                (WeightFormat::AsStored, 0, 1.0),
                (WeightFormat::Int8, 7, 1.0),
            ] {
                if !keeps_weights(backend, format) {
                    continue;
                }
                let case =
                    format!("embed {dtype:?} {format:?}, {cols} columns, {count} tokens, scale {scale}");
                let table = backend.matrix(&[parts[0].view(), parts[1].view()], format).unwrap();
                let mut out = buf(backend, count, cols);
                backend.embed(&table, &tokens[..count], scale, &mut out).unwrap();
                let want: Vec<f32> = tokens[..count]
                    .iter()
                    .flat_map(|&t| values[t as usize * cols..][..cols].iter().map(|w| w * scale))
                    .collect();
                // Half a step of 127 for the quantised, whatever share a scale.
                let step = if format == WeightFormat::Int8 { 0.51 / 127.0 } else { 0.0 };
                close_by_row(&case, &download(backend, &out), &want, cols, step + tolerance.elementwise);
            }
        }
    }
}

/// `(x, out)` of the sum and norm of rows.
fn add_norm<B: Backend>(backend: &B, rows: usize, cols: usize, norm_first: bool) -> [Vec<f32>; 2] {
    let mut random = Random::new(4);
    let mut x = upload(backend, rows, cols, &random.short_values(rows * cols, 3.0));
    let delta = upload(backend, rows, cols, &random.short_values(rows * cols, 1.0));
    let [w1, w2] = [1.5, 0.5].map(|size| vector(backend, &random.short_values(cols, size)));
    let mut out = buf(backend, rows, cols);
    let before = norm_first.then_some(NormSpec { weight: &w1, eps: 1e-5 });
    backend.add_rms_norm(&mut x, &delta, before, NormSpec { weight: &w2, eps: 1e-6 }, &mut out).unwrap();
    [download(backend, &x), download(backend, &out)]
}

pub fn norms_match_the_reference<B: Backend>(backend: &B, tolerance: Tolerance) {
    for cols in WIDTHS {
        for rows in [0, 1, 3, 17] {
            for norm_first in [false, true] {
                let got = add_norm(backend, rows, cols, norm_first);
                let want = add_norm(&Reference, rows, cols, norm_first);
                for (what, (got, want)) in ["x", "out"].iter().zip(got.iter().zip(&want)) {
                    let case = format!("add_rms_norm [{rows}, {cols}], norm first: {norm_first}, {what}");
                    close_by_row(&case, got, want, cols, tolerance.elementwise);
                }
            }
            for dtype in [WeightDtype::F32, WeightDtype::F16, WeightDtype::Bf16] {
                let case = format!("rms_norm [{rows}, {cols}] by one plus {dtype:?}");
                let got = norm_plus_one(backend, rows, cols, dtype);
                let want = norm_plus_one(&Reference, rows, cols, dtype);
                close_by_row(&case, &got, &want, cols, tolerance.elementwise);
            }
        }
    }
    let zeros = upload(backend, 2, 64, &[0.0; 128]);
    let weight = vector(backend, &[1.0; 64]);
    let mut out = buf(backend, 2, 64);
    backend.rms_norm(&zeros, NormSpec { weight: &weight, eps: 1e-6 }, &mut out).unwrap();
    same("rms_norm of zeros", &download(backend, &out), &[0.0; 128]);
}

fn norm_plus_one<B: Backend>(backend: &B, rows: usize, cols: usize, dtype: WeightDtype) -> Vec<f32> {
    let mut random = Random::new(5);
    let x = upload(backend, rows, cols, &random.short_values(rows * cols, 50.0));
    let weight = Tensor::new(dtype, 1, cols, &random.short_values(cols, 0.5));
    let weight = backend.vector(weight.view(), 1.0).unwrap();
    let mut out = buf(backend, rows, cols);
    backend.rms_norm(&x, NormSpec { weight: &weight, eps: 1e-6 }, &mut out).unwrap();
    download(backend, &out)
}

pub fn activations_match_the_reference<B: Backend>(backend: &B, tolerance: Tolerance) {
    // Where an exponential overflows, underflows, or is one.
    let edges = [0.5, -0.5, 20.0, -20.0, 88.0, -88.0, 104.0, -104.0, 1000.0, -1000.0, 1e30, -1e30];
    for act in [Activation::Silu, Activation::Gelu] {
        for (rows, cols) in [(0, 8), (1, 1), (3, 7), (17, 100), (2, 896)] {
            let mut values = Random::new(6).short_values(rows * 2 * cols, 6.0);
            for row in values.chunks_mut(2 * cols) {
                for (gate, &edge) in row[..cols].iter_mut().skip(3).step_by(3).zip(&edges) {
                    *gate = half::bf16::from_f32(edge).to_f32();
                }
            }
            let (got, want) = (gated(backend, act, cols, &values), gated(&Reference, act, cols, &values));
            let case = format!("gated {act:?} [{rows}, {cols}]");
            let up = |i: usize| values[i / cols * 2 * cols + cols + i % cols];
            close(&case, &got, &want, |i| tolerance.elementwise * (want[i].abs() + up(i).abs()));
        }
    }
}

/// `values` is `[rows, gate | up]`.
pub(super) fn gated<B: Backend>(backend: &B, act: Activation, cols: usize, values: &[f32]) -> Vec<f32> {
    let rows = values.len() / (2 * cols);
    let x = upload(backend, rows, 2 * cols, values);
    let mut out = buf(backend, rows, cols);
    backend.gated(act, &x, &mut out).unwrap();
    download(backend, &out)
}

pub fn rows_are_picked_exactly<B: Backend>(backend: &B, _: Tolerance) {
    for cols in WIDTHS {
        let values = Random::new(7).short_values(20 * cols, 1.0);
        let x = upload(backend, 20, cols, &values);
        for rows in [&[][..], &[0], &[19, 0, 7, 7, 3], &[5; 30]] {
            let mut out = buf(backend, rows.len(), cols);
            backend.pick_rows(&x, rows, &mut out).unwrap();
            let want: Vec<f32> =
                rows.iter().flat_map(|&r| values[r as usize * cols..][..cols].to_vec()).collect();
            same(&format!("rows {rows:?} of {cols} columns"), &download(backend, &out), &want);
        }
    }
}
