use super::*;
use crate::Level;
use octavo_backend::Random;
use octavo_backend::codec::e4m3;

fn vector<S: Simd>(f: impl Fn() -> S::V) -> Vec<f32> {
    let mut out = vec![0.0; S::LANES];
    // SAFETY: the test runs what the machine has; `out` has LANES elements.
    unsafe { S::store(out.as_mut_ptr(), f()) };
    out
}

fn exp2<S: Simd>(x: f32) -> f32 {
    // SAFETY: the test runs what the machine has.
    vector::<S>(|| unsafe { S::exp2(S::splat(x)) })[0]
}

fn check_exp2<S: Simd>() {
    assert_eq!(exp2::<S>(0.0), 1.0);
    assert_eq!((exp2::<S>(f32::NEG_INFINITY), exp2::<S>(-126.5), exp2::<S>(-1e30)), (0.0, 0.0, 0.0));
    assert!(exp2::<S>(f32::NAN).is_nan());
    for i in 0..200_000 {
        let x = -126.0 * i as f32 / 200_000.0;
        let (got, want) = (f64::from(exp2::<S>(x)), f64::from(x).exp2());
        assert!((got / want - 1.0).abs() < 2.0 * f64::from(f32::EPSILON), "2^{x}: {got} for {want}");
    }
}

fn check_widening<S: Simd>() {
    let read = |bytes: &[u8], f: unsafe fn(*const u8) -> S::V| {
        // SAFETY: `bytes` has LANES elements.
        vector::<S>(|| unsafe { f(bytes.as_ptr()) })[0]
    };
    for byte in 0..=255u8 {
        assert_eq!(read(&[byte; 16], S::u8), f32::from(byte));
        if byte & 0x7f != 0x7f {
            let (got, want) = (read(&[byte; 16], S::fp8) * 256.0, e4m3::to_f32(byte));
            assert_eq!(got.to_bits(), want.to_bits(), "{byte:#x}");
        }
    }
    for bits in 0..=u16::MAX {
        let bytes: Vec<u8> = std::iter::repeat_n(bits.to_le_bytes(), 16).flatten().collect();
        for (got, want) in [
            (read(&bytes, S::f16), half::f16::from_bits(bits).to_f32()),
            (read(&bytes, S::bf16), half::bf16::from_bits(bits).to_f32()),
        ] {
            assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{bits:#x}");
        }
    }
}

fn check_sixteen_sums<S: Simd>() {
    let mut random = Random::new(2);
    for _ in 0..1000 {
        let x = random.values(16 * S::LANES, 10.0);
        let mut sums = [[0.0; 4]; 4];
        // SAFETY: sixteen vectors of LANES elements, and four arrays of four to write to.
        unsafe {
            let load = |i: usize| S::load(x[i * S::LANES..][..S::LANES].as_ptr());
            let out = sums.each_mut().map(std::ptr::from_mut);
            S::sum16(std::array::from_fn(load), out);
            for i in 0..16 {
                assert_eq!(sums[i % 4][i / 4].to_bits(), S::sum(load(i)).to_bits(), "vector {i}");
            }
        }
    }
}

fn check_sums<S: Simd>() {
    let mut random = Random::new(1);
    for _ in 0..1000 {
        let x = random.values(4 * S::LANES, 10.0);
        // SAFETY: four vectors of LANES elements.
        unsafe {
            let load = |i: usize| S::load(x[i * S::LANES..][..S::LANES].as_ptr());
            let four = S::sum4([load(0), load(1), load(2), load(3)]);
            for (i, sum) in four.iter().enumerate() {
                assert_eq!(sum.to_bits(), S::sum(load(i)).to_bits());
                let exact: f64 = x[i * S::LANES..][..S::LANES].iter().map(|x| f64::from(*x)).sum();
                assert!((f64::from(*sum) - exact).abs() < 1e-4);
                let largest = x[i * S::LANES..][..S::LANES].iter().copied().fold(f32::MIN, f32::max);
                assert_eq!(S::largest(load(i)), largest);
            }
        }
    }
}

/// Runs a check for every level that the machine has.
macro_rules! at_every_level {
    ($check:ident) => {
        for level in Level::available() {
            match level {
                Level::Portable => $check::<Portable>(),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => $check::<Avx2>(),
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => $check::<Avx512>(),
                #[cfg(not(target_arch = "x86_64"))]
                _ => unreachable!("not on this machine"),
            }
        }
    };
}

#[test]
fn powers_of_two_are_within_two_units_in_the_last_place() {
    at_every_level!(check_exp2);
}

#[test]
fn every_stored_number_widens_to_its_value() {
    at_every_level!(check_widening);
}

#[test]
fn sixteen_sums_at_once_have_the_bits_of_one() {
    at_every_level!(check_sixteen_sums);
}

#[test]
fn four_sums_at_once_have_the_bits_of_one() {
    at_every_level!(check_sums);
}
