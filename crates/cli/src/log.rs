//! Where log lines go: standard error, one line each. Where nobody reads it, or there is no room for more, lines are lost and
//! the work goes on.

use std::fmt::Display;
use std::io::Write as _;
use tracing_subscriber::filter::LevelFilter;

/// Writes a line to standard error, if that can be written to.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// From now on, what is at least this important is written.
pub(crate) fn start(level: tracing::Level) {
    let started = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::from_level(level))
        .with_writer(std::io::stderr)
        .with_target(false)
        .log_internal_errors(false)
        .try_init();
    if let Err(error) = started {
        say(format_args!("octavo: no log: {error}"));
    }
}
