//! fp8 as bf16, in registers: a byte becomes a word of the same sign, exponent and mantissa. The exponents have other
//! biases, so the word is the byte's number times 2^-120: see [`UNIT`].

use std::arch::x86_64::*;

/// What a word of 1 stands for.
pub(crate) const UNIT: f32 = f32::from_bits((120 + 127) << 23);

/// Words from the low and from the high bytes of 32 words. The two bytes that are no numbers become 480: their
/// rows' scales are none.
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
}
