//! Products with weights as stored, against plain f64 sums, and bit for bit against themselves.

mod common;

use common::{DTYPES, Random, SHAPES, Weights, bits, dot, pool};
use half::bf16;
use octavo_backend::{TensorRef, WeightDtype, WeightFormat, WeightFormat::AsStored};
use octavo_cpu::{Buf, Level, Matrix, gemm};

fn product(level: Level, threads: usize, w: &Matrix, x: &Buf) -> Buf {
    let mut out = Buf::new(x.rows(), w.rows());
    out.data_mut().fill(f32::NAN);
    gemm(level, &pool(threads), w, x, &mut out);
    out
}

/// The activations that are multiplied with weights of this type.
fn multiplied(x: &[f32], dtype: WeightDtype) -> Vec<f32> {
    let round = |x: &f32| if dtype == WeightDtype::Bf16 { bf16::from_f32(*x).to_f32() } else { *x };
    x.iter().map(round).collect()
}

/// An f32 sum of k products is off by at most k rounding errors of the sum of their sizes.
#[test]
fn products_are_within_rounding_of_exact_sums() {
    for dtype in DTYPES {
        for (n, k) in SHAPES {
            let weights = Weights::random(dtype, n, k);
            let w = weights.pack(AsStored, &pool(2));
            let x = Random::new(7).buf(5, k);
            for level in Level::available() {
                let out = product(level, 2, &w, &x);
                for row in 0..5 {
                    for column in 0..n {
                        let (exact, size) = dot(&multiplied(x.row(row), dtype), weights.row(column));
                        let off = (f64::from(out.row(row)[column]) - exact).abs();
                        let bound = size * k as f64 * f64::from(f32::EPSILON) / 2.0;
                        assert!(
                            off <= bound,
                            "{dtype:?} {level:?} {n}x{k} at {row},{column}: off by {off:e}"
                        );
                    }
                }
            }
        }
    }
}

/// The definition itself: one chain of fused multiply-adds over pairs of inputs, the second of each first.
#[test]
fn every_level_computes_the_one_chain_of_multiply_adds() {
    for dtype in DTYPES {
        for (n, k) in SHAPES {
            let weights = Weights::random(dtype, n, k);
            let w = weights.pack(AsStored, &pool(1));
            let x = Random::new(8).buf(2, k);
            let chain = |row: usize, column: usize| {
                let products: Vec<_> =
                    multiplied(x.row(row), dtype).into_iter().zip(weights.row(column)).collect();
                let in_order = products.chunks(2).flat_map(|pair| pair.iter().rev());
                in_order.fold(0.0_f32, |sum, (x, w)| w.mul_add(*x, sum))
            };
            let expected: Vec<f32> = (0..2 * n).map(|i| chain(i / n, i % n)).collect();
            for level in Level::available() {
                let out = product(level, 1, &w, &x);
                assert_eq!(bits(out.data()), bits(&expected), "{dtype:?} {level:?} {n}x{k}");
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_any_batch_on_any_threads() {
    for dtype in DTYPES {
        for (n, k) in [(33, 63), (257, 192), (300, 1031)] {
            let w = Weights::random(dtype, n, k).pack(AsStored, &pool(1));
            let x = Random::new(9).buf(40, k);
            for level in Level::available() {
                let alone: Vec<Vec<u32>> = (0..40)
                    .map(|row| {
                        let mut one = Buf::new(1, k);
                        one.data_mut().copy_from_slice(x.row(row));
                        bits(product(level, 1, &w, &one).data())
                    })
                    .collect();
                for (rows, threads) in (1..=26).map(|rows| (rows, 1 + rows % 3)).chain([(37, 2), (40, 3)]) {
                    let mut batch = Buf::new(rows, k);
                    batch.data_mut().copy_from_slice(&x.data()[..rows * k]);
                    let out = product(level, threads, &w, &batch);
                    for (row, alone) in alone.iter().take(rows).enumerate() {
                        assert_eq!(
                            &bits(out.row(row)),
                            alone,
                            "{dtype:?} {level:?} {n}x{k}, {rows} rows, {row}"
                        );
                    }
                }
            }
        }
    }
}

/// Many rows of many inputs, so that the rows are worked on in several blocks.
#[test]
fn large_batches_are_blocked_without_a_trace() {
    let (n, k, rows) = (70, 4500, 61);
    let w = Weights::random(WeightDtype::Bf16, n, k).pack(AsStored, &pool(2));
    let x = Random::new(10).buf(rows, k);
    for level in Level::available() {
        let out = product(level, 2, &w, &x);
        for row in [0, 11, 12, 30, 59, 60] {
            let mut one = Buf::new(1, k);
            one.data_mut().copy_from_slice(x.row(row));
            assert_eq!(bits(product(level, 1, &w, &one).data()), bits(out.row(row)), "{level:?}, row {row}");
        }
    }
}

#[test]
fn rows_read_back_from_the_panels_are_the_weights() {
    for dtype in DTYPES {
        for (n, k) in SHAPES {
            let weights = Weights::random(dtype, n, k);
            let w = weights.pack(AsStored, &pool(3));
            let mut row = vec![0.0; k];
            for i in 0..n {
                w.row(i, &mut row);
                assert_eq!(row, weights.row(i), "{dtype:?} {n}x{k}, row {i}");
            }
        }
    }
}

/// Widened weights are multiplied with activations as they are.
#[test]
fn weights_widened_at_load_give_the_products_of_f32() {
    for dtype in DTYPES {
        let weights = Weights::random(dtype, 33, 131);
        let wide: Vec<u8> = weights.values.iter().flat_map(|w| w.to_le_bytes()).collect();
        let wide = TensorRef::new(WeightDtype::F32, 33, 131, &wide).unwrap();
        let x = Random::new(11).buf(7, 131);
        let expected = product(Level::detect(), 1, &Matrix::pack(&[wide], AsStored, &pool(1)), &x);
        let found = product(Level::detect(), 1, &weights.pack(WeightFormat::F32, &pool(1)), &x);
        assert_eq!(bits(found.data()), bits(expected.data()), "{dtype:?}");
    }
}

#[test]
fn stacked_parts_are_one_matrix() {
    let parts = [(40, 70), (1, 70), (23, 70)].map(|(n, k)| Weights::random(WeightDtype::Bf16, n, k));
    let tensors: Vec<_> = parts.iter().map(Weights::tensor).collect();
    let w = Matrix::pack(&tensors, AsStored, &pool(2));
    assert_eq!((w.rows(), w.cols()), (64, 70));
    let mut row = vec![0.0; 70];
    for (i, expected) in parts.iter().flat_map(|part| (0..part.rows).map(|row| part.row(row))).enumerate() {
        w.row(i, &mut row);
        assert_eq!(row, expected);
    }
}

#[test]
fn empty_shapes_yield_nothing_or_zeros() {
    let none = Weights::random(WeightDtype::F32, 0, 8).pack(AsStored, &pool(1));
    assert_eq!(product(Level::detect(), 2, &none, &Random::new(1).buf(3, 8)).data().len(), 0);
    let inputless = Weights::random(WeightDtype::F32, 8, 0).pack(AsStored, &pool(1));
    assert_eq!(product(Level::detect(), 2, &inputless, &Buf::new(3, 0)).data(), [0.0; 24]);
    let w = Weights::random(WeightDtype::F32, 8, 8).pack(AsStored, &pool(1));
    assert_eq!(product(Level::detect(), 2, &w, &Buf::new(0, 8)).data().len(), 0);
}

#[test]
#[should_panic(expected = "inputs")]
fn a_product_of_unequal_widths_is_refused() {
    let w = Weights::random(WeightDtype::F32, 8, 8).pack(AsStored, &pool(1));
    product(Level::Portable, 1, &w, &Buf::new(1, 9));
}

#[test]
#[should_panic(expected = "the output's shape")]
fn a_product_into_too_little_room_is_refused() {
    let w = Weights::random(WeightDtype::F32, 8, 8).pack(AsStored, &pool(1));
    gemm(Level::Portable, &pool(1), &w, &Buf::new(2, 8), &mut Buf::new(1, 8));
}
