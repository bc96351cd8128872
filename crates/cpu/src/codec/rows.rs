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

/// As [`fp8::scale`](octavo_backend::codec::fp8::scale). Magnitudes are compared as their bits: infinity is above all
/// numbers, and what is no number above that.
#[inline(always)]
fn fp8_scale(row: &[f32]) -> f32 {
    const PARTS: usize = 16;
    const INFINITY: u32 = f32::INFINITY.to_bits();
    let (mut largest, mut finite) = ([0; PARTS], [0; PARTS]);
    for part in row.chunks(PARTS) {
        for (i, x) in part.iter().enumerate() {
            let x = x.abs().to_bits();
            largest[i] = largest[i].max(x);
            finite[i] = finite[i].max(if x < INFINITY { x } else { 0 });
        }
    }
    let most = |parts: [u32; PARTS]| parts.into_iter().fold(0, u32::max);
    if most(largest) > INFINITY {
        return f32::NAN;
    }
    let scale = f32::from_bits(most(finite)) / e4m3::MAX;
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
