use super::GROUP;
use crate::lanes::by_level;

/// Groups with nothing larger count as zero: the inverse of their scale would be infinite.
const TINY: f32 = 1e-30;
/// 1.5 · 2²³: adding it leaves the nearest integer, ties to even, in the low bits.
const ROUND: f32 = 12_582_912.0;

by_level! {
    /// Quantises one row of a tile of `height` rows; `out` starts at that row's first word.
    pub(super) fn row(x: &[f32], height: usize, out: &mut [i32]) = row_in_lanes
}

#[inline(always)]
fn row_in_lanes(x: &[f32], height: usize, out: &mut [i32]) {
    let mut at = 0;
    for values in x.chunks(GROUP) {
        let mut padded = [0.0; GROUP];
        padded[..values.len()].copy_from_slice(values);
        let (scale, quantised) = group(&padded);
        out[at] = scale.to_bits() as i32;
        out[at + height] = -128 * quantised.iter().sum::<i32>();
        at += 2 * height;
        for four in &quantised.as_chunks::<4>().0[..values.len().div_ceil(4)] {
            out[at] = i32::from_le_bytes(four.map(|q| q as u8));
            at += height;
        }
    }
}

/// Scale and quantised values, -127 to 127.
#[inline(always)]
fn group(values: &[f32; GROUP]) -> (f32, [i32; GROUP]) {
    // As integers, magnitudes are ordered like the numbers, and NaN is above all.
    let most = values.iter().fold(0, |most, value| value.abs().to_bits().max(most));
    let most = f32::from_bits(most);
    if most < TINY {
        return (0.0, [0; GROUP]);
    }
    let inverse = 127.0 / most;
    let round = |value: &f32| (value * inverse + ROUND).to_bits() as i32 - ROUND.to_bits() as i32;
    let mut quantised = [0; GROUP];
    if most.is_finite() {
        for (q, value) in quantised.iter_mut().zip(values) {
            *q = round(value);
        }
    }
    (most / 127.0 + if most.is_finite() { 0.0 } else { f32::NAN }, quantised)
}
