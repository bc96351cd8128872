//! How keys and values are stored.
//!
//! A *row* is one head's key (or value) of one token: `head_dim` numbers. Each row is encoded by itself, so that a
//! token's stored bits depend on nothing but its own key or value.
//!
//! | precision | element, little-endian | parameters of a row | decoded value |
//! |---|---|---|---|
//! | f32 | 4 bytes | none | the same bits |
//! | f16, bf16 | 2 bytes, rounded to nearest even | none | widened |
//! | fp8 | E4M3, 1 byte | `scale: f32` | `e4m3(byte) * scale`, one f32 product ([`fp8`]) |
//! | int8 | unsigned, 1 byte | `scale: f16`, `zero: f16` | `scale * q + zero`, see [`int8`] |
//!
//! The definitions are exact: every back end stores the same bits for the same row (NaNs aside, of which only
//! NaN-ness is promised), and decodes to the same f32. They use only operations that vector units round like this
//! code does: add, subtract, multiply, divide, minimum, maximum, round to nearest even. Nothing may be flushed to
//! zero.
//!
//! What is not finite:
//! - f32, f16, bf16 keep infinities and NaNs; f16 turns magnitudes from 65520 up into infinities, as IEEE says.
//! - fp8 keeps NaNs; infinities saturate to the row's largest finite magnitude (448 where the scale is 1 for want of
//!   one).
//! - int8 has no NaN: one NaN makes the whole row decode to NaN, so that it is never hidden. Infinities saturate to
//!   the row's smallest and largest finite value.

pub mod e4m3;
pub mod fp8;
pub mod int8;

use half::{bf16, f16};
use octavo_types::KvDtype;

/// Encodes one row. `out` has as many bytes as the row needs, `params` as many as `dtype.parameter_bytes()`; other
/// lengths panic.
pub fn encode(dtype: KvDtype, row: &[f32], out: &mut [u8], params: &mut [u8]) {
    check(dtype, row.len(), out.len(), params.len());
    match dtype {
        KvDtype::F32 => each(out, row, |x| x.to_le_bytes()),
        KvDtype::F16 => each(out, row, |x| f16::from_f32(x).to_le_bytes()),
        KvDtype::Bf16 => each(out, row, |x| bf16::from_f32(x).to_le_bytes()),
        KvDtype::Fp8 => {
            let scale = fp8::scale(row);
            params.copy_from_slice(&scale.to_le_bytes());
            each(out, row, |x| [e4m3::from_f32(x / scale)]);
        }
        KvDtype::Int8 => {
            let parameters = int8::Parameters::of(row);
            params.copy_from_slice(&parameters.to_le_bytes());
            each(out, row, |x| [parameters.quantise(x)]);
        }
    }
}

/// Decodes one row, the inverse of [`encode`] up to rounding. Lengths as there.
pub fn decode(dtype: KvDtype, bytes: &[u8], params: &[u8], out: &mut [f32]) {
    check(dtype, out.len(), bytes.len(), params.len());
    match dtype {
        KvDtype::F32 => widen(bytes, out, f32::from_le_bytes),
        KvDtype::F16 => widen(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        KvDtype::Bf16 => widen(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        KvDtype::Fp8 => {
            let scale = f32::from_le_bytes([params[0], params[1], params[2], params[3]]);
            widen(bytes, out, |[b]| e4m3::TO_F32[usize::from(b)] * scale);
        }
        KvDtype::Int8 => {
            let parameters = int8::Parameters::from_le_bytes([params[0], params[1], params[2], params[3]]);
            let (scale, zero) = (parameters.scale.to_f32(), parameters.zero.to_f32());
            widen(bytes, out, |[q]| int8::dequantise(scale, zero, q));
        }
    }
}

/// Bytes of one element.
pub fn element_bytes(dtype: KvDtype) -> usize {
    match dtype {
        KvDtype::F32 => 4,
        KvDtype::F16 | KvDtype::Bf16 => 2,
        KvDtype::Fp8 | KvDtype::Int8 => 1,
    }
}

fn check(dtype: KvDtype, elements: usize, bytes: usize, params: usize) {
    assert_eq!(bytes, elements * element_bytes(dtype), "bytes of {elements} elements of {dtype:?}");
    assert_eq!(params as u64, dtype.parameter_bytes(), "parameter bytes of {dtype:?}");
}

fn each<const N: usize>(out: &mut [u8], row: &[f32], bytes: impl Fn(f32) -> [u8; N]) {
    for (out, &x) in out.as_chunks_mut::<N>().0.iter_mut().zip(row) {
        *out = bytes(x);
    }
}

fn widen<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (out, &b) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *out = value(b);
    }
}
