//! Weights quantised at load, [`WeightFormat::Int8`](crate::WeightFormat::Int8).
//!
//! Each output (a row of the matrix) is cut into groups of 64 inputs, the last one perhaps shorter. A group has the
//! scale `amax / 127`, an f32, where `amax` is the largest finite magnitude in it; a weight is stored as
//! `round_ties_even(w / scale)` in `-127..=127` and stands for `q * scale`. A group of zeros has scale 0. NaNs
//! become 0 and infinities ±127.

/// Inputs that share a scale.
pub const GROUP: usize = 64;

/// Quantises one group (at most [`GROUP`] weights) into `out`, of the same length; returns its scale.
pub fn quantise(group: &[f32], out: &mut [i8]) -> f32 {
    assert!(group.len() <= GROUP && group.len() == out.len(), "{} weights into {}", group.len(), out.len());
    let amax = group.iter().map(|w| w.abs()).filter(|w| w.is_finite()).fold(0.0, f32::max);
    let scale = amax / 127.0;
    for (q, w) in out.iter_mut().zip(group) {
        // A cast saturates and takes NaN to 0.
        *q = if scale == 0.0 { 0 } else { (w / scale).round_ties_even().clamp(-127.0, 127.0) as i8 };
    }
    scale
}

/// A row as it is after quantising: what the quantised weights stand for.
pub fn requantised(row: &[f32]) -> Vec<f32> {
    let mut q = [0; GROUP];
    row.chunks(GROUP)
        .flat_map(|group| {
            let scale = quantise(group, &mut q[..group.len()]);
            q[..group.len()].iter().map(|&q| f32::from(q) * scale).collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn weights_come_back_within_half_a_step_of_their_group() {
        let row = Random::new(5).values(200, 3.0);
        for (group, back) in row.chunks(GROUP).zip(requantised(&row).chunks(GROUP)) {
            let amax = group.iter().fold(0.0f32, |a, w| a.max(w.abs()));
            for (w, b) in group.iter().zip(back) {
                assert!((w - b).abs() <= amax / 127.0 * 0.5001, "{w} became {b}");
            }
        }
    }

    #[test]
    fn ties_go_to_even_and_what_is_not_finite_saturates() {
        let mut q = [0; 6];
        let scale = quantise(&[127.0, 0.5, 1.5, -2.5, f32::NAN, f32::NEG_INFINITY], &mut q);
        assert_eq!((scale, q), (1.0, [127, 0, 2, -2, 0, -127]));
        assert_eq!(quantise(&[0.0; 3], &mut q[..3]), 0.0);
        assert_eq!(q[..3], [0; 3]);
    }
}
