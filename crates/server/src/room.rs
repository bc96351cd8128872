//! Room for bodies that are being read.
//!
//! All bodies share it, and nobody waits for it: whoever waited while holding some could wait for others who do the
//! same. A body that finds none is refused, and gives back what it held.

use crate::wire::error::ApiError;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The room of all bodies, beside the largest one.
const BODIES: usize = 256 << 20;

/// The first bytes of a body are not counted, so that a small one always finds room. They are bounded as well: only
/// requests under way are read, and those are limited.
const UNCOUNTED: usize = 32 << 10;

const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Bodies {
    /// One permit a KiB.
    room: Arc<Semaphore>,
}

/// What one body holds; given back when dropped.
#[derive(Debug)]
pub(crate) struct BodyRoom {
    held: OwnedSemaphorePermit,
}

impl Bodies {
    pub(crate) fn new(largest: usize) -> Self {
        Self { room: Arc::new(Semaphore::new((largest + BODIES) / 1024)) }
    }

    /// For a body of which nothing has been read.
    pub(crate) fn begin(&self) -> BodyRoom {
        BodyRoom { held: self.room.clone().try_acquire_many_owned(0).expect("nothing is always there") }
    }
}

impl BodyRoom {
    /// Room for `bytes` in all; takes only what it does not hold yet.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), ApiError> {
        let kib = bytes.saturating_sub(UNCOUNTED).div_ceil(1024);
        let more = u32::try_from(kib.saturating_sub(self.held.num_permits())).unwrap_or(u32::MAX);
        let more = self.held.semaphore().clone().try_acquire_many_owned(more).map_err(|_| full())?;
        self.held.merge(more);
        Ok(())
    }
}

fn full() -> ApiError {
    let message = format!(
        "bodies of other requests fill the room there is; send this one again later: up to {} KiB always find room",
        UNCOUNTED >> 10
    );
    ApiError::unavailable("bodies_full", message, RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies() -> Bodies {
        Bodies::new(1 << 20)
    }

    #[test]
    fn a_body_takes_as_much_in_one_part_as_in_many() {
        let bodies = bodies();
        let all = bodies.room.available_permits();
        let mut many = bodies.begin();
        for bytes in 1..=UNCOUNTED + 3000 {
            many.grow_to(bytes).unwrap();
        }
        assert_eq!(all - bodies.room.available_permits(), 3);
        let mut one = bodies.begin();
        one.grow_to(UNCOUNTED + 3000).unwrap();
        assert_eq!(all - bodies.room.available_permits(), 6);
        drop((many, one));
        assert_eq!(bodies.room.available_permits(), all);
    }

    #[test]
    fn who_finds_no_room_is_refused_at_once_and_small_bodies_always_find_some() {
        let bodies = bodies();
        let mut first = bodies.begin();
        first.grow_to(UNCOUNTED + BODIES).unwrap();
        let mut second = bodies.begin();
        second.grow_to(UNCOUNTED + (1 << 20)).unwrap();
        let error = first.grow_to(UNCOUNTED + BODIES + 1).unwrap_err();
        assert_eq!((error.status().as_u16(), error.code()), (503, Some("bodies_full")));
        bodies.begin().grow_to(UNCOUNTED).unwrap();
        assert!(bodies.begin().grow_to(UNCOUNTED + 1).is_err());
        drop(second);
        first.grow_to(UNCOUNTED + BODIES + 1).unwrap();
    }
}
