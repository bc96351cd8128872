//! Encoding rows of keys and values, with the bits that [`octavo_backend::codec`] defines.
//!
//! The loops are plain Rust without branches, compiled once a level: the compiler makes vectors of them. Decoding
//! belongs to the attention kernel, which does it in registers.

mod rows;
#[cfg(test)]
mod tests;

use crate::Level;
use octavo_backend::codec;
use octavo_types::KvDtype;

/// Encodes one row of keys or values.
///
/// - `row`: `[head_dim]`
/// - `out`: `[head_dim]` elements
/// - `parameters`: `[dtype.parameter_bytes()]`
pub(crate) fn encode(level: Level, dtype: KvDtype, row: &[f32], out: &mut [u8], parameters: &mut [u8]) {
    assert!(level <= Level::detect(), "{level:?} on a machine without it");
    assert_eq!(out.len(), row.len() * codec::element_bytes(dtype), "bytes of {} elements", row.len());
    assert_eq!(parameters.len() as u64, dtype.parameter_bytes(), "parameter bytes of {dtype:?}");
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level, which includes these instructions.
        Level::Avx512 => unsafe { avx512(dtype, row, out, parameters) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level.
        Level::Avx2 => unsafe { avx2(dtype, row, out, parameters) },
        _ => rows::encode(dtype, row, out, parameters),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn avx512(dtype: KvDtype, row: &[f32], out: &mut [u8], parameters: &mut [u8]) {
    if dtype == KvDtype::F16 {
        return f16c(row, out);
    }
    rows::encode(dtype, row, out, parameters);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn avx2(dtype: KvDtype, row: &[f32], out: &mut [u8], parameters: &mut [u8]) {
    if dtype == KvDtype::F16 {
        return f16c(row, out);
    }
    rows::encode(dtype, row, out, parameters);
}

/// f16 by instruction, which rounds as the codec says.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx,f16c")]
#[inline]
fn f16c(row: &[f32], out: &mut [u8]) {
    use std::arch::x86_64::*;
    let (eights, rest) = row.as_chunks::<8>();
    let (bytes, rest_bytes) = out.split_at_mut(eights.len() * 16);
    for (x, out) in eights.iter().zip(bytes.as_chunks_mut::<16>().0) {
        // SAFETY: eight f32 are read, sixteen bytes written.
        unsafe {
            let narrow = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(x.as_ptr()));
            _mm_storeu_si128(out.as_mut_ptr().cast(), narrow);
        }
    }
    rows::encode(KvDtype::F16, rest, rest_bytes, &mut []);
}
