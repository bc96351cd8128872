use super::tile::TILE;
use crate::simd::Simd;

/// How the attention kernel reads one precision: elements are widened in registers, and what a row's parameters do
/// to them is applied to the row's score or weight instead, which is the same by the distributive law.
///
/// # Safety
/// As [`Simd`].
pub(crate) trait Element: Copy + 'static {
    const BYTES: usize;
    const SCALED: bool;
    const SHIFTED: bool;
    /// Stored parameters that neither scale by 0 nor shift.
    const UNIT: u32 = 0;

    /// `[LANES]` elements, without their row's parameters.
    unsafe fn widen<S: Simd>(p: *const u8) -> S::V;
    /// Scales and shifts from the stored parameters, little-endian: a stored row is `scale * widened + shift`.
    unsafe fn parameters<S: Simd>(_stored: &[u32; TILE]) -> [[f32; TILE]; 2] {
        [[1.0; TILE], [0.0; TILE]]
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
    const UNIT: u32 = 1.0f32.to_bits();
    const BYTES: usize = 1;
    const SCALED: bool = true;
    const SHIFTED: bool = false;
    #[inline(always)]
    unsafe fn widen<S: Simd>(p: *const u8) -> S::V {
        // SAFETY: as the caller promised.
        unsafe { S::fp8(p) }
    }
    #[inline(always)]
    unsafe fn parameters<S: Simd>(stored: &[u32; TILE]) -> [[f32; TILE]; 2] {
        let mut scales = [0.0; TILE];
        for (scale, bits) in scales.iter_mut().zip(stored) {
            // The factor is what `Simd::fp8` leaves out.
            *scale = f32::from_bits(*bits) * 256.0;
        }
        [scales, [0.0; TILE]]
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Int8;
impl Element for Int8 {
    const UNIT: u32 = half::f16::ONE.to_bits() as u32;
    const BYTES: usize = 1;
    const SCALED: bool = true;
    const SHIFTED: bool = true;
    #[inline(always)]
    unsafe fn widen<S: Simd>(p: *const u8) -> S::V {
        // SAFETY: as the caller promised.
        unsafe { S::u8(p) }
    }
    #[inline(always)]
    unsafe fn parameters<S: Simd>(stored: &[u32; TILE]) -> [[f32; TILE]; 2] {
        let mut halves = [[[0u8; 2]; TILE]; 2];
        for (i, bits) in stored.iter().enumerate() {
            halves[0][i] = (*bits as u16).to_le_bytes();
            halves[1][i] = ((bits >> 16) as u16).to_le_bytes();
        }
        let mut wide = [[0.0; TILE]; 2];
        for (wide, halves) in wide.iter_mut().zip(&halves) {
            for i in (0..TILE).step_by(S::LANES) {
                // SAFETY: LANES of TILE numbers, a multiple of LANES.
                unsafe { S::store(wide.as_mut_ptr().add(i), S::f16(halves.as_ptr().add(i).cast())) };
            }
        }
        wide
    }
}
