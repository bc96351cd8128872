//! Questions to the engine's thread, which it answers between two steps.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The engine did not answer in time, or its thread is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    #[error("the engine is in the middle of a step: try again")]
    Busy,
    #[error("the engine has stopped")]
    Stopped,
}

/// What the engine is going to say. Dropping it withdraws the question: what was not begun by then is not done.
#[must_use = "a question is withdrawn when nobody waits for its answer"]
#[derive(Debug)]
pub struct Answer<T> {
    answer: Receiver<T>,
    _waits: Arc<()>,
}

impl<T> Answer<T> {
    /// The answer, if it comes in time. An engine that was [busy](NoAnswer::Busy) can be waited for again.
    pub fn wait(&mut self, within: Duration) -> Result<T, NoAnswer> {
        self.answer.recv_timeout(within).map_err(|error| match error {
            RecvTimeoutError::Timeout => NoAnswer::Busy,
            RecvTimeoutError::Disconnected => NoAnswer::Stopped,
        })
    }
}

/// Where an answer goes.
pub(crate) struct Reply<T> {
    reply: Sender<T>,
    waits: Weak<()>,
}

impl<T> Reply<T> {
    /// Answers, if anybody waits; an answer that came too late for that is handed back.
    pub(crate) fn give(self, answer: impl FnOnce() -> T) -> Option<T> {
        self.waits.upgrade()?;
        self.reply.send(answer()).err().map(|SendError(lost)| lost)
    }
}

pub(crate) fn question<T>() -> (Reply<T>, Answer<T>) {
    let ((reply, answer), waits) = (channel(), Arc::new(()));
    (Reply { reply, waits: Arc::downgrade(&waits) }, Answer { answer, _waits: waits })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_nobody_waits_for_is_not_made_or_handed_back() {
        let (reply, answer) = question::<u32>();
        drop(answer);
        assert_eq!(reply.give(|| panic!("nobody asked")), None);
        let (reply, answer) = question();
        assert_eq!(reply.give(move || (drop(answer), 5).1), Some(5));
        let (reply, mut answer) = question();
        assert_eq!(reply.give(|| 6), None);
        assert_eq!(answer.wait(Duration::ZERO), Ok(6));
        assert_eq!(answer.wait(Duration::ZERO), Err(NoAnswer::Stopped));
    }
}
