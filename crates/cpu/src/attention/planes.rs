//! int8 and fp8 elements as planes of bytes, for AVX-512 with VNNI and VBMI: an element is `high`, or
//! `high + low / 256` of its [`Planes::UNIT`].

use super::element::{Element, Fp8, Int8};
use crate::simd::{Avx512, Simd};
use octavo_backend::codec::e4m3;
use std::arch::x86_64::*;

/// # Safety
/// AVX-512 F, BW, VNNI and VBMI, for all methods.
pub(crate) trait Planes: 'static {
    /// Whether there is a low byte.
    const LOW: bool;
    const SHIFTED: bool;
    /// What a high byte of 1 stands for.
    const UNIT: f32;

    /// Scales and shifts from the stored parameters of a tile.
    unsafe fn parameters(stored: *const u8) -> [__m512; 2];
    /// High and low bytes of keys, each plus 128. `worst` gathers what [`number`](Self::number) asks for.
    unsafe fn keys(x: __m512i, worst: &mut __m512i) -> [__m512i; 2];
    /// High and low bytes of values, signed.
    unsafe fn values(x: __m512i, worst: &mut __m512i) -> [__m512i; 2];
    /// Whether all elements were numbers.
    unsafe fn numbers(worst: __m512i) -> bool;
    /// Whether this element is one.
    fn number(x: u8) -> bool;
}

impl Planes for Int8 {
    const LOW: bool = false;
    const SHIFTED: bool = true;
    const UNIT: f32 = 1.0;

    #[inline(always)]
    unsafe fn parameters(stored: *const u8) -> [__m512; 2] {
        // SAFETY: as the caller promised.
        unsafe {
            let [scale, shift] = <Self as Element>::parameters::<Avx512>(stored);
            // Elements are read less 128, so that errors of queries and weights weigh less.
            [scale, Avx512::fma(scale, Avx512::splat(128.0), shift)]
        }
    }
    #[inline(always)]
    unsafe fn keys(x: __m512i, _worst: &mut __m512i) -> [__m512i; 2] {
        [x, x]
    }
    #[inline(always)]
    unsafe fn values(x: __m512i, _worst: &mut __m512i) -> [__m512i; 2] {
        // SAFETY: as the caller promised.
        let x = unsafe { _mm512_xor_si512(x, _mm512_set1_epi8(-128)) };
        [x, x]
    }
    #[inline(always)]
    unsafe fn numbers(_worst: __m512i) -> bool {
        true
    }
    fn number(_x: u8) -> bool {
        true
    }
}

/// 256 / [`Planes::UNIT`] of fp8, whose largest number is 448: numbers from 32 on are multiples of the unit, so that
/// their low byte is 0 and what is left out of products is little.
const STEPS: u32 = 64;
/// The high byte that is that of no number.
const NOT_A_NUMBER: i8 = 127;

/// A byte for each magnitude, in two halves.
#[repr(C, align(64))]
struct Table([[u8; 64]; 2]);

impl Table {
    /// # Safety
    /// AVX-512 F.
    #[inline(always)]
    unsafe fn half(&self, half: usize) -> __m512i {
        // SAFETY: 64 aligned bytes.
        unsafe { _mm512_load_si512(self.0[half].as_ptr().cast()) }
    }
}

/// High and low bytes of all magnitudes, each plus `plus`.
const fn tables(plus: u8) -> [Table; 2] {
    let mut all = [const { Table([[0; 64]; 2]) }; 2];
    let mut i = 0;
    while i < 127 {
        // The number is `exact` / 512.
        let (exponent, mantissa) = (i as u32 / 8, i as u32 % 8);
        let exact = if exponent == 0 { mantissa } else { (mantissa + 8) << (exponent - 1) };
        let steps = ((exact * STEPS + 256) / 512) as i32;
        let high = (steps + 128) >> 8;
        let low = match steps - 256 * high {
            // There is no 128 to change its sign to: one step less, for eight of the numbers.
            -128 => -127,
            low => low,
        };
        all[0].0[i / 64][i % 64] = (high as u8).wrapping_add(plus);
        all[1].0[i / 64][i % 64] = (low as u8).wrapping_add(plus);
        i += 1;
    }
    all[0].0[1][63] = (NOT_A_NUMBER as u8).wrapping_add(plus);
    all[1].0[1][63] = plus;
    all
}

static KEYS: [Table; 2] = tables(128);
static VALUES: [Table; 2] = tables(0);

/// The bytes of 64 elements.
///
/// # Safety
/// AVX-512 BW and VBMI.
#[inline(always)]
unsafe fn look_up(tables: &[Table; 2], x: __m512i, worst: &mut __m512i) -> [__m512i; 2] {
    // SAFETY: as the caller promised.
    unsafe {
        let high = _mm512_permutex2var_epi8(tables[0].half(0), x, tables[0].half(1));
        let low = _mm512_permutex2var_epi8(tables[1].half(0), x, tables[1].half(1));
        *worst = _mm512_max_epu8(*worst, high);
        let (negative, zero) = (_mm512_movepi8_mask(x), _mm512_setzero_si512());
        // With 128 added, too: 0 - (128 + byte) is 128 - byte.
        [_mm512_mask_sub_epi8(high, negative, zero, high), _mm512_mask_sub_epi8(low, negative, zero, low)]
    }
}

impl Planes for Fp8 {
    const LOW: bool = true;
    const SHIFTED: bool = false;
    const UNIT: f32 = 256.0 / STEPS as f32;

    #[inline(always)]
    unsafe fn parameters(stored: *const u8) -> [__m512; 2] {
        // SAFETY: as the caller promised.
        unsafe { [_mm512_loadu_ps(stored.cast()), _mm512_setzero_ps()] }
    }
    #[inline(always)]
    unsafe fn keys(x: __m512i, worst: &mut __m512i) -> [__m512i; 2] {
        // SAFETY: as the caller promised.
        unsafe { look_up(&KEYS, x, worst) }
    }
    #[inline(always)]
    unsafe fn values(x: __m512i, worst: &mut __m512i) -> [__m512i; 2] {
        // SAFETY: as the caller promised.
        unsafe { look_up(&VALUES, x, worst) }
    }
    #[inline(always)]
    unsafe fn numbers(worst: __m512i) -> bool {
        // Neither table has a larger one: with 128 added it is 255, and without no other is above it.
        // SAFETY: as the caller promised.
        unsafe {
            let marked = _mm512_or_si512(worst, _mm512_set1_epi8(-128));
            _mm512_cmpeq_epi8_mask(marked, _mm512_set1_epi8(-1)) == 0
        }
    }
    fn number(x: u8) -> bool {
        !e4m3::to_f32(x).is_nan()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_hold_every_number_of_fp8_to_half_a_step_and_eight_to_one() {
        for magnitude in 0..127u8 {
            let at = |table: &Table| table.0[usize::from(magnitude / 64)][usize::from(magnitude % 64)];
            let (high, low) = (at(&VALUES[0]) as i8, at(&VALUES[1]) as i8);
            assert!(low != i8::MIN && high < NOT_A_NUMBER, "{magnitude}");
            let got = (f32::from(high) + f32::from(low) / 256.0) * Fp8::UNIT;
            let want = e4m3::to_f32(magnitude);
            let step = if want % 4.0 == 2.0 { 1.0 } else { 0.5 };
            assert!((got - want).abs() <= step / STEPS as f32, "{got} for {want}");
            assert!(want < 32.0 || got == want, "{got} for {want}");
            assert_eq!((at(&KEYS[0]), at(&KEYS[1])), ((high as u8) ^ 0x80, (low as u8) ^ 0x80));
        }
    }

    #[test]
    fn only_the_two_nans_of_fp8_are_no_numbers() {
        let not: Vec<u8> = (0..=255).filter(|x| !Fp8::number(*x)).collect();
        assert_eq!(not, [0x7f, 0xff]);
    }
}
