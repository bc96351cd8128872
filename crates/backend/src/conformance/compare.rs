//! Comparisons that name the case and the place where they fail.

/// Each element within its own bound.
pub(super) fn close(case: &str, got: &[f32], want: &[f32], bound: impl Fn(usize) -> f32) {
    assert_eq!(got.len(), want.len(), "{case}: lengths");
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let bound = bound(i);
        assert!((got - want).abs() <= bound, "{case}: element {i} is {got}, should be {want} within {bound}");
    }
}

/// Each element within `tolerance` times the largest magnitude of its row of `cols`.
pub(super) fn close_by_row(case: &str, got: &[f32], want: &[f32], cols: usize, tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{case}: lengths");
    for (row, (got, want)) in got.chunks(cols).zip(want.chunks(cols)).enumerate() {
        let bound = tolerance * largest(want);
        close(&format!("{case}, row {row}"), got, want, |_| bound);
    }
}

pub(super) fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |a, x| a.max(x.abs()))
}

/// The same bits, and no NaN among them.
pub(super) fn same(case: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{case}: lengths");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(
            got.to_bits() == want.to_bits(),
            "{case}: element {i} is {got:?}, should be {want:?} exactly"
        );
        assert!(!got.is_nan(), "{case}: element {i} is NaN");
    }
}
