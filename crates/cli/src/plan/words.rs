//! Numbers as people read them.

/// `1835008` as `1 835 008`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// In powers of 1000, as sizes on the command line are.
pub(crate) fn bytes(n: u64) -> String {
    let n = n as f64;
    match n {
        ..1e3 => format!("{n} B"),
        ..1e6 => format!("{:.1} kB", n / 1e3),
        ..1e9 => format!("{:.2} MB", n / 1e6),
        _ => format!("{:.2} GB", n / 1e9),
    }
}

/// How many times `of` goes into `n`.
pub(crate) fn times(n: u64, of: u64) -> String {
    match of {
        0 => "-".into(),
        _ => format!("{:.1}x", n as f64 / of as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_come_in_threes() {
        assert_eq!([0, 999, 1000, 1_835_008].map(grouped), ["0", "999", "1 000", "1 835 008"]);
    }

    #[test]
    fn sizes_have_the_unit_that_suits_them() {
        assert_eq!(
            [12, 26_624, 1_835_008, 4_915_200_000].map(bytes),
            ["12 B", "26.6 kB", "1.84 MB", "4.92 GB"]
        );
    }

    #[test]
    fn nothing_is_compared_with_nothing() {
        assert_eq!((times(128, 8), times(1, 0)), ("16.0x".into(), "-".into()));
    }
}
