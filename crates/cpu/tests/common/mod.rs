//! Random operands and the plainest possible products.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

use half::{bf16, f16};
use octavo_backend::{TensorRef, WeightDtype, WeightFormat};
use octavo_cpu::{Buf, Matrix, Pool};

/// Shapes `(outputs, inputs)` with all kinds of tails: of panels, of groups, of fours.
pub const SHAPES: [(usize, usize); 12] = [
    (1, 1),
    (3, 2),
    (31, 5),
    (32, 64),
    (33, 63),
    (48, 65),
    (64, 67),
    (95, 130),
    (129, 257),
    (160, 64),
    (257, 192),
    (300, 1031),
];
pub const DTYPES: [WeightDtype; 3] = [WeightDtype::F32, WeightDtype::F16, WeightDtype::Bf16];

pub fn pool(threads: usize) -> Pool {
    Pool::new(threads.try_into().unwrap())
}

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    /// Between -1 and 1, seldom ten times that.
    pub fn value(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let value = ((self.0 >> 40) as f32) / 8_388_608.0 - 1.0;
        if (self.0 >> 33).is_multiple_of(61) { value * 10.0 } else { value }
    }
    pub fn buf(&mut self, rows: usize, cols: usize) -> Buf {
        let mut buf = Buf::new(rows, cols);
        buf.data_mut().iter_mut().for_each(|x| *x = self.value());
        buf
    }
}

/// A matrix as in a file, and its values.
pub struct Weights {
    pub rows: usize,
    pub cols: usize,
    pub dtype: WeightDtype,
    pub bytes: Vec<u8>,
    pub values: Vec<f32>,
}

impl Weights {
    pub fn random(dtype: WeightDtype, rows: usize, cols: usize) -> Self {
        let mut random = Random::new((rows * 1000 + cols) as u64);
        let (mut bytes, mut values) = (Vec::new(), Vec::new());
        for _ in 0..rows * cols {
            let value = random.value();
            match dtype {
                WeightDtype::F32 => bytes.extend(value.to_le_bytes()),
                WeightDtype::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
                WeightDtype::Bf16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
            }
            values.push(match dtype {
                WeightDtype::F32 => value,
                WeightDtype::F16 => f16::from_f32(value).to_f32(),
                WeightDtype::Bf16 => bf16::from_f32(value).to_f32(),
            });
        }
        Self { rows, cols, dtype, bytes, values }
    }
    pub fn tensor(&self) -> TensorRef<'_> {
        TensorRef::new(self.dtype, self.rows, self.cols, &self.bytes).unwrap()
    }
    pub fn pack(&self, format: WeightFormat, pool: &Pool) -> Matrix {
        Matrix::pack(&[self.tensor()], format, pool)
    }
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..][..self.cols]
    }
}

/// `Σ a·b` and `Σ |a·b|`, in f64.
pub fn dot(a: &[f32], b: &[f32]) -> (f64, f64) {
    let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
    products.fold((0.0, 0.0), |(sum, size), product| (sum + product, size + product.abs()))
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
