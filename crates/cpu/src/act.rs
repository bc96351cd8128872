use crate::exp::exp;
use crate::lanes::by_level;
use crate::{Buf, Level, Pool};
use octavo_backend::Activation;

/// Rows that a thread takes at a time.
const ROWS: usize = 4;

/// `gate_up` is `[gate | up]`; `out = act(gate) * up`, half as wide.
///
/// `silu(x) = x / (1 + e^-x)`; `gelu(x) = x / (1 + e^-2u)` with `u = sqrt(2 / pi) (x + 0.044715 x³)`, which is
/// `x / 2 (1 + tanh u)`.
pub fn gated(level: Level, pool: &Pool, act: Activation, gate_up: &Buf, out: &mut Buf) {
    let cols = out.cols();
    assert_eq!((gate_up.rows(), gate_up.cols()), (out.rows(), 2 * cols), "the shape of gate and up");
    if cols == 0 {
        return;
    }
    pool.run_chunks(out.data_mut(), ROWS * cols, &|i, out| {
        for (j, out) in out.chunks_exact_mut(cols).enumerate() {
            let (gate, up) = gate_up.row(i * ROWS + j).split_at(cols);
            match act {
                Activation::Silu => silu_row(level, gate, up, out),
                Activation::Gelu => gelu_row(level, gate, up, out),
            }
        }
    });
}

by_level! { fn silu_row(gate: &[f32], up: &[f32], out: &mut [f32]) = silu_in_lanes }
by_level! { fn gelu_row(gate: &[f32], up: &[f32], out: &mut [f32]) = gelu_in_lanes }

#[inline(always)]
fn silu_in_lanes(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, x), up) in out.iter_mut().zip(gate).zip(up) {
        *out = x / (1.0 + exp(-x)) * up;
    }
}

#[inline(always)]
fn gelu_in_lanes(gate: &[f32], up: &[f32], out: &mut [f32]) {
    /// `-2 sqrt(2 / pi)`
    const FACTOR: f32 = -1.595_769;
    for ((out, x), up) in out.iter_mut().zip(gate).zip(up) {
        let minus_2u = FACTOR * x * (0.044_715 * x).mul_add(*x, 1.0);
        *out = x / (1.0 + exp(minus_2u)) * up;
    }
}
