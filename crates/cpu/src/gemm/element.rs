use half::{bf16, f16};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Outputs in a panel.
pub(crate) const PANEL: usize = 32;

/// A type of weight, and how 32 of them become f32. Widening is exact, so all levels multiply the same numbers.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// The columns `j` and `j + 16` lie side by side: a vector of pairs is then widened by one shift and one mask.
    const PAIRED: bool;

    /// From the bytes of a file or a panel, little-endian.
    fn read(bytes: &[u8]) -> f32;

    /// Columns 0..16 and 16..32 of the 32 weights at `p`.
    ///
    /// # Safety
    /// The machine has AVX-512 F; 32 weights may be read at `p`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load_512(p: *const u8) -> [__m512; 2];

    /// Columns 0..8 and 16..24 of the 32 weights at `p` if `half` is 0, columns 8..16 and 24..32 if it is 1.
    ///
    /// # Safety
    /// The machine has AVX2 and F16C; 32 weights may be read at `p`; `half` is 0 or 1.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load_256(p: *const u8, half: usize) -> [__m256; 2];
}

/// The column of the panel whose weight is the `at`-th of an input's 32.
pub(crate) const fn column_at<W: Element>(at: usize) -> usize {
    if W::PAIRED { at / 2 + at % 2 * 16 } else { at }
}

impl Element for bf16 {
    const PAIRED: bool = true;

    fn read(bytes: &[u8]) -> f32 {
        bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load_512(p: *const u8) -> [__m512; 2] {
        // SAFETY: the caller vouches for the level and for 64 bytes at `p`.
        unsafe {
            let pairs = _mm512_loadu_si512(p.cast());
            let high = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(high)]
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load_256(p: *const u8, half: usize) -> [__m256; 2] {
        // SAFETY: the caller vouches for the level and for 64 bytes at `p`, of which these are one half.
        unsafe {
            let pairs = _mm256_loadu_si256(p.add(half * 32).cast());
            let high = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)), _mm256_castsi256_ps(high)]
        }
    }
}

impl Element for f16 {
    const PAIRED: bool = false;

    fn read(bytes: &[u8]) -> f32 {
        f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load_512(p: *const u8) -> [__m512; 2] {
        // SAFETY: the caller vouches for the level and for 64 bytes at `p`.
        unsafe { [0, 32].map(|at| _mm512_cvtph_ps(_mm256_loadu_si256(p.add(at).cast()))) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load_256(p: *const u8, half: usize) -> [__m256; 2] {
        // SAFETY: the caller vouches for the level and for 64 bytes at `p`; the offsets stay within them.
        unsafe { [0, 32].map(|at| _mm256_cvtph_ps(_mm_loadu_si128(p.add(at + half * 16).cast()))) }
    }
}

impl Element for f32 {
    const PAIRED: bool = false;

    fn read(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load_512(p: *const u8) -> [__m512; 2] {
        // SAFETY: the caller vouches for the level and for 128 bytes at `p`.
        unsafe { [_mm512_loadu_ps(p.cast()), _mm512_loadu_ps(p.add(64).cast())] }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load_256(p: *const u8, half: usize) -> [__m256; 2] {
        // SAFETY: the caller vouches for the level and for 128 bytes at `p`; the offsets stay within them.
        unsafe { [_mm256_loadu_ps(p.add(half * 32).cast()), _mm256_loadu_ps(p.add(64 + half * 32).cast())] }
    }
}
