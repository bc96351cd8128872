//! How often a hub that does not answer is asked again.

use std::time::Duration;

/// Connections in a row that bring nothing.
const FRUITLESS: u32 = 5;
/// Doubles with each of them.
const PAUSE: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(super) struct Patience {
    fruitless: u32,
}

impl Patience {
    /// After a connection that broke: how long to wait for the next one. None if it is the last of too many that
    /// brought nothing.
    pub(super) fn pause(&mut self, has_brought: bool) -> Option<Duration> {
        self.fruitless = if has_brought { 0 } else { self.fruitless + 1 };
        (self.fruitless < FRUITLESS).then(|| PAUSE * 2u32.pow(self.fruitless))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_something_comes_and_have_an_end() {
        let mut patience = Patience::default();
        let pauses = |patience: &mut Patience| [false; 4].map(|brought| patience.pause(brought).unwrap());
        let first = pauses(&mut patience);
        assert!(first.is_sorted_by(|a, b| *b == *a * 2), "{first:?}");
        assert_eq!(patience.pause(true), Some(PAUSE));
        assert_eq!(pauses(&mut patience), first);
        assert_eq!(patience.pause(false), None);
    }
}
