//! What the benches share: clocks, medians, random order, and a line of progress.

use indicatif::{ProgressBar, ProgressStyle};
use std::convert::Infallible;
use std::time::{Duration, Instant};

/// Every bench draws its random order from here, so that two runs do the same work.
pub(super) const SEED: u64 = 0x6f63_7461_766f;

/// Figures of repeated rounds.
#[derive(Debug, Default, Clone)]
pub(super) struct Samples(Vec<f64>);

impl Samples {
    pub(super) fn push(&mut self, figure: f64) {
        self.0.push(figure);
    }

    /// The middle of the rounds, so that one that was disturbed does not count. Panics without any.
    pub(super) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        if sorted.len().is_multiple_of(2) {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        } else {
            sorted[middle]
        }
    }

    /// The median of the rounds' quotients by `other`: what slows a whole round down is on both sides.
    pub(super) fn over(&self, other: &Self) -> f64 {
        Self(self.0.iter().zip(&other.0).map(|(figure, other)| figure / other).collect()).median()
    }
}

/// The medians of repeated measurements. They run in turn, so that a busy moment of the machine meets all of
/// them alike; a first round only warms up.
pub(super) fn interleave<const N: usize>(rounds: u32, mut measure: [&mut dyn FnMut() -> f64; N]) -> [f64; N] {
    let medians =
        in_turn::<_, N, Infallible>(rounds, std::array::from_fn(|i| i), |i: usize| Ok(measure[i]()));
    medians.unwrap_or_else(|never| match never {})
}

/// The same for what shares one state: `measure` is told whose turn it is.
pub(super) fn in_turn<T: Copy, const N: usize, E>(
    rounds: u32,
    turns: [T; N],
    measure: impl FnMut(T) -> Result<f64, E>,
) -> Result<[f64; N], E> {
    Ok(rounds_in_turn(rounds, turns, measure)?.map(|samples| samples.median()))
}

/// The same with the figures of all rounds.
pub(super) fn rounds_in_turn<T: Copy, const N: usize, E>(
    rounds: u32,
    turns: [T; N],
    mut measure: impl FnMut(T) -> Result<f64, E>,
) -> Result<[Samples; N], E> {
    let mut samples = [const { Samples(Vec::new()) }; N];
    for round in 0..=rounds {
        for (&turn, samples) in turns.iter().zip(&mut samples) {
            let figure = measure(turn)?;
            if round > 0 {
                samples.push(figure);
            }
        }
    }
    Ok(samples)
}

/// Runs `work` once.
pub(super) fn time<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed(), result)
}

/// Nanoseconds a piece.
pub(super) fn ns_each(took: Duration, pieces: u64) -> f64 {
    took.as_nanos() as f64 / pieces as f64
}

/// A bar on standard error, if that is a terminal. It is drawn between rounds only.
pub(super) fn progress(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a valid template");
    ProgressBar::new(steps).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_figure_or_the_mean_of_the_two() {
        let median = |figures: &[f64]| Samples(figures.to_vec()).median();
        assert_eq!(median(&[3.0, 1.0, 9.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0, 9.0, 2.0]), 3.0);
    }

    #[test]
    fn quotients_are_taken_round_by_round() {
        // Twice as slow rounds on both sides, and one disturbed round on one.
        let [these, those] =
            [[2.0, 4.0, 2.2, 4.4, 9.0], [1.0, 2.0, 1.0, 2.0, 1.0]].map(|x| Samples(x.to_vec()));
        assert_eq!(these.over(&those), 2.2);
    }
}
