use super::*;
use octavo_backend::Random;

const DTYPES: [KvDtype; 5] = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Fp8, KvDtype::Int8];

fn rows() -> Vec<Vec<f32>> {
    let mut random = Random::new(7);
    let special = [
        0.0,
        -0.0,
        1e-40,
        -1e-40,
        1e-30,
        6e-8,
        -6e-8,
        65504.0,
        65519.0,
        65520.0,
        -1e9,
        f32::MAX,
        f32::MIN_POSITIVE,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let mut rows =
        vec![vec![0.0; 64], vec![-0.0; 17], vec![3.25; 33], vec![f32::NAN; 16], vec![f32::INFINITY; 20]];
    for length in [1, 7, 8, 16, 31, 64, 80, 128, 256] {
        for size in [1e-30, 1e-6, 0.1, 1.0, 30.0, 1e5, 1e30] {
            rows.push(random.values(length, size));
        }
        for _ in 0..40 {
            let mut row = random.values(length, 4.0);
            for _ in 0..3 {
                row[random.below(length)] = special[random.below(special.len())];
            }
            rows.push(row);
        }
    }
    // Every bit pattern's neighbourhood, roughly: exponents of all sizes.
    rows.extend((0..200).map(|_| (0..128).map(|_| f32::from_bits(random.next_u64() as u32)).collect()));
    rows
}

#[test]
fn every_level_stores_the_bits_that_the_codec_defines() {
    for level in Level::available() {
        for dtype in DTYPES {
            for row in rows() {
                let bytes = row.len() * codec::element_bytes(dtype);
                let parameters = dtype.parameter_bytes() as usize;
                let (mut got, mut got_parameters) = (vec![1; bytes], vec![1; parameters]);
                encode(level, dtype, &row, &mut got, &mut got_parameters);
                let (mut want, mut want_parameters) = (vec![2; bytes], vec![2; parameters]);
                codec::encode(dtype, &row, &mut want, &mut want_parameters);
                let decode = |bytes: &[u8], parameters: &[u8]| {
                    let mut out = vec![0.0; row.len()];
                    codec::decode(dtype, bytes, parameters, &mut out);
                    out
                };
                let (a, b) = (decode(&got, &got_parameters), decode(&want, &want_parameters));
                for (i, (a, b)) in a.iter().zip(&b).enumerate() {
                    let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
                    assert!(same, "{level:?} {dtype:?} {}: {a} for {b}", row[i]);
                }
                if row.iter().all(|x| !x.is_nan()) {
                    assert_eq!((got, got_parameters), (want, want_parameters), "{level:?} {dtype:?} {row:?}");
                }
            }
        }
    }
}
