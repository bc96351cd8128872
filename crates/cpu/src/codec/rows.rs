use half::f16;
use octavo_backend::codec::{e4m3, int8};
use octavo_types::KvDtype;

/// One row; the lengths fit.
#[inline(always)]
pub(super) fn encode(dtype: KvDtype, row: &[f32], out: &mut [u8], parameters: &mut [u8]) {
    match dtype {
        KvDtype::F32 => each(out, row, |x| x.to_le_bytes()),
        KvDtype::F16 => each(out, row, |x| f16::from_f32(x).to_le_bytes()),
        KvDtype::Bf16 => each(out, row, |x| bf16(x).to_le_bytes()),
        KvDtype::Fp8 => {
            let scale = fp8_scale(row);
            parameters.copy_from_slice(&scale.to_le_bytes());
            each(out, row, |x| [fp8(x / scale)]);
        }
        KvDtype::Int8 => {
            let p = int8::Parameters::of(row);
            parameters.copy_from_slice(&p.to_le_bytes());
            let (scale, zero) = (p.scale.to_f32(), p.zero.to_f32());
            if scale == 0.0 {
                out.fill(0);
            } else {
                each(out, row, |x| [((x - zero) / scale).round_ties_even().clamp(0.0, 255.0) as u8]);
            }
        }
    }
}

#[inline(always)]
fn each<const N: usize>(out: &mut [u8], row: &[f32], bytes: impl Fn(f32) -> [u8; N]) {
    for (out, &x) in out.as_chunks_mut::<N>().0.iter_mut().zip(row) {
        *out = bytes(x);
    }
}

/// To nearest even; a NaN stays one.
#[inline(always)]
fn bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x40;
    (if x.is_nan() { nan } else { rounded }) as u16
}

#[inline(always)]
fn fp8_scale(row: &[f32]) -> f32 {
    const PARTS: usize = 16;
    let mut largest = [0.0f32; PARTS];
    let (whole, rest) = row.as_chunks::<PARTS>();
    let larger = |a: f32, x: f32| {
        let x = x.abs();
        if x > a && x < f32::INFINITY { x } else { a }
    };
    for x in whole {
        for i in 0..PARTS {
            largest[i] = larger(largest[i], x[i]);
        }
    }
    let amax = rest.iter().chain(&largest).fold(0.0, |a, x| larger(a, *x));
    let scale = amax / e4m3::MAX;
    if scale < f32::MIN_POSITIVE { 1.0 } else { scale }
}

/// As [`e4m3::from_f32`], computing both of its cases.
#[inline(always)]
fn fp8(x: f32) -> u8 {
    let bits = x.to_bits();
    let magnitude = f32::from_bits(bits & 0x7fff_ffff);
    let magnitude = if magnitude > e4m3::MAX { e4m3::MAX } else { magnitude };
    // Adding 1.5 · 2²³ rounds to an integer, ties to even, and leaves it in the low bits.
    let small = (magnitude * 512.0 + 12_582_912.0).to_bits() & 0xff;
    let b = magnitude.to_bits().wrapping_sub(120 << 23);
    let large = b.wrapping_add(0x7_ffff + ((b >> 20) & 1)) >> 20;
    let rounded = if magnitude < 1.0 / 64.0 { small } else { large };
    let signed = rounded | ((bits >> 24) & 0x80);
    (if x.is_nan() { 0x7f } else { signed }) as u8
}
