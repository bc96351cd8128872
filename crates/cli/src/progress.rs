//! Bars on standard error, where somebody is looking.

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use octavo::{Download, Loading};
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

/// Loading a model: its weights, then what the GPU gets ready for.
#[derive(Debug, Default)]
pub(crate) struct Load {
    shown: Option<(&'static str, ProgressBar)>,
}

impl Load {
    pub(crate) fn update(&mut self, at: Loading) {
        let (what, done, total) = match at {
            Loading::Weights(at) => ("loading", at.bytes_done, at.bytes_total),
            Loading::WarmUp { done, total } => ("preparing the GPU", done as u64, total as u64),
            Loading::Commit { done, total } => ("taking memory", done as u64, total as u64),
        };
        if self.shown.as_ref().is_none_or(|(shown, _)| *shown != what) {
            self.clear();
            self.shown = Some((what, bar(what)));
        }
        if let Some((_, bar)) = &self.shown {
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    fn clear(&mut self) {
        if let Some((_, bar)) = self.shown.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Downloads, one file after another: a bar on a terminal, a line a file elsewhere.
#[derive(Debug, Default)]
pub(crate) struct Downloads {
    file: String,
    bar: Option<ProgressBar>,
}

impl Downloads {
    pub(crate) fn update(&mut self, at: Download<'_>) {
        if self.file != at.file {
            self.finish();
            self.file = at.file.into();
            self.bar = std::io::stderr().is_terminal().then(|| file_bar(at));
            if self.bar.is_none() {
                crate::log::say(format_args!(
                    "octavo: downloading {} ({})",
                    at.file,
                    HumanBytes(at.bytes_total)
                ));
            }
        }
        if let Some(bar) = &self.bar {
            bar.set_position(at.bytes_done);
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Downloads {
    fn drop(&mut self) {
        self.finish();
    }
}

fn file_bar(at: Download<'_>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(at.bytes_total), ProgressDrawTarget::stderr());
    let style = "downloading {msg} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    bar.set_style(ProgressStyle::with_template(style).expect("a valid template").progress_chars("=> "));
    bar.set_message(at.file.to_owned());
    bar
}
