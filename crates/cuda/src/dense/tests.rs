//! Products of many rows are short and may be in parts; with numbers that are exact in both, what reads them gives the
//! same as for whole ones.

use super::*;
use crate::emulated::emulated;
use crate::memory::bytes_of;
use half::bf16;
use octavo_backend::{Backend, TensorRef, WeightDtype};

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

fn read(cuda: &Cuda, buf: &CudaBuf) -> Vec<f32> {
    let mut values = Vec::new();
    cuda.read(buf, &mut values).unwrap();
    values
}

#[test]
fn short_parts_are_read_as_their_sum() {
    let cuda = emulated(false);
    let [short, whole] = both(&cuda, 3, 40);
    assert_eq!(read(&cuda, &short), read(&cuda, &whole));
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
