use crate::keys::FOUR;
use crate::simd::{LANES, Simd};

/// How one precision is read into f32: elements are widened in registers, and what a row's parameters do to them is
/// applied to the row's score or weight instead, which is the same by the distributive law.
///
/// # Safety
/// As [`Simd`].
pub(crate) trait Element: Copy + 'static {
    const BYTES: usize;
    const SCALED: bool = false;
    const SHIFTED: bool = false;

    /// `[LANES]` elements, without their row's parameters.
    unsafe fn widen<S: Simd>(p: *const u8) -> S::V;
    /// Four elements of `[LANES]` keys in the order of a tile: the first of each, the second, and so on.
    #[inline(always)]
    unsafe fn widen_keys<S: Simd>(p: *const u8) -> [S::V; FOUR] {
        // SAFETY: as the caller promised.
        unsafe {
            let bytes = if Self::BYTES == 1 { apart(p) } else { [[0; LANES]; FOUR] };
            let from = if Self::BYTES == 1 { bytes.as_ptr().cast() } else { p };
            let mut keys = [S::splat(0.0); FOUR];
            for (i, key) in keys.iter_mut().enumerate() {
                *key = Self::widen::<S>(from.add(i * LANES * Self::BYTES));
            }
            keys
        }
    }
    /// Scales and shifts of `[LANES]` rows from their stored parameters: a stored row is `scale * widened + shift`.
    unsafe fn parameters<S: Simd>(_stored: *const u8) -> [S::V; 2] {
        // SAFETY: as the caller promised.
        unsafe { [S::splat(1.0), S::splat(0.0)] }
    }
}

/// Bytes of sixteen keys, four of each together: the first of each, the second, and so on.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn apart(p: *const u8) -> [[u8; LANES]; FOUR] {
    // SAFETY: as the caller promised.
    let keys = unsafe { p.cast::<[[u8; FOUR]; LANES]>().read_unaligned() };
    let mut apart = [[0; LANES]; FOUR];
    // By shifts of whole words, which are instructions on vectors.
    for (j, apart) in apart.iter_mut().enumerate() {
        for (key, byte) in keys.iter().zip(apart) {
            *byte = (u32::from_le_bytes(*key) >> (8 * j)) as u8;
        }
    }
    apart
}

macro_rules! plain {
    ($name:ident, $bytes:literal, $s:ident, $p:ident, $widen:expr) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name;
        impl Element for $name {
            const BYTES: usize = $bytes;
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
    #[inline(always)]
    unsafe fn widen<S: Simd>(p: *const u8) -> S::V {
        // SAFETY: as the caller promised.
        unsafe { S::fp8(p) }
    }
    #[inline(always)]
    unsafe fn parameters<S: Simd>(stored: *const u8) -> [S::V; 2] {
        // SAFETY: as the caller promised. The factor is what `Simd::fp8` leaves out.
        unsafe { [S::mul(S::load(stored.cast()), S::splat(256.0)), S::splat(0.0)] }
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
    unsafe fn parameters<S: Simd>(stored: *const u8) -> [S::V; 2] {
        // SAFETY: as the caller promised.
        unsafe { S::f16_pairs(stored) }
    }
}
