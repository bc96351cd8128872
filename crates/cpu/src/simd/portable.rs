use super::{Asking, LANES, Lanes, Simd};
use half::{bf16, f16};
use std::array::from_fn;

/// Plain Rust: what every compiler target turns into its own vectors.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

type V = [f32; LANES];

#[inline(always)]
fn map2(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
    from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    // Where the instruction is missing, `mul_add` is a call.
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) { a.mul_add(b, c) } else { a * b + c }
}

/// `[LANES]` of what `p` points to.
///
/// # Safety
/// They are readable, and any bytes are a `T`.
#[inline(always)]
unsafe fn read<T: Copy>(p: *const u8) -> [T; LANES] {
    // SAFETY: as the caller promised.
    unsafe { p.cast::<[T; LANES]>().read_unaligned() }
}

// SAFETY (all methods): only the pointers' validity is asked for, and the trait's contract gives it.
impl Simd for Portable {
    type V = V;
    const WIDE: bool = false;

    #[inline(never)]
    unsafe fn apart<R>(f: impl FnOnce() -> R) -> R {
        f()
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> V {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> V {
        // SAFETY: as the caller promised.
        unsafe { read(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: V) {
        // SAFETY: sixteen writable f32.
        unsafe { p.cast::<V>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn add(a: V, b: V) -> V {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: V, b: V) -> V {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: V, b: V) -> V {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn max(a: V, b: V) -> V {
        map2(a, b, f32::max)
    }
    #[inline(always)]
    unsafe fn fma(a: V, b: V, c: V) -> V {
        from_fn(|i| fused(a[i], b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn keep(lanes: Lanes, x: V, other: f32) -> V {
        from_fn(|i| if lanes & (1 << i) == 0 { other } else { x[i] })
    }
    #[inline(always)]
    unsafe fn zero_below(x: V, limit: f32, y: V) -> V {
        map2(x, y, |x, y| if x < limit { 0.0 } else { y })
    }
    #[inline(always)]
    unsafe fn scale_by_power(y: V, rounded: V) -> V {
        map2(y, rounded, |y, n| y * f32::from_bits(n.to_bits() << 23))
    }
    #[inline(always)]
    unsafe fn sum(x: V) -> f32 {
        let x: [f32; 8] = from_fn(|i| x[i] + x[i + 8]);
        let x: [f32; 4] = from_fn(|i| x[i] + x[i + 4]);
        (x[0] + x[2]) + (x[1] + x[3])
    }
    #[inline(always)]
    unsafe fn largest(x: V) -> f32 {
        x.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn any_above(x: V, limit: f32) -> bool {
        x.into_iter().any(|x| x > limit)
    }
    #[inline(always)]
    unsafe fn f16(p: *const u8) -> V {
        // SAFETY: as the caller promised.
        unsafe { read(p) }.map(|b| f16::from_le_bytes(b).to_f32())
    }
    #[inline(always)]
    unsafe fn f16_pairs(p: *const u8) -> [V; 2] {
        // SAFETY: as the caller promised.
        let pairs = unsafe { read::<[[u8; 2]; 2]>(p) };
        [0, 1].map(|i| pairs.map(|pair| f16::from_le_bytes(pair[i]).to_f32()))
    }
    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> V {
        // SAFETY: as the caller promised.
        unsafe { read(p) }.map(|b| bf16::from_le_bytes(b).to_f32())
    }
    #[inline(always)]
    unsafe fn fp8(p: *const u8) -> V {
        // As bits of an f32 the exponent is 120 too small; 2^112 leaves the division by 256. Numbers without an
        // exponent would be subnormal here, so they are taken as integers.
        // SAFETY: as the caller promised.
        unsafe { read::<u8>(p) }.map(|b| {
            let (sign, magnitude) = (u32::from(b & 0x80) << 24, u32::from(b & 0x7f));
            let value = if magnitude == 0x7f {
                f32::NAN
            } else if magnitude < 8 {
                magnitude as f32 * (1.0 / 512.0 / 256.0)
            } else {
                f32::from_bits((magnitude << 20) + (112 << 23))
            };
            f32::from_bits(value.to_bits() | sign)
        })
    }
    #[inline(always)]
    unsafe fn u8(p: *const u8) -> V {
        // SAFETY: as the caller promised.
        unsafe { read::<u8>(p) }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn prefetch(_p: *const u8, _asking: Asking) {}
}
