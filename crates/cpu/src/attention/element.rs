use crate::simd::Simd;
use half::f16;

/// How the attention kernel reads one precision: elements are widened in registers, and what a row's parameters do
/// to them is applied to the row's score or weight instead, which is the same by the distributive law.
///
/// # Safety
/// As [`Simd`]; `parameters` reads four bytes where there are any.
pub(crate) trait Element: Copy + 'static {
    const BYTES: usize;
    const SCALED: bool;
    const SHIFTED: bool;

    /// `[LANES]` elements, without their row's parameters.
    unsafe fn widen<S: Simd>(p: *const u8) -> S::V;
    /// A stored row is `scale * widened + shift`.
    unsafe fn parameters(_p: *const u8) -> (f32, f32) {
        (1.0, 0.0)
    }
}

macro_rules! plain {
    ($name:ident, $bytes:literal, $s:ident, $p:ident, $widen:expr) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name;
        impl Element for $name {
            const BYTES: usize = $bytes;
            const SCALED: bool = false;
            const SHIFTED: bool = false;
            #[inline(always)]
            unsafe fn widen<$s: Simd>($p: *const u8) -> $s::V {
                // SAFETY: as the caller promised.
                unsafe { $widen }
            }
        }
    };
}

plain!(F32, 4, S, p, S::load(p.cast()));
plain!(F16, 2, S, p, S::f16(p));
plain!(Bf16, 2, S, p, S::bf16(p));

#[derive(Clone, Copy)]
pub(crate) struct Fp8;
impl Element for Fp8 {
    const BYTES: usize = 1;
    const SCALED: bool = true;
    const SHIFTED: bool = false;
    #[inline(always)]
    unsafe fn widen<S: Simd>(p: *const u8) -> S::V {
        // SAFETY: as the caller promised.
        unsafe { S::fp8(p) }
    }
    #[inline(always)]
    unsafe fn parameters(p: *const u8) -> (f32, f32) {
        // SAFETY: four readable bytes.
        let scale = f32::from_le_bytes(unsafe { p.cast::<[u8; 4]>().read() });
        // The factor that `Simd::fp8` leaves out.
        (scale * 256.0, 0.0)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Int8;
impl Element for Int8 {
    const BYTES: usize = 1;
    const SCALED: bool = true;
    const SHIFTED: bool = true;
    #[inline(always)]
    unsafe fn widen<S: Simd>(p: *const u8) -> S::V {
        // SAFETY: as the caller promised.
        unsafe { S::u8(p) }
    }
    #[inline(always)]
    unsafe fn parameters(p: *const u8) -> (f32, f32) {
        // SAFETY: four readable bytes.
        let [a, b, c, d] = unsafe { p.cast::<[u8; 4]>().read() };
        (f16::from_le_bytes([a, b]).to_f32(), f16::from_le_bytes([c, d]).to_f32())
    }
}
