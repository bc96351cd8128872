//! Products of many rows are short and may be in parts; with numbers that are exact in both, what reads them gives the
//! same as for whole ones.

use super::*;
use crate::emulated::emulated;
use crate::memory::bytes_of;
use crate::plan::Tuning;
use half::bf16;
use octavo_backend::{Backend, TensorRef, WeightDtype, WeightFormat};

/// Eighths up to 2: their sums are exact in bf16, too.
fn eighths(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * seed + i / 7) % 33) as f32 / 8.0 - 2.0).collect()
}

fn filled(cuda: &Cuda, cols: usize, precision: Precision, parts: &[&[f32]]) -> CudaBuf {
    let mut buf = cuda.buf(parts[0].len() / cols, cols).unwrap();
    let to = buf.overwrite(precision);
    buf.set_parts(parts.len());
    let values = parts.concat();
    let bytes = match precision {
        Precision::F32 => bytes_of(&values).to_vec(),
        _ => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
    };
    // SAFETY: `set_parts` found room for them.
    unsafe { cuda.device.upload(to, &bytes).unwrap() };
    buf
}

/// In two short parts, and whole.
fn both(cuda: &Cuda, rows: usize, cols: usize) -> [CudaBuf; 2] {
    let (a, b) = (eighths(rows * cols, 5), eighths(rows * cols, 11));
    let whole: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    [filled(cuda, cols, Precision::Bf16, &[&a, &b]), filled(cuda, cols, Precision::F32, &[&whole])]
}

fn matrix(cuda: &Cuda, rows: usize, cols: usize) -> CudaMatrix {
    let bytes: Vec<u8> = eighths(rows * cols, 13).into_iter().flat_map(f32::to_le_bytes).collect();
    let values = TensorRef::new(WeightDtype::F32, rows, cols, &bytes).unwrap();
    cuda.matrix(&[values], WeightFormat::AsStored).unwrap()
}

fn read(cuda: &Cuda, buf: &CudaBuf) -> Vec<f32> {
    let mut values = Vec::new();
    cuda.read(buf, &mut values).unwrap();
    values
}

#[test]
fn short_parts_are_read_as_their_sum() {
    let cuda = emulated(false);
    let [short, whole] = both(&cuda, 3, 40);
    let values = read(&cuda, &whole);
    assert_eq!([read(&cuda, &short), read(&cuda, &short)], [values.clone(), values], "added once");
}

#[test]
fn products_and_picked_rows_add_short_parts() {
    let cuda = emulated(false);
    let weights = matrix(&cuda, 24, 40);
    let outs = both(&cuda, 3, 40).map(|x| {
        let mut out = cuda.buf(3, 24).unwrap();
        cuda.linear(&weights, &x, &mut out).unwrap();
        read(&cuda, &out)
    });
    assert_eq!(outs[0], outs[1]);
    let outs = both(&cuda, 3, 40).map(|x| {
        let mut out = cuda.buf(2, 40).unwrap();
        cuda.pick_rows(&x, &[2, 0], &mut out).unwrap();
        read(&cuda, &out)
    });
    assert_eq!(outs[0], outs[1]);
}

/// Gates of eights of outputs are made with the product; these are not.
#[test]
fn a_gate_of_any_width_is_what_it_is_apart_from_the_product() {
    let cuda = emulated(false);
    cuda.tuning.set(Tuning { product_parts: 1, ..Tuning::default() });
    for cols in [20, 24] {
        let (weights, x) =
            (matrix(&cuda, 2 * cols, 40), filled(&cuda, 40, Precision::F32, &[&eighths(80, 5)]));
        let [mut product, mut gated, mut apart] =
            [2 * cols, cols, cols].map(|cols| cuda.buf(2, cols).unwrap());
        cuda.linear_gated(Activation::Silu, &weights, &x, &mut product, &mut gated).unwrap();
        cuda.linear(&weights, &x, &mut product).unwrap();
        cuda.gated(Activation::Silu, &product, &mut apart).unwrap();
        assert_eq!(read(&cuda, &gated), read(&cuda, &apart), "{cols} columns");
    }
}

/// More columns than a block of a norm of many rows has threads for. All results lie between two numbers of bf16, so that
/// the last bit of the sum shows.
#[test]
fn a_row_is_normed_to_the_same_bits_among_many() {
    let cuda = emulated(true);
    let (cols, many) = (2400, cuda.device.processors().count + 1);
    for seed in 1..8 {
        let values: Vec<f32> = (0..cols).map(|i| 1.5 + (i as f32 * 0.37 * seed as f32).sin()).collect();
        let squares: f64 = values.iter().map(|x| f64::from(*x).powi(2)).sum();
        let (root, middle) = ((squares / cols as f64).sqrt(), 1.0 + 1.0 / 256.0);
        let weights = values.iter().map(|x| (middle * root / f64::from(*x)) as f32);
        let bytes: Vec<u8> = weights.flat_map(f32::to_le_bytes).collect();
        let weight = TensorRef::new(WeightDtype::F32, 1, cols, &bytes).unwrap();
        let weight = cuda.vector(weight, 0.0).unwrap();
        let normed = |rows: usize| {
            let x = filled(&cuda, cols, Precision::F32, &[&values.repeat(rows)]);
            let mut out = cuda.buf(rows, cols).unwrap();
            cuda.rms_norm(&x, NormSpec { weight: &weight, eps: 0.0 }, &mut out).unwrap();
            read(&cuda, &out)
        };
        assert!(normed(many)[..cols] == normed(1), "seed {seed}");
    }
}

#[test]
#[should_panic(expected = "tokens of 4 rows")]
fn a_token_that_the_table_does_not_have_is_refused() {
    let cuda = emulated(false);
    cuda.embed(&matrix(&cuda, 4, 16), &[3, 4], 1.0, &mut cuda.buf(2, 16).unwrap()).unwrap();
}

#[test]
#[should_panic(expected = "rows of 3")]
fn a_row_that_is_not_there_is_not_picked() {
    let cuda = emulated(false);
    let [_, x] = both(&cuda, 3, 16);
    cuda.pick_rows(&x, &[2, 3], &mut cuda.buf(2, 16).unwrap()).unwrap();
}

/// There is memory for it, of a larger batch before.
#[test]
#[should_panic(expected = "row 2 of 2")]
fn a_row_of_an_earlier_batch_is_not_read() {
    let cuda = emulated(false);
    let [_, mut x] = both(&cuda, 3, 16);
    cuda.resize(&mut x, 2).unwrap();
    cuda.read_row(&x, 2, &mut Vec::new()).unwrap();
}

#[test]
fn gates_add_short_parts() {
    let cuda = emulated(false);
    // More columns than a block has threads for, and some that fill no four.
    for (cols, act) in [(2060, Activation::Silu), (42, Activation::Gelu)] {
        let outs = both(&cuda, 2, 2 * cols).map(|product| {
            let mut out = cuda.buf(2, cols).unwrap();
            cuda.gated(act, &product, &mut out).unwrap();
            read(&cuda, &out)
        });
        assert_eq!(outs[0], outs[1]);
    }
}

#[test]
fn norms_add_short_parts() {
    let cuda = emulated(false);
    let cols = 136;
    let weights: Vec<u8> = eighths(cols, 3).into_iter().flat_map(f32::to_le_bytes).collect();
    let weight = TensorRef::new(WeightDtype::F32, 1, cols, &weights).unwrap();
    let weight = cuda.vector(weight, 0.5).unwrap();
    let norm = NormSpec { weight: &weight, eps: 1e-6 };
    for before in [None, Some(norm)] {
        let outs = both(&cuda, 3, cols).map(|delta| {
            let mut x = filled(&cuda, cols, Precision::F32, &[&eighths(3 * cols, 7)]);
            let mut out = cuda.buf(3, cols).unwrap();
            cuda.add_rms_norm(&mut x, &delta, before, norm, &mut out).unwrap();
            [read(&cuda, &x), read(&cuda, &out)]
        });
        assert_eq!(outs[0], outs[1]);
    }
}
