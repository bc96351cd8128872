//! Questions to the engine's thread, which it answers between two steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The engine did not answer in time, or its thread is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    #[error("the engine is in the middle of a step: try again")]
    Busy,
    #[error("the engine has stopped")]
    Stopped,
}

/// What the engine is going to say. Dropping it withdraws the question.
///
/// Invariant: whoever sets `taken` first decides whether the engine answers or the question is withdrawn.
#[must_use = "a question is withdrawn when nobody waits for its answer"]
#[derive(Debug)]
pub struct Answer<T> {
    answer: Receiver<T>,
    taken: Arc<AtomicBool>,
}

impl<T> Answer<T> {
    /// The answer, once, if it comes in time. An engine that was [busy](NoAnswer::Busy) can be waited for again.
    pub fn wait(&mut self, within: Duration) -> Result<T, NoAnswer> {
        self.answer.recv_timeout(within).map_err(|error| match error {
            RecvTimeoutError::Timeout => NoAnswer::Busy,
            RecvTimeoutError::Disconnected => NoAnswer::Stopped,
        })
    }

    /// Whether what was asked for is not going to be done. Otherwise it is being done, and the answer comes soon.
    pub fn withdraw(&mut self) -> bool {
        !self.taken.swap(true, Ordering::Relaxed)
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// Where an answer goes.
pub(crate) struct Reply<T> {
    reply: Sender<T>,
    taken: Arc<AtomicBool>,
}

impl<T> Reply<T> {
    /// Answers, unless the question was withdrawn.
    pub(crate) fn give(self, answer: impl FnOnce() -> T) {
        if !self.taken.swap(true, Ordering::Relaxed) {
            // Whoever asked may have gone since.
            let _ = self.reply.send(answer());
        }
    }
}

pub(crate) fn question<T>() -> (Reply<T>, Answer<T>) {
    let ((reply, answer), taken) = (channel(), Arc::new(AtomicBool::new(false)));
    (Reply { reply, taken: taken.clone() }, Answer { answer, taken })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_answered_or_withdrawn() {
        let (reply, mut answer) = question();
        assert_eq!(answer.wait(Duration::ZERO), Err(NoAnswer::Busy));
        reply.give(|| 6);
        assert!(!answer.withdraw(), "too late");
        assert_eq!(answer.wait(Duration::ZERO), Ok(6));
        let (reply, mut answer) = question::<u32>();
        assert!(answer.withdraw());
        reply.give(|| panic!("nobody asks any more"));
        assert_eq!(answer.wait(Duration::ZERO), Err(NoAnswer::Stopped));
        let (reply, answer) = question::<u32>();
        drop(answer);
        reply.give(|| panic!("nobody asks any more"));
    }
}
