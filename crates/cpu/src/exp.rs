/// Below this the result stays what it is there, about 1.2e-38.
const LEAST: f32 = -87.3;
/// Here the power of two is 2^128, whose exponent is that of infinity.
const MOST: f32 = 89.0;

/// `e^x` with an error below 1.5 units in the last place between -87.3 and 88.3; held below, infinite from 88.4 on, NaN
/// for NaN.
///
/// Plain arithmetic in a fixed order, so that loops over it become vectors and every level gives the same bits:
/// `x = n ln 2 + r` with `|r|` up to half of ln 2, in two steps as ln 2 has more digits than an f32; a polynomial of
/// degree 6 in `r`; `2^n` by its exponent.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// 1.5 · 2²³: adding it leaves the nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(LEAST, MOST);
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let mut p = 1.987_569_2e-4_f32;
    for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5, 1.0, 1.0] {
        p = p.mul_add(r, coefficient);
    }
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    p * f32::from_bits(exponent)
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn exp_is_within_one_and_a_half_units_in_the_last_place() {
        let mut worst = 0.0_f64;
        for i in 0..=1_756_000 {
            let x = -87.3 + i as f32 * 1e-4;
            let exact = f64::from(x).exp();
            let unit = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
            worst = worst.max((f64::from(exp(x)) - exact).abs() / unit);
        }
        assert!(worst < 1.5, "{worst}");
    }

    #[test]
    fn exp_holds_below_is_infinite_above_and_passes_nan_on() {
        assert_eq!(exp(f32::NEG_INFINITY), exp(-87.3));
        assert!([88.4, 100.0, f32::MAX, f32::INFINITY].into_iter().all(|x| exp(x) == f32::INFINITY));
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
    }
}
