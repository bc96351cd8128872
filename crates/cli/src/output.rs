//! Standard output, which may be closed or full.

use anyhow::{Context, Result};
use std::fmt::Display;
use std::io::{ErrorKind, Result as Written, Write};

/// Whether somebody reads: whoever has stopped has seen enough. What cannot be written for another reason is lost.
pub(crate) fn is_read(written: Written<()>) -> Result<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}

/// Prints at once; see [`is_read`].
pub(crate) fn print(text: impl Display) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    is_read(write!(out, "{text}").and_then(|()| out.flush()))
}
