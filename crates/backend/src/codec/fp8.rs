//! fp8: [`e4m3`] elements with one f32 scale a row.
//!
//! Encoding: `byte = e4m3(x / scale)`, a true division. Decoding: `e4m3(byte) * scale`.
//!
//! Infinities take no part in the scale and saturate. A NaN anywhere makes the scale NaN: the whole row decodes to NaN.
//! So the two bytes that are no numbers stand in such rows alone, and who decodes need not tell them from 480.

use super::e4m3;

/// The scale of a row: `amax / 448`, where `amax` is the largest magnitude among its finite elements.
///
/// 1 where that quotient is zero or subnormal (the row is all zero, or below about 5e-36): a stored scale is always
/// a normal number, or NaN. So the row's largest element always takes the format's largest value.
pub fn scale(row: &[f32]) -> f32 {
    if row.iter().any(|x| x.is_nan()) {
        return f32::NAN;
    }
    let amax = row.iter().map(|x| x.abs()).filter(|x| x.is_finite()).fold(0.0, f32::max);
    let scale = amax / e4m3::MAX;
    if scale < f32::MIN_POSITIVE { 1.0 } else { scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_maps_the_largest_finite_magnitude_to_448() {
        assert_eq!(scale(&[1.0, -896.0, 3.0]), 2.0);
        assert_eq!(scale(&[f32::NEG_INFINITY, -448.0, f32::INFINITY]), 1.0);
    }

    #[test]
    fn rows_without_a_usable_magnitude_have_scale_one() {
        for row in [&[][..], &[0.0, -0.0], &[1e-40, 0.0], &[f32::INFINITY]] {
            assert_eq!(scale(row), 1.0, "{row:?}");
        }
    }

    #[test]
    fn a_nan_marks_the_whole_row() {
        assert!(scale(&[1.0, f32::NAN, f32::INFINITY]).is_nan());
    }
}
