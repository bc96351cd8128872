//! One request, its text printed as it comes.

use crate::output::is_read;
use anyhow::Result;
use octavo::{Event, Flow, Llm, Output, Outputs, Request};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// An answer and its times: to the first token, and from there to the end.
pub(crate) struct Answer {
    pub(crate) output: Output,
    pub(crate) prefill: Duration,
    pub(crate) decode: Duration,
}

/// Runs a request of one choice. Unless `quiet`, the text is printed as it comes; a bar shows how far a long prompt has
/// been read. It ends early if `interrupted` becomes true or nobody reads any more, and keeps what is there; what cannot be
/// written is an error.
pub(crate) fn run(llm: &mut Llm, request: Request, quiet: bool, interrupted: &AtomicBool) -> Result<Answer> {
    let bar = crate::progress::bar("reading the prompt");
    let start = Instant::now();
    let (mut first, mut lost) = (None, None);
    let mut out = std::io::stdout().lock();
    let mut watch = |_: usize, event: &Event| {
        let text = match event {
            Event::Prefill { done, total, .. } => {
                bar.set_length(total.0.into());
                bar.set_position(done.0.into());
                if done == total {
                    bar.finish_and_clear();
                }
                ""
            }
            Event::Token(token) => {
                first.get_or_insert_with(|| start.elapsed());
                &token.text
            }
            Event::Finished(end) => &end.text,
            Event::PromptLogprobs(_) | Event::Done(_) | Event::Failed(_) => "",
        };
        let read = quiet
            || is_read(write!(out, "{text}").and_then(|()| out.flush())).unwrap_or_else(|error| {
                lost = Some(error);
                false
            });
        if !read || interrupted.load(Ordering::Relaxed) { Flow::Cancel } else { Flow::Continue }
    };
    let Outputs { mut choices, failure, .. } = llm.engine().generate(vec![request], &mut watch)?.remove(0);
    let prefill = first.unwrap_or_else(|| start.elapsed());
    let decode = start.elapsed() - prefill;
    if let Some(failure) = failure {
        return Err(failure.into());
    }
    if let Some(error) = lost {
        return Err(error);
    }
    if !quiet {
        is_read(writeln!(out))?;
    }
    Ok(Answer { output: choices.remove(0), prefill, decode })
}
