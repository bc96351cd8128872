use super::{GROUP, LINE, groups};
use crate::Level;
use crate::gemm::Element;
use crate::lanes::by_level;
use half::{bf16, f16};
use octavo_backend::WeightDtype;

/// Added to a quantised weight to make it unsigned.
const ZERO: u8 = 128;

pub(crate) fn panel_bytes(k: usize) -> usize {
    groups(k).map(|fours| LINE + fours * LINE).sum()
}

/// Quantises up to 32 rows into a panel.
pub(crate) fn pack_panel(rows: &[&[u8]], dtype: WeightDtype, k: usize, panel: &mut [u8]) {
    let (size, level) = (dtype.bytes(), Level::detect());
    let mut rest = panel;
    for (group, fours) in groups(k).enumerate() {
        let (this, after) = rest.split_at_mut(LINE + fours * LINE);
        let (scales, weights) = this.split_at_mut(LINE);
        weights.fill(ZERO);
        let inputs = group * GROUP * size..k.min((group + 1) * GROUP) * size;
        for (column, row) in rows.iter().enumerate() {
            let mut values = [0.0; GROUP];
            for (value, bytes) in values.iter_mut().zip(row[inputs.clone()].chunks_exact(size)) {
                *value = widen(dtype, bytes);
            }
            let (scale, quantised) = quantise(level, &values);
            scales[column * 4..][..4].copy_from_slice(&scale.to_le_bytes());
            for (weights, four) in weights.chunks_exact_mut(LINE).zip(quantised.as_chunks::<4>().0) {
                weights[column * 4..][..4].copy_from_slice(&four.map(|q| q.wrapping_add(ZERO as i8) as u8));
            }
        }
        rest = after;
    }
}

by_level! {
    /// Scale and quantised weights of one output's group.
    fn quantise(values: &[f32; GROUP]) -> (f32, [i8; GROUP]) = quantise_in_lanes
}

#[inline(always)]
fn quantise_in_lanes(values: &[f32; GROUP]) -> (f32, [i8; GROUP]) {
    // As integers, magnitudes are ordered like the numbers, and what is not finite is above all.
    let finite = |bits: u32| if bits < f32::INFINITY.to_bits() { bits } else { 0 };
    let most = values.iter().fold(0, |most, value| finite(value.abs().to_bits()).max(most));
    let scale = f32::from_bits(most) / 127.0;
    if scale == 0.0 {
        return (0.0, [0; GROUP]);
    }
    let mut quantised = [0; GROUP];
    for (q, value) in quantised.iter_mut().zip(values) {
        // A cast takes NaN to 0.
        *q = (value / scale).round_ties_even().clamp(-127.0, 127.0) as i8;
    }
    (scale, quantised)
}

fn widen(dtype: WeightDtype, bytes: &[u8]) -> f32 {
    match dtype {
        WeightDtype::F32 => f32::read(bytes),
        WeightDtype::F16 => f16::read(bytes),
        WeightDtype::Bf16 => bf16::read(bytes),
    }
}

/// One output's weights, as they count in products.
pub(crate) fn read_row(panel: &[u8], column: usize, out: &mut [f32]) {
    let (lengths, mut rest) = (groups(out.len()), panel);
    for (values, fours) in out.chunks_mut(GROUP).zip(lengths) {
        let (this, after) = rest.split_at(LINE + fours * LINE);
        let (scales, weights) = this.split_at(LINE);
        let scale = f32::read(&scales[column * 4..][..4]);
        for (values, weights) in values.chunks_mut(4).zip(weights.chunks_exact(LINE)) {
            for (value, q) in values.iter_mut().zip(&weights[column * 4..][..4]) {
                *value = f32::from(i16::from(*q) - i16::from(ZERO)) * scale;
            }
        }
        rest = after;
    }
}
