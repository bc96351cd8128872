//! E4M3, the "fn" variant (finite, with NaN): a sign, four bits of exponent with a bias of 7, three of mantissa.
//!
//! There are no infinities; the only NaNs are `0x7f` and `0xff`; the largest magnitude is 448 (`0x7e`), the smallest
//! normal one 2⁻⁶ (`0x08`), the smallest of all 2⁻⁹ (`0x01`).

pub const MAX: f32 = 448.0;

/// The value of every byte.
pub const TO_F32: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = to_f32(byte as u8);
        byte += 1;
    }
    table
};

/// The value of a byte, exactly.
pub const fn to_f32(byte: u8) -> f32 {
    let sign = (byte as u32 & 0x80) << 24;
    let magnitude = byte as u32 & 0x7f;
    let value = match magnitude {
        0x7f => f32::NAN,
        // Subnormal: a multiple of 2⁻⁹.
        0..8 => magnitude as f32 * (1.0 / 512.0),
        // Mantissa and exponent move to their place in an f32, whose bias is 120 more.
        _ => f32::from_bits((magnitude << 20) + (120 << 23)),
    };
    f32::from_bits(value.to_bits() | sign)
}

/// The nearest value, ties to the even mantissa; magnitudes above 448 (infinities too) become 448. Every NaN
/// becomes `0x7f`.
pub fn from_f32(x: f32) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let sign = ((x.to_bits() >> 24) & 0x80) as u8;
    let magnitude = x.abs().min(MAX);
    let rounded = if magnitude < 1.0 / 64.0 {
        // A multiple of 2⁻⁹; eight of them are the smallest normal, as they should be.
        (magnitude * 512.0).round_ties_even() as u8
    } else {
        let bits = magnitude.to_bits() - (120 << 23);
        ((bits + 0x7_ffff + ((bits >> 20) & 1)) >> 20) as u8
    };
    sign | rounded
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition of the format, in f64: (-1)^s · 2^(e-7) · (1 + m/8), or (-1)^s · 2^-6 · m/8 for e = 0.
    fn by_definition(byte: u8) -> f64 {
        let (sign, e, m) = (f64::from(byte >> 7), i32::from((byte >> 3) & 15), f64::from(byte & 7));
        let sign = 1.0 - 2.0 * sign;
        match (e, m) {
            (15, 7.0) => f64::NAN,
            (0, m) => sign * 2f64.powi(-6) * (m / 8.0),
            (e, m) => sign * 2f64.powi(e - 7) * (1.0 + m / 8.0),
        }
    }

    #[test]
    fn all_256_bytes_have_the_value_the_format_defines() {
        for byte in 0..=255u8 {
            let (got, want) = (TO_F32[usize::from(byte)], by_definition(byte));
            if want.is_nan() {
                assert!(got.is_nan(), "{byte:#x}");
            } else {
                assert_eq!(f64::from(got), want, "{byte:#x}");
                assert_eq!(got.is_sign_negative(), byte & 0x80 != 0, "{byte:#x}");
            }
        }
        assert_eq!(
            [to_f32(0x7e), to_f32(0x38), to_f32(0x08), to_f32(0x01)],
            [448.0, 1.0, 0.015625, 0.001953125]
        );
    }

    #[test]
    fn every_value_encodes_to_its_own_byte() {
        for byte in (0..=255u8).filter(|b| b & 0x7f != 0x7f) {
            assert_eq!(from_f32(to_f32(byte)), byte, "{byte:#x}");
        }
    }

    #[test]
    fn between_two_values_the_nearer_is_taken_and_ties_go_to_the_even_one() {
        for low in 0..0x7eu8 {
            let (a, b) = (to_f32(low), to_f32(low + 1));
            let middle = (a + b) / 2.0;
            let even = low + (low & 1);
            for sign in [1.0, -1.0] {
                let bit = if sign < 0.0 { 0x80 } else { 0 };
                assert_eq!(from_f32(sign * middle), even | bit, "between {a} and {b}");
                assert_eq!(from_f32(sign * middle.next_down()), low | bit, "between {a} and {b}");
                assert_eq!(from_f32(sign * middle.next_up()), (low + 1) | bit, "between {a} and {b}");
            }
        }
    }

    #[test]
    fn what_is_too_large_saturates_and_nan_stays_nan() {
        for x in [448.1, 464.0, 465.0, 1e30, f32::MAX, f32::INFINITY] {
            assert_eq!((from_f32(x), from_f32(-x)), (0x7e, 0xfe), "{x}");
        }
        assert_eq!((from_f32(f32::NAN), from_f32(-f32::NAN)), (0x7f, 0x7f));
        assert_eq!((from_f32(0.0), from_f32(-0.0)), (0x00, 0x80));
        assert_eq!((from_f32(1e-40), from_f32(-1e-40)), (0x00, 0x80));
    }
}
