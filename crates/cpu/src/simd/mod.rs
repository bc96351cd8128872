//! Sixteen lanes of f32 as the attention kernel needs them, one implementation a [`Level`](crate::Level).
//!
//! Every method is inlined into a function that enables the level's instructions; that function is the only place
//! where a kernel may be entered.

mod asking;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

pub(crate) use asking::Asking;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use portable::Portable;

/// Numbers in a vector, at every level.
pub(crate) const LANES: usize = 16;
/// Some of them: bit `i` stands for lane `i`.
pub(crate) type Lanes = u16;
/// Added to and taken from a number below 2²² in magnitude, it leaves the nearest integer. What it is added to has that
/// integer and 127 in its low bits: a power's exponent as an f32 has it.
const ROUND: f32 = 12_582_912.0 + 127.0;
/// 2^r on [-0.5, 0.5] is 1 + r·(these, the highest power first).
const EXP2: [f32; 6] =
    [1.535_336_2e-4, 1.339_887_4e-3, 9.618_437e-3, 5.550_332_5e-2, 2.402_264_8e-1, 6.931_472e-1];
/// Below this, 2^x is taken as 0.
const EXP2_LOWEST: f32 = -126.0;

/// # Safety
/// The processor has the level's instructions. Pointers are readable (writable) for the elements that the method
/// names; they need no alignment.
pub(crate) trait Simd: Copy + 'static {
    type V: Copy;
    /// Whether sixteen sums fit into registers at once; a quarter of that does everywhere.
    const WIDE: bool;

    unsafe fn splat(x: f32) -> Self::V;
    /// `[LANES]` f32.
    unsafe fn load(p: *const f32) -> Self::V;
    /// `[LANES]` f32.
    unsafe fn store(p: *mut f32, x: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// The larger of each two lanes; where either is not a number, either of the two.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the level can.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `x` in these lanes, `other` in the others.
    unsafe fn keep(lanes: Lanes, x: Self::V, other: f32) -> Self::V;
    /// `y` where `x >= limit` or is not a number, 0 elsewhere.
    unsafe fn zero_below(x: Self::V, limit: f32, y: Self::V) -> Self::V;
    /// `y · 2^n` for `n` from -126 to 0, where `n + 127` is the integer in the low bits of `rounded`. The power is a
    /// factor, so that what is not a number stays so whatever its bits are.
    unsafe fn scale_by_power(y: Self::V, rounded: Self::V) -> Self::V;

    /// The sum of the lanes: halves are added to each other until one is left.
    unsafe fn sum(x: Self::V) -> f32;
    unsafe fn largest(x: Self::V) -> f32;
    /// Whether a lane of `x` is above `limit`.
    unsafe fn any_above(x: Self::V, limit: f32) -> bool;

    /// `[LANES]` f16, widened.
    unsafe fn f16(p: *const u8) -> Self::V;
    /// `[LANES]` pairs of f16: the first of each, and the second.
    unsafe fn f16_pairs(p: *const u8) -> [Self::V; 2];
    /// `[LANES]` bf16, widened.
    unsafe fn bf16(p: *const u8) -> Self::V;
    /// `[LANES]` numbers in E4M3, widened and divided by 256.
    unsafe fn fp8(p: *const u8) -> Self::V;
    /// `[LANES]` unsigned bytes, widened.
    unsafe fn u8(p: *const u8) -> Self::V;
    /// Calls `f` in a function of its own that has the level's instructions: the fewer loops a function has, the better its
    /// registers are given out.
    unsafe fn apart<R>(f: impl FnOnce() -> R) -> R;
    /// A hint that these bytes will be read soon. Any address will do.
    unsafe fn prefetch(p: *const u8, asking: Asking);

    /// 2^x for x <= 0, within 2 units in the last place; exactly 1 at 0, exactly 0 below -126, NaN for every NaN.
    #[inline(always)]
    unsafe fn exp2(x: Self::V) -> Self::V {
        // SAFETY: as the caller promised.
        unsafe {
            let rounded = Self::add(x, Self::splat(ROUND));
            let r = Self::sub(x, Self::sub(rounded, Self::splat(ROUND)));
            let mut y = Self::splat(EXP2[0]);
            for c in &EXP2[1..] {
                y = Self::fma(y, r, Self::splat(*c));
            }
            y = Self::fma(y, r, Self::splat(1.0));
            Self::zero_below(x, EXP2_LOWEST, Self::scale_by_power(y, rounded))
        }
    }
}

#[cfg(test)]
mod tests;
