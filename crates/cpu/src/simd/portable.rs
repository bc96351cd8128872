use super::Simd;
use half::{bf16, f16};

/// Plain Rust, four lanes: what every compiler target turns into its own vectors.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn map2(a: [f32; 4], b: [f32; 4], f: impl Fn(f32, f32) -> f32) -> [f32; 4] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    // Where the instruction is missing, `mul_add` is a call.
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) { a.mul_add(b, c) } else { a * b + c }
}

// SAFETY (all methods): only the pointers' validity is asked for, and the trait's contract gives it.
impl Simd for Portable {
    type V = [f32; 4];
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 4] {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> [f32; 4] {
        // SAFETY: four readable f32.
        unsafe { p.cast::<[f32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: [f32; 4]) {
        // SAFETY: four writable f32.
        unsafe { p.cast::<[f32; 4]>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn add(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn fma(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| fused(a[i], b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn max(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn zero_below(x: [f32; 4], limit: f32, y: [f32; 4]) -> [f32; 4] {
        map2(x, y, |x, y| if x < limit { 0.0 } else { y })
    }
    #[inline(always)]
    unsafe fn scale_by_power(y: [f32; 4], rounded: [f32; 4]) -> [f32; 4] {
        map2(y, rounded, |y, n| f32::from_bits(y.to_bits().wrapping_add(n.to_bits() << 23)))
    }
    #[inline(always)]
    unsafe fn sum(x: [f32; 4]) -> f32 {
        (x[0] + x[2]) + (x[1] + x[3])
    }
    #[inline(always)]
    unsafe fn sum4(x: [[f32; 4]; 4]) -> [f32; 4] {
        // SAFETY: as for this method.
        x.map(|x| unsafe { Self::sum(x) })
    }
    #[inline(always)]
    unsafe fn largest(x: [f32; 4]) -> f32 {
        x.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn f16(p: *const u8) -> [f32; 4] {
        // SAFETY: four readable f16.
        let x = unsafe { p.cast::<[[u8; 2]; 4]>().read_unaligned() };
        x.map(|b| f16::from_le_bytes(b).to_f32())
    }
    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> [f32; 4] {
        // SAFETY: four readable bf16.
        let x = unsafe { p.cast::<[[u8; 2]; 4]>().read_unaligned() };
        x.map(|b| bf16::from_le_bytes(b).to_f32())
    }
    #[inline(always)]
    unsafe fn fp8(p: *const u8) -> [f32; 4] {
        // SAFETY: four readable bytes.
        let x = unsafe { p.cast::<[u8; 4]>().read_unaligned() };
        // As bits of an f32 the exponent is 120 too small; 2^112 leaves the division by 256. Numbers without an
        // exponent would be subnormal here, so they are taken as integers.
        x.map(|b| {
            let (sign, magnitude) = (u32::from(b & 0x80) << 24, u32::from(b & 0x7f));
            let value = if magnitude < 8 {
                magnitude as f32 * (1.0 / 512.0 / 256.0)
            } else {
                f32::from_bits((magnitude << 20) + (112 << 23))
            };
            f32::from_bits(value.to_bits() | sign)
        })
    }
    #[inline(always)]
    unsafe fn u8(p: *const u8) -> [f32; 4] {
        // SAFETY: four readable bytes.
        unsafe { p.cast::<[u8; 4]>().read_unaligned() }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}
}
