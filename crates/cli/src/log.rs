//! Where log lines go: standard error, one line each.

use tracing_subscriber::filter::LevelFilter;

/// From now on, what is at least this important is written.
pub(crate) fn start(level: tracing::Level) {
    let started = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::from_level(level))
        .with_writer(std::io::stderr)
        .with_target(false)
        .try_init();
    if let Err(error) = started {
        eprintln!("octavo: no log: {error}");
    }
}
