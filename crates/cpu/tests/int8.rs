//! Products with weights of eight bits.

mod common;

use common::{DTYPES, Random, SHAPES, Weights, bits, dot, pool};
use octavo_backend::{TensorRef, WeightDtype, WeightFormat::Int8, weights};
use octavo_cpu::{Buf, Level, Matrix, gemm};

fn product(level: Level, threads: usize, w: &Matrix, x: &Buf) -> Buf {
    let mut out = Buf::new(x.rows(), w.rows());
    out.data_mut().fill(f32::NAN);
    gemm(level, &pool(threads), w, x, &mut out);
    out
}

/// A row's weights or activations by the written definition: values after quantisation, and the scale of each.
fn quantised(values: &[f32], divide: bool) -> (Vec<f32>, Vec<f32>) {
    let (mut after, mut scales) = (Vec::new(), Vec::new());
    for group in values.chunks(64) {
        let most = group.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let scale = most / 127.0;
        for value in group {
            let q = if divide { value / scale } else { value * (127.0 / most) };
            after.push(if most == 0.0 { 0.0 } else { q.round_ties_even() * scale });
            scales.push(scale);
        }
    }
    (after, scales)
}

#[test]
fn weights_are_quantised_as_defined() {
    for dtype in DTYPES {
        for (n, k) in SHAPES {
            let weights = Weights::random(dtype, n, k);
            let w = weights.pack(Int8, &pool(2));
            let mut row = vec![0.0; k];
            for i in 0..n {
                w.row(i, &mut row);
                assert_eq!(row, quantised(weights.row(i), true).0, "{dtype:?} {n}x{k}, row {i}");
            }
        }
    }
}

#[test]
fn weights_that_are_not_finite_or_hardly_there_are_quantised_as_defined() {
    const K: usize = 200;
    let (special, mut random) =
        ([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-44, -1e-40, f32::MAX], Random::new(6));
    for (i, value) in special.into_iter().enumerate() {
        // A group of nothing else, one with a number among them, one of many numbers, and a short one.
        let mut row = vec![value; K];
        row[64 + i] = 0.75;
        row[128..].iter_mut().for_each(|w| *w = random.value());
        row[130 + i] = value;
        row[K - 1] = value;
        let bytes: Vec<u8> = row.iter().flat_map(|w| w.to_le_bytes()).collect();
        let tensor = TensorRef::new(WeightDtype::F32, 1, K, &bytes).unwrap();
        let mut got = vec![0.0; K];
        Matrix::pack(&[tensor], Int8, &pool(1)).row(0, &mut got);
        assert_eq!(bits(&got), bits(&weights::requantised(&row)), "{value}");
    }
}

/// With both sides quantised as defined, nothing but the rounding of one f32 sum a group is left: a scale's product
/// and a multiply-add, each half a unit.
#[test]
fn products_are_exact_but_for_the_sum_over_groups() {
    for (n, k) in SHAPES {
        let weights = Weights::random(WeightDtype::Bf16, n, k);
        let w = weights.pack(Int8, &pool(2));
        let x = Random::new(3).buf(3, k);
        for level in Level::available() {
            let out = product(level, 2, &w, &x);
            for row in 0..3 {
                let (x, _) = quantised(x.row(row), false);
                for column in 0..n {
                    let (exact, size) = dot(&x, &quantised(weights.row(column), true).0);
                    let off = (f64::from(out.row(row)[column]) - exact).abs();
                    let bound = size * (k.div_ceil(64) + 3) as f64 * f64::from(f32::EPSILON);
                    assert!(off <= bound, "{level:?} {n}x{k} at {row},{column}: {off:e} > {bound:e}");
                }
            }
        }
    }
}

/// The documented cost of quantising activations: half a scale each, times the weights' sizes.
#[test]
fn quantising_activations_costs_at_most_half_a_scale_each() {
    for (n, k) in SHAPES {
        let weights = Weights::random(WeightDtype::F32, n, k);
        let w = weights.pack(Int8, &pool(2));
        let x = Random::new(4).buf(2, k);
        let out = product(Level::detect(), 2, &w, &x);
        for row in 0..2 {
            let (_, scales) = quantised(x.row(row), false);
            for column in 0..n {
                let (kept, _) = quantised(weights.row(column), true);
                let (exact, size) = dot(x.row(row), &kept);
                let bound = dot(&scales, &kept).1 * 0.5001 + size * 1e-5;
                let off = (f64::from(out.row(row)[column]) - exact).abs();
                assert!(off <= bound, "{n}x{k} at {row},{column}: {off:e} > {bound:e}");
            }
        }
    }
}

#[test]
fn every_level_yields_the_same_bits() {
    for (n, k) in SHAPES {
        let w = Weights::random(WeightDtype::Bf16, n, k).pack(Int8, &pool(1));
        let x = Random::new(5).buf(7, k);
        let portable = product(Level::Portable, 1, &w, &x);
        for level in Level::available() {
            assert_eq!(bits(product(level, 2, &w, &x).data()), bits(portable.data()), "{level:?} {n}x{k}");
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_any_batch_on_any_threads() {
    for (n, k) in [(33, 63), (257, 192), (300, 1031)] {
        let w = Weights::random(WeightDtype::F16, n, k).pack(Int8, &pool(1));
        let x = Random::new(9).buf(40, k);
        for level in Level::available() {
            for (rows, threads) in (1..=26).map(|rows| (rows, 1 + rows % 3)).chain([(40, 3)]) {
                let mut batch = Buf::new(rows, k);
                batch.data_mut().copy_from_slice(&x.data()[..rows * k]);
                let out = product(level, threads, &w, &batch);
                for row in 0..rows {
                    let mut one = Buf::new(1, k);
                    one.data_mut().copy_from_slice(x.row(row));
                    let alone = product(level, 1, &w, &one);
                    assert_eq!(
                        bits(out.row(row)),
                        bits(alone.data()),
                        "{level:?} {n}x{k}, {rows} rows, {row}"
                    );
                }
            }
        }
    }
}

#[test]
fn zeros_and_tiny_groups_count_as_zero_and_nan_is_passed_on() {
    let w = Weights::random(WeightDtype::F32, 40, 128).pack(Int8, &pool(1));
    for level in Level::available() {
        let mut x = Buf::new(4, 128);
        x.row_mut(1).fill(1e-38);
        x.row_mut(2)[100] = f32::NAN;
        x.row_mut(3)[3] = f32::INFINITY;
        let out = product(level, 1, &w, &x);
        assert!(out.row(0).iter().chain(out.row(1)).all(|value| *value == 0.0), "{level:?}");
        assert!(out.row(2).iter().chain(out.row(3)).all(|value| value.is_nan()), "{level:?}");
    }
}
