use super::{Asking, Lanes, Simd};
use std::arch::x86_64::*;
use std::array::from_fn;

/// AVX2, FMA and F16C: sixteen lanes in two registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

type V = [__m256; 2];

/// The lanes i + 8 and then i + 4 are added to lane i.
///
/// # Safety
/// AVX.
#[inline(always)]
unsafe fn quarter(x: V) -> __m128 {
    // SAFETY: as the caller promised.
    unsafe {
        let y = _mm256_add_ps(x[0], x[1]);
        _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps::<1>(y))
    }
}

// SAFETY (all methods): the trait's contract gives the instructions and the pointers' validity.
impl Simd for Avx2 {
    type V = V;
    const WIDE: bool = false;

    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn apart<R>(f: impl FnOnce() -> R) -> R {
        f()
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> V {
        // SAFETY: as above, here and below.
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> V {
        // SAFETY: sixteen readable f32.
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: V) {
        // SAFETY: sixteen writable f32.
        unsafe {
            _mm256_storeu_ps(p, x[0]);
            _mm256_storeu_ps(p.add(8), x[1]);
        }
    }
    #[inline(always)]
    unsafe fn add(a: V, b: V) -> V {
        // SAFETY: instructions only.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn sub(a: V, b: V) -> V {
        // SAFETY: instructions only.
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn mul(a: V, b: V) -> V {
        // SAFETY: instructions only.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn max(a: V, b: V) -> V {
        // SAFETY: instructions only.
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn fma(a: V, b: V, c: V) -> V {
        // SAFETY: instructions only.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn keep(lanes: Lanes, x: V, other: f32) -> V {
        // SAFETY: instructions only.
        from_fn(|i| unsafe {
            let bits = _mm256_sllv_epi32(_mm256_set1_epi32(1), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
            let kept = _mm256_and_si256(_mm256_set1_epi32(i32::from(lanes) >> (i * 8)), bits);
            let kept = _mm256_castsi256_ps(_mm256_cmpeq_epi32(kept, bits));
            _mm256_blendv_ps(_mm256_set1_ps(other), x[i], kept)
        })
    }
    #[inline(always)]
    unsafe fn zero_below(x: V, limit: f32, y: V) -> V {
        // SAFETY: instructions only.
        from_fn(|i| unsafe { _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(x[i], _mm256_set1_ps(limit)), y[i]) })
    }
    #[inline(always)]
    unsafe fn scale_by_power(y: V, rounded: V) -> V {
        // SAFETY: instructions only.
        from_fn(|i| unsafe {
            let power = _mm256_slli_epi32::<23>(_mm256_castps_si256(rounded[i]));
            _mm256_mul_ps(y[i], _mm256_castsi256_ps(power))
        })
    }
    #[inline(always)]
    unsafe fn sum(x: V) -> f32 {
        // SAFETY: instructions only.
        unsafe {
            let x = quarter(x);
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }
    }
    #[inline(always)]
    unsafe fn largest(x: V) -> f32 {
        // SAFETY: instructions only.
        unsafe {
            let x = _mm256_max_ps(x[0], x[1]);
            let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        }
    }
    #[inline(always)]
    unsafe fn any_above(x: V, limit: f32) -> bool {
        // SAFETY: instructions only.
        unsafe {
            let above = x.map(|x| _mm256_cmp_ps::<_CMP_GT_OQ>(x, _mm256_set1_ps(limit)));
            _mm256_movemask_ps(_mm256_or_ps(above[0], above[1])) != 0
        }
    }
    #[inline(always)]
    unsafe fn f16(p: *const u8) -> V {
        // SAFETY: 32 readable bytes.
        from_fn(|i| unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.add(i * 16).cast())) })
    }
    #[inline(always)]
    unsafe fn f16_pairs(p: *const u8) -> [V; 2] {
        // SAFETY: 64 readable bytes.
        unsafe {
            let pairs: [__m256i; 2] = from_fn(|i| _mm256_loadu_si256(p.add(i * 32).cast()));
            let narrow = |x: __m256i| {
                // The words are below 2¹⁶, so nothing saturates; the quarters come interleaved.
                let packed = _mm256_packus_epi32(x, x);
                _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b10_00_10_00>(packed)))
            };
            [
                pairs.map(|x| narrow(_mm256_and_si256(x, _mm256_set1_epi32(0xffff)))),
                pairs.map(|x| narrow(_mm256_srli_epi32::<16>(x))),
            ]
        }
    }
    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> V {
        // SAFETY: 32 readable bytes.
        from_fn(|i| unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(i * 16).cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        })
    }
    #[inline(always)]
    unsafe fn fp8(p: *const u8) -> V {
        // SAFETY: 16 readable bytes.
        from_fn(|i| unsafe {
            // seeeemmm -> s0eeeemmm0000000, an f16 whose exponent is 8 too small.
            let wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(p.add(i * 8).cast()));
            let f16 = _mm_and_si128(_mm_slli_epi16::<7>(wide), _mm_set1_epi16(0xbfffu16 as i16));
            let most = _mm_set1_epi16(0x7f);
            let nan = _mm_cmpeq_epi16(_mm_and_si128(wide, most), most);
            _mm256_cvtph_ps(_mm_or_si128(f16, _mm_and_si128(nan, _mm_set1_epi16(0x7e00))))
        })
    }
    #[inline(always)]
    unsafe fn u8(p: *const u8) -> V {
        // SAFETY: 16 readable bytes.
        from_fn(|i| unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(i * 8).cast()))) })
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
