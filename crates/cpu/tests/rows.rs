//! Operations on rows: norms, activations, embeddings.

mod common;

use common::{DTYPES, Random, Weights, bits, pool};
use octavo_backend::{Activation, WeightFormat};
use octavo_cpu::{Buf, Level, Norm, add_rms_norm, embed, gated, pick_rows, rms_norm};

const LENGTHS: [usize; 10] = [1, 7, 16, 63, 64, 65, 128, 200, 1024, 1153];

fn exact_norm(x: &[f64], weight: &[f32], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    x.iter().zip(weight).map(|(x, w)| x * scale * f64::from(*w)).collect()
}

fn widened(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

fn assert_near(actual: &[f32], exact: &[f64], tolerance: f64, what: &str) {
    for (actual, exact) in actual.iter().zip(exact) {
        let off = (f64::from(*actual) - exact).abs();
        assert!(off <= tolerance * exact.abs().max(1e-6), "{what}: {actual} for {exact}");
    }
}

#[test]
fn norms_are_within_a_few_units_of_exact_ones() {
    for cols in LENGTHS {
        let x = Random::new(1).buf(6, cols);
        let weight = Random::new(2).buf(1, cols);
        let norm = Norm { weight: weight.data(), eps: 1e-6 };
        for level in Level::available() {
            let mut out = Buf::new(6, cols);
            rms_norm(level, &pool(2), &x, norm, &mut out);
            for row in 0..6 {
                let exact = exact_norm(&widened(x.row(row)), norm.weight, norm.eps);
                assert_near(out.row(row), &exact, 1e-6, &format!("{level:?}, {cols} columns"));
            }
        }
    }
}

#[test]
fn adding_norms_what_is_added_where_asked_and_keeps_the_sum() {
    for cols in LENGTHS {
        let (x, delta) = (Random::new(3).buf(5, cols), Random::new(4).buf(5, cols));
        let weights = Random::new(5).buf(2, cols);
        let norm = Norm { weight: weights.row(0), eps: 1e-5 };
        for before in [None, Some(Norm { weight: weights.row(1), eps: 1e-6 })] {
            let (mut added, mut normed, mut expected) = (x.clone(), Buf::new(5, cols), delta.clone());
            add_rms_norm(Level::detect(), &pool(2), &mut added, &delta, before, norm, &mut normed);
            if let Some(before) = before {
                rms_norm(Level::Portable, &pool(1), &delta, before, &mut expected);
            }
            expected.data_mut().iter_mut().zip(x.data()).for_each(|(sum, x)| *sum += x);
            assert_eq!(bits(added.data()), bits(expected.data()));
            let mut of_sum = Buf::new(5, cols);
            rms_norm(Level::Portable, &pool(1), &expected, norm, &mut of_sum);
            assert_eq!(bits(normed.data()), bits(of_sum.data()));
        }
    }
}

#[test]
fn norms_and_activations_have_the_same_bits_at_every_level_alone_and_in_a_batch() {
    for cols in LENGTHS {
        let x = Random::new(6).buf(9, 2 * cols);
        let weight = Random::new(7).buf(1, 2 * cols);
        let norm = Norm { weight: weight.data(), eps: 1e-6 };
        let all = |level: Level, threads: usize, x: &Buf| {
            let (mut normed, mut silu) = (Buf::new(x.rows(), 2 * cols), Buf::new(x.rows(), cols));
            let mut gelu = silu.clone();
            rms_norm(level, &pool(threads), x, norm, &mut normed);
            gated(level, &pool(threads), Activation::Silu, x, &mut silu);
            gated(level, &pool(threads), Activation::Gelu, x, &mut gelu);
            [normed, silu, gelu]
        };
        let batch = all(Level::Portable, 1, &x);
        for level in Level::available() {
            for (threads, batch_again) in [1, 2, 3].map(|threads| (threads, all(level, threads, &x))) {
                for (a, b) in batch.iter().zip(&batch_again) {
                    assert_eq!(bits(a.data()), bits(b.data()), "{level:?}, {threads} threads");
                }
            }
            let mut one = Buf::new(1, 2 * cols);
            pick_rows(&x, &[5], &mut one);
            for (batch, alone) in batch.iter().zip(all(level, 1, &one)) {
                assert_eq!(bits(batch.row(5)), bits(alone.data()), "{level:?}");
            }
        }
    }
}

/// GELU's exponent reaches some tens, and its rounding counts that many times.
#[test]
fn activations_are_within_rounding_of_exact_ones() {
    let cols = 4001;
    let mut x = Buf::new(1, 2 * cols);
    for (i, x) in x.row_mut(0).iter_mut().enumerate() {
        *x = if i < cols { (i as f32 - 2000.0) / 100.0 } else { 1.5 };
    }
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let gelu = |x: f64| x / 2.0 * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x * x * x)).tanh());
    let exact =
        |f: &dyn Fn(f64) -> f64| x.row(0)[..cols].iter().map(|x| f(f64::from(*x)) * 1.5).collect::<Vec<_>>();
    for level in Level::available() {
        let mut out = Buf::new(1, cols);
        gated(level, &pool(1), Activation::Silu, &x, &mut out);
        assert_near(out.data(), &exact(&silu), 5e-7, "silu");
        gated(level, &pool(1), Activation::Gelu, &x, &mut out);
        assert_near(out.data(), &exact(&gelu), 4e-6, "gelu");
    }
}

#[test]
fn activations_survive_the_largest_inputs() {
    let inputs = [f32::MAX, 1e30, 100.0, 0.0, -0.0, -100.0, -1e30, f32::MIN];
    let mut x = Buf::new(1, 16);
    x.row_mut(0)[..8].copy_from_slice(&inputs);
    x.row_mut(0)[8..].fill(1.0);
    let mut out = Buf::new(1, 8);
    for (level, act) in
        Level::available().into_iter().flat_map(|l| [(l, Activation::Silu), (l, Activation::Gelu)])
    {
        gated(level, &pool(1), act, &x, &mut out);
        assert_eq!(&out.data()[..4], &[f32::MAX, 1e30, 100.0, 0.0]);
        assert!(out.data()[4..].iter().all(|y| y.abs() < 1e-35), "{level:?} {act:?}: {:?}", out.data());
    }
}

#[test]
fn embeddings_are_rows_of_the_table_times_the_scale() {
    for dtype in DTYPES {
        let weights = Weights::random(dtype, 77, 50);
        let table = weights.pack(WeightFormat::AsStored, &pool(2));
        let tokens = [76, 0, 31, 32, 0];
        let mut out = Buf::new(tokens.len(), 50);
        embed(&pool(2), &table, &tokens, 3.0, &mut out);
        for (i, token) in tokens.iter().enumerate() {
            let expected: Vec<f32> = weights.row(*token as usize).iter().map(|value| value * 3.0).collect();
            assert_eq!(out.row(i), expected);
        }
    }
}

#[test]
fn picked_rows_come_in_the_order_asked_for() {
    let x = Random::new(11).buf(6, 9);
    let mut out = Buf::new(3, 9);
    pick_rows(&x, &[4, 0, 4], &mut out);
    assert_eq!([out.row(0), out.row(1), out.row(2)], [x.row(4), x.row(0), x.row(4)]);
}
