use std::time::Duration;

/// Microseconds since an origin of the caller's choice. Whoever drives the cache reads the clock once a step
/// and says what time it is; nothing below reads a clock, so tests set the time as they please.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    pub fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000))
    }
    pub fn secs(self) -> u64 {
        self.0 / 1_000_000
    }
    /// Time from `earlier` to this; zero if `earlier` is in fact later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}
