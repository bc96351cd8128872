//! int8: `q` in `0..=255` with an f16 scale and an f16 zero point a row; `x ≈ scale * q + zero`.
//!
//! Encoding, with `min` and `max` over the row's finite elements and everything in f32:
//! 1. `zero` is the largest f16 not above `min` (`-0` counts as `0`), and at least -65504;
//! 2. `scale` is the smallest f16 not below `(max - zero) / 255`, and at most 65504;
//! 3. `q = clamp(round_ties_even((x - zero) / scale), 0, 255)` with the parameters as stored; 0 where the scale is 0.
//!
//! Because the zero point is rounded down and the scale up, every finite element lies within `zero ..= zero + 255 *
//! scale`: nothing saturates, and the error is at most half a scale (and the f32 rounding of the result), as long as
//! the row's magnitudes fit an f16. A row of equal elements comes back exactly if an f16 holds its value `x`, else
//! within `|x|` · 2⁻¹⁸ + 2⁻²⁵.
//!
//! Decoding is one fused multiply-add, or a multiplication and an addition: a product of an f16 and eight bits is
//! exact in f32, so both have the same bits.
//!
//! Not finite: infinities take no part in the parameters and saturate to 0 or 255. A NaN anywhere makes `scale` 0,
//! `zero` NaN and every `q` 0: the whole row decodes to NaN. A row without finite elements has both parameters 0.

use half::f16;

/// What the bytes of a row stand for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Parameters {
    pub scale: f16,
    pub zero: f16,
}

impl Parameters {
    pub fn of(row: &[f32]) -> Self {
        if row.iter().any(|x| x.is_nan()) {
            return Self { scale: f16::ZERO, zero: f16::NAN };
        }
        let finite = || row.iter().copied().filter(|x| x.is_finite());
        let (min, max) = (finite().fold(f32::INFINITY, f32::min), finite().fold(f32::NEG_INFINITY, f32::max));
        if min > max {
            return Self { scale: f16::ZERO, zero: f16::ZERO };
        }
        let zero = round_down(min);
        Self { zero, scale: round_up((max - zero.to_f32()) / 255.0) }
    }

    pub fn quantise(self, x: f32) -> u8 {
        let scale = self.scale.to_f32();
        if scale == 0.0 {
            return 0;
        }
        ((x - self.zero.to_f32()) / scale).round_ties_even().clamp(0.0, 255.0) as u8
    }

    /// As stored: the scale, then the zero point.
    pub fn to_le_bytes(self) -> [u8; 4] {
        let ([a, b], [c, d]) = (self.scale.to_le_bytes(), self.zero.to_le_bytes());
        [a, b, c, d]
    }

    pub fn from_le_bytes([a, b, c, d]: [u8; 4]) -> Self {
        Self { scale: f16::from_le_bytes([a, b]), zero: f16::from_le_bytes([c, d]) }
    }
}

/// `scale * q + zero`; the product is exact, so fused or not makes no difference.
pub fn dequantise(scale: f32, zero: f32, q: u8) -> f32 {
    scale * f32::from(q) + zero
}

/// The largest f16 not above `x`, within ±65504; never `-0`.
fn round_down(x: f32) -> f16 {
    let x = x.max(f16::MIN.to_f32()) + 0.0;
    let near = f16::from_f32(x);
    if near.to_f32() <= x {
        return near;
    }
    // One step towards minus infinity; `near` is above `x`, so it is not the lowest.
    f16::from_bits(match near.to_bits() {
        0 => 0x8001,
        bits if bits & 0x8000 != 0 => bits + 1,
        bits => bits - 1,
    })
}

/// The smallest f16 not below `x`, for `x >= 0`, at most 65504.
fn round_up(x: f32) -> f16 {
    let x = x.min(f16::MAX.to_f32());
    let near = f16::from_f32(x);
    if near.to_f32() >= x { near } else { f16::from_bits(near.to_bits() + 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_a_scale_and_eight_bits_are_exact_in_f32() {
        for scale in (0..0x7c00).map(|bits| f16::from_bits(bits).to_f32()) {
            for q in 0..=255u8 {
                let exact = f64::from(scale) * f64::from(q);
                assert_eq!(f64::from(scale * f32::from(q)), exact, "{scale} * {q}");
            }
        }
    }

    #[test]
    fn fused_and_separate_decoding_have_the_same_bits() {
        for scale in (0..0x7c00).step_by(97).map(|bits| f16::from_bits(bits).to_f32()) {
            for zero in (0..=0xfbffu16).step_by(1009).map(f16::from_bits).filter(|z| z.is_finite()) {
                let zero = zero.to_f32();
                for q in (0..=255u8).step_by(5) {
                    let (a, b) = (dequantise(scale, zero, q), scale.mul_add(f32::from(q), zero));
                    assert_eq!(a.to_bits(), b.to_bits(), "{scale} {zero} {q}");
                }
            }
        }
    }

    #[test]
    fn rounding_down_and_up_brackets_every_value_between_neighbours() {
        for bits in 0..0x7bffu16 {
            let (low, high) = (f16::from_bits(bits), f16::from_bits(bits + 1));
            let between =
                [low.to_f32().next_up(), (low.to_f32() + high.to_f32()) / 2.0, high.to_f32().next_down()];
            for x in between {
                assert_eq!((round_down(x), round_up(x)), (low, high), "{x}");
                assert_eq!(round_down(-x), -high, "-{x}");
            }
            assert_eq!((round_down(low.to_f32()), round_up(low.to_f32())), (low, low));
        }
    }

    #[test]
    fn parameters_out_of_range_saturate() {
        assert_eq!((round_down(1e9), round_down(-1e9)), (f16::MAX, f16::MIN));
        assert_eq!(round_up(1e9), f16::MAX);
        assert_eq!(round_down(-0.0).to_bits(), 0);
        assert_eq!(round_down(-1e-20), -f16::MIN_POSITIVE_SUBNORMAL);
        assert_eq!(round_up(1e-20), f16::MIN_POSITIVE_SUBNORMAL);
    }

    #[test]
    fn a_nan_marks_the_whole_row_and_infinities_take_no_part() {
        let marked = Parameters::of(&[1.0, f32::NAN, 3.0]);
        assert!(marked.zero.is_nan() && marked.scale == f16::ZERO);
        let infinite = [f32::INFINITY, 0.0, 255.0, f32::NEG_INFINITY];
        let p = Parameters::of(&infinite);
        assert_eq!((p.scale, p.zero), (f16::ONE, f16::ZERO));
        assert_eq!(infinite.map(|x| p.quantise(x)), [255, 0, 255, 0]);
        assert_eq!(Parameters::of(&[f32::INFINITY]).to_le_bytes(), [0; 4]);
        assert_eq!(Parameters::of(&[]).to_le_bytes(), [0; 4]);
    }
}
