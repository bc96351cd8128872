//! fp8: [`e4m3`] elements with one f32 scale a row.
//!
//! Encoding: `byte = e4m3(x / scale)`, a true division. Decoding: `e4m3(byte) * scale`.

use super::e4m3;

/// The scale of a row: `amax / 448`, where `amax` is the largest magnitude among its finite elements.
///
/// 1 where that quotient is zero or subnormal (the row is all zero, or below about 5e-36): a stored scale is always
/// a normal number. So the row's largest element always takes the format's largest value.
pub fn scale(row: &[f32]) -> f32 {
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
        assert_eq!(scale(&[f32::NAN, -448.0, f32::INFINITY]), 1.0);
    }

    #[test]
    fn rows_without_a_usable_magnitude_have_scale_one() {
        for row in [&[][..], &[0.0, -0.0], &[1e-40, 0.0], &[f32::NAN, f32::INFINITY]] {
            assert_eq!(scale(row), 1.0, "{row:?}");
        }
    }
}
