//! Ctrl-C ends what runs, and keeps what is there.

use anyhow::{Context, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// True once Ctrl-C was pressed. Pressed again before it was made false, the program ends at once.
pub(crate) fn flag() -> Result<Arc<AtomicBool>> {
    let pressed = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&pressed);
    ctrlc::set_handler(move || {
        if seen.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
    .context("cannot watch for Ctrl-C")?;
    Ok(pressed)
}
