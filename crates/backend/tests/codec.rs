//! Rows through encode and decode, in every precision.

use octavo_backend::Random;
use octavo_backend::codec::{decode, element_bytes, encode, int8};
use octavo_types::KvDtype;

const ALL: [KvDtype; 5] = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Fp8, KvDtype::Int8];

fn encoded(dtype: KvDtype, row: &[f32]) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = vec![0xaa; row.len() * element_bytes(dtype)];
    let mut params = vec![0xaa; dtype.parameter_bytes() as usize];
    encode(dtype, row, &mut bytes, &mut params);
    (bytes, params)
}

fn round_trip(dtype: KvDtype, row: &[f32]) -> Vec<f32> {
    let (bytes, params) = encoded(dtype, row);
    let mut out = vec![0.0; row.len()];
    decode(dtype, &bytes, &params, &mut out);
    out
}

/// Rows of many lengths, sizes and offsets.
fn rows() -> impl Iterator<Item = Vec<f32>> {
    let mut random = Random::new(1);
    (0..2000).map(move |i| {
        let len = [1, 2, 7, 64, 80, 96, 128, 256][i % 8];
        let size = 10f32.powi((i as i32 / 8) % 8 - 4);
        let offset = if i % 3 == 0 { random.unit() * 100.0 } else { 0.0 };
        random.values(len, size).into_iter().map(|x| x + offset).collect()
    })
}

#[test]
fn f32_comes_back_bit_for_bit_whatever_it_is() {
    let row = [0.0, -0.0, 1.5, f32::MIN_POSITIVE / 2.0, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    assert_eq!(round_trip(KvDtype::F32, &row).map_bits(), row.to_vec().map_bits());
}

trait Bits {
    fn map_bits(self) -> Vec<u32>;
}
impl Bits for Vec<f32> {
    fn map_bits(self) -> Vec<u32> {
        self.into_iter().map(f32::to_bits).collect()
    }
}

#[test]
fn sixteen_bit_precisions_round_to_nearest_even() {
    // Halfway between neighbours of one, and just beside it.
    let f16 = [1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, (1.0 + 1.0 / 2048.0f32).next_up(), 65519.9, 65520.0];
    assert_eq!(
        round_trip(KvDtype::F16, &f16),
        [1.0, 1.0 + 2.0 / 1024.0, 1.0 + 1.0 / 1024.0, 65504.0, f32::INFINITY]
    );
    let bf16 = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, (1.0 + 1.0 / 256.0f32).next_up(), f32::MAX, 1e-40];
    let smallest = |bits: u32| f32::from_bits(bits << 16);
    assert_eq!(
        round_trip(KvDtype::Bf16, &bf16),
        [1.0, 1.0 + 2.0 / 128.0, 1.0 + 1.0 / 128.0, f32::INFINITY, smallest(1)]
    );
}

#[test]
fn every_f16_and_bf16_value_comes_back_as_itself() {
    for bits in 0..=u16::MAX {
        let f16 = half::f16::from_bits(bits);
        if !f16.is_nan() {
            assert_eq!(encoded(KvDtype::F16, &[f16.to_f32()]).0, bits.to_le_bytes());
        }
        let bf16 = half::bf16::from_bits(bits);
        if !bf16.is_nan() {
            assert_eq!(encoded(KvDtype::Bf16, &[bf16.to_f32()]).0, bits.to_le_bytes());
        }
    }
}

#[test]
fn errors_stay_within_the_bound_of_each_precision() {
    for row in rows() {
        let amax = row.iter().fold(0.0f32, |a, x| a.max(x.abs()));
        for dtype in ALL {
            let step = f32::from(int8::Parameters::of(&row).scale);
            for (&x, y) in row.iter().zip(round_trip(dtype, &row)) {
                let bound = match dtype {
                    KvDtype::F32 => 0.0,
                    KvDtype::F16 => (x.abs() / 2048.0).max(2f32.powi(-25)),
                    KvDtype::Bf16 => x.abs() / 256.0,
                    // Half of three mantissa bits, or half of the smallest subnormal, and two roundings.
                    KvDtype::Fp8 => (x.abs() / 16.0).max(amax / 448.0 / 1024.0) * 1.000_001,
                    KvDtype::Int8 => step / 2.0 + amax * 2e-7,
                };
                assert!((x - y).abs() <= bound, "{dtype:?}: {x} became {y}, amax {amax}");
            }
        }
    }
}

#[test]
fn the_extremes_of_a_row_take_the_extremes_of_the_format() {
    for row in rows().filter(|row| row.len() > 2) {
        let (bytes, _) = encoded(KvDtype::Fp8, &row);
        assert_eq!(bytes.iter().map(|b| b & 0x7f).max(), Some(0x7e), "{row:?}");
    }
    let (bytes, params) = encoded(KvDtype::Int8, &[-1.0, 0.0, 254.0]);
    assert_eq!((bytes, params), (vec![0, 1, 255], vec![0x00, 0x3c, 0x00, 0xbc]));
}

#[test]
fn encoding_a_decoded_eight_bit_row_keeps_its_values_close() {
    for row in rows() {
        for dtype in [KvDtype::Fp8, KvDtype::Int8] {
            let once = round_trip(dtype, &row);
            let twice = round_trip(dtype, &once);
            let amax = row.iter().fold(0.0f32, |a, x| a.max(x.abs()));
            for (a, b) in once.iter().zip(&twice) {
                assert!((a - b).abs() <= amax / 100.0, "{dtype:?}: {a} {b}");
            }
        }
    }
}

#[test]
fn rows_of_zeros_come_back_as_zeros() {
    for dtype in ALL {
        assert_eq!(round_trip(dtype, &[0.0; 64]), [0.0; 64], "{dtype:?}");
    }
    assert_eq!(encoded(KvDtype::Fp8, &[0.0; 4]), (vec![0; 4], 1f32.to_le_bytes().to_vec()));
    assert_eq!(encoded(KvDtype::Int8, &[0.0, -0.0]), (vec![0; 2], vec![0; 4]));
    // Pages that were zeroed decode to zero as well.
    for dtype in ALL {
        let mut out = [1.0; 2];
        let (bytes, params) = ([0; 8], [0; 4]);
        let params = &params[..dtype.parameter_bytes() as usize];
        decode(dtype, &bytes[..2 * element_bytes(dtype)], params, &mut out);
        assert_eq!(out, [0.0; 2], "{dtype:?}");
    }
}

#[test]
fn rows_of_one_value_come_back_almost_exactly_in_int8() {
    let mut random = Random::new(3);
    for i in 0..4000 {
        let x = random.unit() * 10f32.powi(i % 14 - 9);
        for y in round_trip(KvDtype::Int8, &[x; 16]) {
            assert!((x - y).abs() <= x.abs() * 2f32.powi(-18) + 2f32.powi(-25), "{x} became {y}");
        }
    }
    assert_eq!(round_trip(KvDtype::Int8, &[-0.75; 8]), [-0.75; 8]);
}

#[test]
fn nan_is_never_hidden_and_infinities_saturate_in_eight_bits() {
    let row = [1.0, f32::NAN, -2.0];
    for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
        let out = round_trip(dtype, &row);
        assert!(out[1].is_nan() && (out[0], out[2]) == (1.0, -2.0), "{dtype:?}: {out:?}");
    }
    for dtype in [KvDtype::Fp8, KvDtype::Int8] {
        assert!(round_trip(dtype, &row).iter().all(|x| x.is_nan()), "{dtype:?}");
    }
    let row = [f32::INFINITY, 0.0, -448.0, 448.0, f32::NEG_INFINITY];
    assert_eq!(round_trip(KvDtype::Fp8, &row), [448.0, 0.0, -448.0, 448.0, -448.0]);
    let int8 = round_trip(KvDtype::Int8, &[f32::INFINITY, 0.0, 255.0, f32::NEG_INFINITY]);
    assert_eq!(int8, [255.0, 0.0, 255.0, 0.0]);
    for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
        assert_eq!(round_trip(dtype, &row), row, "{dtype:?}");
    }
}

#[test]
fn a_large_offset_costs_int8_no_saturation() {
    // The zero point is coarse at this size; rounding it down and the scale up keeps both ends.
    let row: Vec<f32> = (0..64).map(|i| 1000.3 + i as f32 * 0.01).collect();
    let step = f32::from(int8::Parameters::of(&row).scale);
    for (x, y) in row.iter().zip(round_trip(KvDtype::Int8, &row)) {
        assert!((x - y).abs() <= step * 0.501 + 1e-4, "{x} became {y}");
    }
}

#[test]
#[should_panic(expected = "bytes of 4 elements of F16")]
fn wrong_lengths_are_refused() {
    encode(KvDtype::F16, &[0.0; 4], &mut [0; 4], &mut []);
}
