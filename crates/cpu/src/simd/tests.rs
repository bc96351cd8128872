use super::*;
use crate::Level;
use octavo_backend::Random;
use octavo_backend::codec::e4m3;

fn vector<S: Simd>(f: impl Fn() -> S::V) -> Vec<f32> {
    let mut out = vec![0.0; LANES];
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
    for bits in [0x7fc0_0000, 0xffc0_0000, 0x7fc0_0001, 0x7fc0_0180, 0xffc0_00ff, 0x7fff_ffff] {
        assert!(exp2::<S>(f32::from_bits(bits)).is_nan(), "{bits:#x}");
    }
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
        let (got, want) = (read(&[byte; 16], S::fp8) * 256.0, e4m3::to_f32(byte));
        assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{byte:#x}");
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

fn check_sum<S: Simd>() {
    let mut random = Random::new(2);
    for _ in 0..1000 {
        let x = random.values(LANES, 10.0);
        // SAFETY: LANES elements.
        let sum = unsafe { S::sum(S::load(x.as_ptr())) };
        let exact: f64 = x.iter().map(|x| f64::from(*x)).sum();
        assert!((f64::from(sum) - exact).abs() < 1e-4);
    }
}

fn check_largest<S: Simd>() {
    let mut random = Random::new(1);
    for _ in 0..1000 {
        let x = random.values(LANES, 10.0);
        let largest = x.iter().copied().fold(f32::MIN, f32::max);
        // SAFETY: LANES elements.
        unsafe {
            let x = S::load(x.as_ptr());
            assert_eq!(S::largest(x), largest);
            assert!(!S::any_above(x, largest) && S::any_above(x, largest.next_down()));
        }
    }
}

fn check_pairs<S: Simd>() {
    let numbers: Vec<f32> = (0..2 * LANES as u8).map(|i| f32::from(i) * 1.5 - 20.0).collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect();
    for n in 0..2 {
        // SAFETY: LANES pairs.
        let got = vector::<S>(|| unsafe { S::f16_pairs(bytes.as_ptr())[n] });
        let want: Vec<f32> = numbers.iter().skip(n).step_by(2).copied().collect();
        assert_eq!(got, want);
    }
}

fn check_keep<S: Simd>() {
    for lanes in [0, 1, 0x80, 0x100, 0x8000, 0x7ffe, 0x0ff0, Lanes::MAX] {
        let numbers: [f32; LANES] = std::array::from_fn(|i| i as f32);
        // SAFETY: LANES elements.
        let got = vector::<S>(|| unsafe { S::keep(lanes, S::load(numbers.as_ptr()), -1.0) });
        let want = numbers.map(|x| if lanes & (1 << x as usize) == 0 { -1.0 } else { x });
        assert_eq!(got, want, "{lanes:#x}");
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
fn all_lanes_are_summed() {
    at_every_level!(check_sum);
}

#[test]
fn the_largest_lane_is_found() {
    at_every_level!(check_largest);
}

#[test]
fn pairs_come_apart() {
    at_every_level!(check_pairs);
}

#[test]
fn lanes_that_are_kept_are_kept() {
    at_every_level!(check_keep);
}
