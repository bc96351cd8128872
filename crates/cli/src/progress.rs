//! Bars on standard error, where somebody is looking.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// A bar that appears only on a terminal.
pub(crate) fn bar(what: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg} [{bar:40}] {percent}% {eta}").expect("a valid template");
    bar.set_style(style.progress_chars("=> "));
    bar.set_message(what);
    bar
}
