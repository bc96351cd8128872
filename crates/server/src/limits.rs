//! How much may be under way at once.

use crate::config::ServerOptions;
use crate::room::{Bodies, BodyRoom};
use crate::wire::error::ApiError;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};

/// Leave to be worked on; given back when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
pub(crate) struct Limits {
    requests: Arc<Semaphore>,
    max_requests: usize,
    /// Bodies that have not been parsed yet. Nobody waits for room; the first 32 KiB of each are not counted.
    bodies: Bodies,
    /// Places for [`Work`] of each kind.
    workers: Arc<Semaphore>,
    tokenizers: Arc<Semaphore>,
    compilers: Arc<Semaphore>,
    /// Questions to the engine at once.
    questions: Semaphore,
    draining: watch::Sender<bool>,
}

/// What is done off the async threads. Each kind has places of its own, so that none waits for another: however long a
/// text takes, generation has all of its places, on a single core too, which the system then shares among threads.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    /// Parsing and tokenising what is to be generated or pinned.
    Request,
    /// For those who want tokens alone.
    Tokens,
    /// For those who have a grammar compiled, which may take seconds.
    Grammar,
}

/// The engine answers one at a time: more would only look for theirs in vain.
const QUESTIONS: usize = 4;

impl Limits {
    pub(crate) fn new(options: &ServerOptions) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            requests: Arc::new(Semaphore::new(options.max_requests)),
            max_requests: options.max_requests,
            bodies: Bodies::new(options.max_body),
            workers: Arc::new(Semaphore::new(cores)),
            tokenizers: Arc::new(Semaphore::new((cores / 2).max(1))),
            compilers: Arc::new(Semaphore::new((cores / 2).max(1))),
            questions: Semaphore::new(QUESTIONS),
            draining: watch::Sender::new(false),
        }
    }

    /// Leave to generate, unless too many do or the server is about to end.
    pub(crate) fn enter(&self) -> Result<Permit, ApiError> {
        if self.is_draining() {
            return Err(shutting_down());
        }
        match self.requests.clone().try_acquire_owned() {
            Ok(permit) => Ok(Permit { _permit: permit }),
            Err(_) => {
                let message = format!("{} requests are under way, as many as may", self.max_requests);
                Err(ApiError::unavailable("too_many_requests", message, RETRY))
            }
        }
    }

    /// Room for a body that is about to be read.
    pub(crate) fn body(&self) -> BodyRoom {
        self.bodies.begin()
    }

    /// Waits for a place to work at.
    pub(crate) async fn place(&self, work: Work) -> OwnedSemaphorePermit {
        let places = match work {
            Work::Request => &self.workers,
            Work::Tokens => &self.tokenizers,
            Work::Grammar => &self.compilers,
        };
        places.clone().acquire_owned().await.expect("never closed")
    }

    /// Waits for a turn to ask the engine.
    pub(crate) async fn question(&self) -> SemaphorePermit<'_> {
        self.questions.acquire().await.expect("never closed")
    }

    pub(crate) fn drain(&self) {
        self.draining.send_replace(true);
    }
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }
    /// Waits until the server is about to end; returns what those are told who are still sending.
    pub(crate) async fn end(&self) -> ApiError {
        let mut draining = self.draining.subscribe();
        // An error would say that the sender is gone, and that is this.
        let _ = draining.wait_for(|draining| *draining).await;
        shutting_down()
    }
    /// Requests under way.
    pub(crate) fn in_flight(&self) -> usize {
        self.max_requests - self.requests.available_permits()
    }
}

fn shutting_down() -> ApiError {
    ApiError::unavailable("shutting_down", "the server is shutting down", RETRY)
}

const RETRY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(max_requests: usize) -> Limits {
        Limits::new(&ServerOptions { max_requests, ..ServerOptions::default() })
    }

    #[test]
    fn a_permit_is_given_back_when_dropped() {
        let limits = limits(1);
        let permit = limits.enter().unwrap();
        assert_eq!(limits.in_flight(), 1);
        assert_eq!(limits.enter().unwrap_err().status(), 503);
        drop(permit);
        assert_eq!(limits.in_flight(), 0);
        assert!(limits.enter().is_ok());
    }

    #[tokio::test]
    async fn grammars_take_nobody_elses_place() {
        let limits = limits(5);
        let mut compiling = Vec::new();
        while limits.compilers.available_permits() > 0 {
            compiling.push(limits.place(Work::Grammar).await);
        }
        assert!(limits.workers.available_permits() > 0 && limits.tokenizers.available_permits() > 0);
    }

    #[test]
    fn nobody_enters_a_server_that_is_about_to_end() {
        let limits = limits(5);
        limits.drain();
        assert_eq!(limits.enter().unwrap_err().status(), 503);
    }
}
