use half::{bf16, f16};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Outputs in a panel.
pub(crate) const PANEL: usize = 32;

/// Inputs that a kernel takes in one step.
pub(crate) const PAIR: usize = 2;

/// A type of weight, and how a step's 64 of them, two inputs of a panel, become f32. Widening is exact, so all levels
/// multiply the same numbers.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// Where the weight of an input (0 or 1) and a column lies among the step's.
    fn place(input: usize, column: usize) -> usize;

    /// From the bytes of a file or a panel, little-endian.
    fn read(bytes: &[u8]) -> f32;

    /// What an activation becomes before it is multiplied with such weights.
    fn round(activation: f32) -> f32 {
        activation
    }

    /// Columns 0..16 and 16..32 of both inputs.
    ///
    /// # Safety
    /// The machine has AVX-512 F; 64 weights may be read at `p`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load_512(p: *const u8) -> [[__m512; 2]; PAIR];

    /// Columns 0..8 and 16..24 of both inputs if `half` is 0, columns 8..16 and 24..32 if it is 1.
    ///
    /// # Safety
    /// The machine has AVX2 and F16C; 64 weights may be read at `p`; `half` is 0 or 1.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load_256(p: *const u8, half: usize) -> [[__m256; 2]; PAIR];
}

/// One input after the other.
fn in_rows(input: usize, column: usize) -> usize {
    input * PANEL + column
}

/// The two inputs of a column lie side by side, as the dot products of AVX-512 BF16 want them. For the same reason
/// activations are rounded to bf16, and what is below its normal numbers is zero.
impl Element for bf16 {
    fn place(input: usize, column: usize) -> usize {
        column * PAIR + input
    }

    fn read(bytes: &[u8]) -> f32 {
        bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }

    fn round(activation: f32) -> f32 {
        f32::from_bits(u32::from(rounded(activation)) << 16)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load_512(p: *const u8) -> [[__m512; 2]; PAIR] {
        // SAFETY: the caller vouches for the level and for 128 bytes at `p`.
        unsafe {
            let pairs = [0, 64].map(|at| _mm512_loadu_si512(p.add(at).cast()));
            let odd = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            [
                pairs.map(|pairs| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs))),
                pairs.map(|pairs| _mm512_castsi512_ps(_mm512_and_si512(pairs, odd))),
            ]
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load_256(p: *const u8, half: usize) -> [[__m256; 2]; PAIR] {
        // SAFETY: the caller vouches for the level and for 128 bytes at `p`; the offsets stay within them.
        unsafe {
            let pairs = [0, 64].map(|at| _mm256_loadu_si256(p.add(at + half * 32).cast()));
            let odd = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            [
                pairs.map(|pairs| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs))),
                pairs.map(|pairs| _mm256_castsi256_ps(_mm256_and_si256(pairs, odd))),
            ]
        }
    }
}

/// The bits of the nearest bf16, ties to even; zero for what is below its normal numbers.
#[inline(always)]
pub(crate) fn rounded(value: f32) -> u16 {
    let bits = value.to_bits();
    // The largest NaNs wrap around, and are not what is taken then.
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    let size = bits & 0x7fff_ffff;
    (if size > 0x7f80_0000 {
        quiet
    } else if size < 0x0080_0000 {
        bits >> 16 & 0x8000
    } else {
        nearest
    }) as u16
}

impl Element for f16 {
    fn place(input: usize, column: usize) -> usize {
        in_rows(input, column)
    }

    fn read(bytes: &[u8]) -> f32 {
        f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load_512(p: *const u8) -> [[__m512; 2]; PAIR] {
        // SAFETY: the caller vouches for the level and for 128 bytes at `p`.
        unsafe {
            [[0, 32], [64, 96]].map(|row| row.map(|at| _mm512_cvtph_ps(_mm256_loadu_si256(p.add(at).cast()))))
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load_256(p: *const u8, half: usize) -> [[__m256; 2]; PAIR] {
        // SAFETY: the caller vouches for the level and for 128 bytes at `p`; the offsets stay within them.
        unsafe {
            [[0, 32], [64, 96]]
                .map(|row| row.map(|at| _mm256_cvtph_ps(_mm_loadu_si128(p.add(at + half * 16).cast()))))
        }
    }
}

impl Element for f32 {
    fn place(input: usize, column: usize) -> usize {
        in_rows(input, column)
    }

    fn read(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load_512(p: *const u8) -> [[__m512; 2]; PAIR] {
        // SAFETY: the caller vouches for the level and for 256 bytes at `p`.
        unsafe { [[0, 64], [128, 192]].map(|row| row.map(|at| _mm512_loadu_ps(p.add(at).cast()))) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load_256(p: *const u8, half: usize) -> [[__m256; 2]; PAIR] {
        // SAFETY: the caller vouches for the level and for 256 bytes at `p`; the offsets stay within them.
        unsafe {
            [[0, 64], [128, 192]].map(|row| row.map(|at| _mm256_loadu_ps(p.add(at + half * 32).cast())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn what_is_no_number_stays_none() {
        for bits in [0x7f80_0001, 0x7fff_ffff, 0xff80_0001, 0xffff_8001, 0xffff_ffff] {
            let found = f32::from_bits(u32::from(rounded(f32::from_bits(bits))) << 16);
            assert!(found.is_nan(), "{bits:x}");
        }
        assert_eq!(rounded(f32::NEG_INFINITY), 0xff80);
    }
}
