use super::{Asking, Lanes, Simd};
use std::arch::x86_64::*;

/// AVX-512 F, BW, DQ and VL: sixteen lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// The lanes i + 8 and then i + 4 are added to lane i.
///
/// # Safety
/// AVX-512 F and DQ.
#[inline(always)]
unsafe fn quarter(x: __m512) -> __m128 {
    // SAFETY: as the caller promised.
    unsafe {
        let y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
        _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps::<1>(y))
    }
}

/// Even numbers, then odd ones: brings pairs of words apart.
///
/// # Safety
/// AVX-512 F.
#[inline(always)]
unsafe fn apart() -> __m512i {
    const APART: [u16; 32] = {
        let mut at = [0; 32];
        let mut i = 0;
        while i < 32 {
            at[i] = (i % 16 * 2 + i / 16) as u16;
            i += 1;
        }
        at
    };
    // SAFETY: 64 readable bytes.
    unsafe { _mm512_loadu_si512(APART.as_ptr().cast()) }
}

// SAFETY (all methods): the trait's contract gives the instructions and the pointers' validity.
impl Simd for Avx512 {
    type V = __m512;
    const WIDE: bool = true;

    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn apart<R>(f: impl FnOnce() -> R) -> R {
        f()
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: as above, here and below.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: sixteen readable f32.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: __m512) {
        // SAFETY: sixteen writable f32.
        unsafe { _mm512_storeu_ps(p, x) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: instructions only.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: instructions only.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: instructions only.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: instructions only.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: instructions only.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn keep(lanes: Lanes, x: __m512, other: f32) -> __m512 {
        // SAFETY: instructions only.
        unsafe { _mm512_mask_mov_ps(_mm512_set1_ps(other), lanes, x) }
    }
    #[inline(always)]
    unsafe fn zero_below(x: __m512, limit: f32, y: __m512) -> __m512 {
        // SAFETY: instructions only.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(limit)), y) }
    }
    #[inline(always)]
    unsafe fn scale_by_power(y: __m512, rounded: __m512) -> __m512 {
        // SAFETY: instructions only.
        unsafe {
            let power = _mm512_slli_epi32::<23>(_mm512_castps_si512(rounded));
            _mm512_mul_ps(y, _mm512_castsi512_ps(power))
        }
    }
    #[inline(always)]
    unsafe fn sum(x: __m512) -> f32 {
        // SAFETY: instructions only.
        unsafe {
            let x = quarter(x);
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }
    }
    #[inline(always)]
    unsafe fn largest(x: __m512) -> f32 {
        // SAFETY: instructions only.
        unsafe { _mm512_reduce_max_ps(x) }
    }
    #[inline(always)]
    unsafe fn any_above(x: __m512, limit: f32) -> bool {
        // SAFETY: instructions only.
        unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, _mm512_set1_ps(limit)) != 0 }
    }
    #[inline(always)]
    unsafe fn f16(p: *const u8) -> __m512 {
        // SAFETY: 32 readable bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn f16_pairs(p: *const u8) -> [__m512; 2] {
        // SAFETY: 64 readable bytes.
        unsafe {
            let pairs = _mm512_permutexvar_epi16(apart(), _mm512_loadu_si512(p.cast()));
            let second = _mm512_extracti64x4_epi64::<1>(pairs);
            [_mm512_cvtph_ps(_mm512_castsi512_si256(pairs)), _mm512_cvtph_ps(second)]
        }
    }
    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> __m512 {
        // SAFETY: 32 readable bytes.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn fp8(p: *const u8) -> __m512 {
        // SAFETY: 16 readable bytes.
        unsafe {
            // seeeemmm -> s0eeeemmm0000000, an f16 whose exponent is 8 too small.
            let wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast()));
            let f16 = _mm256_and_si256(_mm256_slli_epi16::<7>(wide), _mm256_set1_epi16(0xbfffu16 as i16));
            let most = _mm256_set1_epi16(0x7f);
            let nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(wide, most), most);
            _mm512_cvtph_ps(_mm256_mask_mov_epi16(f16, nan, _mm256_set1_epi16(0x7e00)))
        }
    }
    #[inline(always)]
    unsafe fn u8(p: *const u8) -> __m512 {
        // SAFETY: 16 readable bytes.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8, asking: Asking) {
        // SAFETY: a hint; it never faults.
        unsafe {
            match asking {
                Asking::Near => _mm_prefetch::<_MM_HINT_T0>(p.cast()),
                Asking::Far => _mm_prefetch::<_MM_HINT_T1>(p.cast()),
            }
        }
    }
}
