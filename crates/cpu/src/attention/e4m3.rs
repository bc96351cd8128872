//! fp8 as bf16, in registers: a byte becomes a word of the same sign, exponent and mantissa. The exponents have other
//! biases, so the word is the byte's number times 2^-120: see [`UNIT`].

use std::arch::x86_64::*;

/// What a word of 1 stands for.
pub(crate) const UNIT: f32 = f32::from_bits((120 + 127) << 23);

/// Words from the low and from the high bytes of 32 words. Bytes that are not a number become 480.
///
/// # Safety
/// AVX-512 BW.
#[inline(always)]
pub(crate) unsafe fn words(x: __m512i) -> [__m512i; 2] {
    // SAFETY: as the caller promised.
    unsafe {
        // seeeemmmxxxxxxxx -> ssssseeeemmmxxxx -> s0000eeeemmm0000.
        let kept = _mm512_set1_epi16(0x87f0_u16 as i16);
        let low = _mm512_srai_epi16::<4>(_mm512_slli_epi16::<8>(x));
        let high = _mm512_srai_epi16::<4>(x);
        [_mm512_and_si512(low, kept), _mm512_and_si512(high, kept)]
    }
}

/// Whether all bytes that were seen are numbers.
#[derive(Clone, Copy)]
pub(crate) struct Numbers(__m512i);

impl Numbers {
    /// # Safety
    /// AVX-512 F, as for all methods; BW.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        // SAFETY: as the caller promised.
        Self(unsafe { _mm512_setzero_si512() })
    }

    /// # Safety
    /// As [`new`](Self::new).
    #[inline(always)]
    pub(crate) unsafe fn see(&mut self, x: __m512i) {
        /// `a | (b ^ c)`.
        const OR_DIFFERENT: i32 = 0b1111_0110;
        // SAFETY: as the caller promised.
        unsafe {
            // The two that are none have all bits set behind the sign: one more changes it.
            let next = _mm512_add_epi8(x, _mm512_set1_epi8(1));
            self.0 = _mm512_ternarylogic_epi32::<OR_DIFFERENT>(self.0, x, next);
        }
    }

    /// # Safety
    /// As [`new`](Self::new).
    #[inline(always)]
    pub(crate) unsafe fn all(&self) -> bool {
        // SAFETY: as the caller promised.
        unsafe { _mm512_movepi8_mask(self.0) == 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_backend::codec::e4m3;

    /// All words that become of a vector of this byte.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn words_of(byte: u8) -> [[u16; 32]; 2] {
        // SAFETY: the instructions are there; vectors and arrays have the same size.
        unsafe { std::mem::transmute(words(_mm512_set1_epi8(byte as i8))) }
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn is_number(byte: u8) -> bool {
        // SAFETY: the instructions are there.
        unsafe {
            let mut numbers = Numbers::new();
            for other in [_mm512_setzero_si512(), _mm512_set1_epi8(-2), _mm512_set1_epi8(0x7e)] {
                numbers.see(_mm512_mask_mov_epi8(other, 1 << 63, _mm512_set1_epi8(byte as i8)));
                numbers.see(other);
            }
            numbers.all()
        }
    }

    fn has_instructions() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
    }

    #[test]
    fn every_number_becomes_the_same_one_in_units() {
        for byte in (0..=255).filter(|_| has_instructions()) {
            // SAFETY: just asked for.
            for word in unsafe { words_of(byte) }.into_iter().flatten() {
                let got = half::bf16::from_bits(word).to_f32() * UNIT;
                let number = e4m3::to_f32(byte);
                let want = if number.is_nan() { 480.0_f32.copysign(number) } else { number };
                assert_eq!(got.to_bits(), want.to_bits(), "{byte:#x}: {got} for {number}");
            }
        }
    }

    #[test]
    fn only_the_two_bytes_that_are_no_numbers_are_seen_as_none() {
        for byte in (0..=255).filter(|_| has_instructions()) {
            // SAFETY: just asked for.
            assert_eq!(unsafe { is_number(byte) }, !e4m3::to_f32(byte).is_nan(), "{byte:#x}");
        }
    }
}
