use super::Simd;
use std::arch::x86_64::*;

/// AVX2, FMA and F16C: eight lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// The lane i + 4 is added to lane i.
///
/// # Safety
/// AVX.
#[inline(always)]
unsafe fn halve(x: __m256) -> __m128 {
    // SAFETY: as the caller promised.
    unsafe { _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x)) }
}

// SAFETY (all methods): the trait's contract gives the instructions and the pointers' validity.
impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: as above, here and below.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        // SAFETY: eight readable f32.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: __m256) {
        // SAFETY: eight writable f32.
        unsafe { _mm256_storeu_ps(p, x) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: instructions only.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        // SAFETY: instructions only.
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: instructions only.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: instructions only.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        // SAFETY: instructions only.
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn zero_below(x: __m256, limit: f32, y: __m256) -> __m256 {
        // SAFETY: instructions only.
        unsafe { _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(x, _mm256_set1_ps(limit)), y) }
    }
    #[inline(always)]
    unsafe fn scale_by_power(y: __m256, rounded: __m256) -> __m256 {
        // SAFETY: instructions only.
        unsafe {
            let power = _mm256_slli_epi32::<23>(_mm256_castps_si256(rounded));
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), power))
        }
    }
    #[inline(always)]
    unsafe fn sum(x: __m256) -> f32 {
        // SAFETY: instructions only.
        unsafe {
            let x = halve(x);
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }
    }
    #[inline(always)]
    unsafe fn sum4(x: [__m256; 4]) -> [f32; 4] {
        // SAFETY: instructions, and a store to an array of four.
        unsafe {
            let [a, b, c, d] = [halve(x[0]), halve(x[1]), halve(x[2]), halve(x[3])];
            // Lanes 0, 1 of each, plus its lanes 2, 3.
            let ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
            let cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
            let even = _mm_shuffle_ps::<0b10_00_10_00>(ab, cd);
            let odd = _mm_shuffle_ps::<0b11_01_11_01>(ab, cd);
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), _mm_add_ps(even, odd));
            out
        }
    }
    #[inline(always)]
    unsafe fn largest(x: __m256) -> f32 {
        // SAFETY: instructions only.
        unsafe {
            let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        }
    }
    #[inline(always)]
    unsafe fn f16(p: *const u8) -> __m256 {
        // SAFETY: 16 readable bytes.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> __m256 {
        // SAFETY: 16 readable bytes.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn fp8(p: *const u8) -> __m256 {
        // SAFETY: 8 readable bytes.
        unsafe {
            // seeeemmm -> s0eeeemmm0000000, an f16 whose exponent is 8 too small.
            let wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(p.cast()));
            let f16 = _mm_and_si128(_mm_slli_epi16::<7>(wide), _mm_set1_epi16(0xbfffu16 as i16));
            _mm256_cvtph_ps(f16)
        }
    }
    #[inline(always)]
    unsafe fn u8(p: *const u8) -> __m256 {
        // SAFETY: 8 readable bytes.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: a hint; it never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
}
