//! Inputs of a step on their way: written into host memory that the device reads by itself, sent by one copy.

use crate::device::Device;
use crate::memory::{Memory, Plain, bytes_of};
use octavo_backend::BackendError;
use std::fmt;
use std::sync::Arc;

/// Every input begins at a multiple of this.
const ALIGNMENT: usize = 256;

/// Where an input lies in the stage, and how long it may become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) at: usize,
    pub(crate) capacity: usize,
}

/// One place after another; and where the next would be.
pub(crate) fn places(capacities: impl IntoIterator<Item = usize>) -> (Vec<Place>, usize) {
    let mut next = 0;
    let place = |capacity: usize| {
        let at = next;
        next = (at + capacity).next_multiple_of(ALIGNMENT);
        Place { at, capacity }
    };
    let places = capacities.into_iter().map(place).collect();
    (places, next)
}

#[derive(Debug, Default)]
pub(crate) struct Stage {
    buffers: Option<(Pinned, Memory)>,
    /// A copy may still be reading.
    pub(crate) in_flight: bool,
}

impl Stage {
    /// Room for so many bytes; moves where there was less.
    pub(crate) fn reserve(&mut self, device: &Arc<dyn Device>, bytes: usize) -> Result<(), BackendError> {
        if self.buffers.as_ref().is_none_or(|(_, there)| there.bytes() < bytes) {
            let bytes = bytes.next_power_of_two();
            self.buffers = Some((Pinned::new(device, bytes)?, Memory::new(device, bytes)?.kept()));
        }
        Ok(())
    }

    /// What is written there goes to the device with the next [`send`](Self::send).
    pub(crate) fn at(&mut self, place: Place) -> Writer<'_> {
        assert!(!self.in_flight, "a copy may still be reading");
        let (host, _) = self.buffers.as_mut().expect("reserved");
        Writer { rest: &mut host.bytes_mut()[place.at..][..place.capacity] }
    }

    pub(crate) fn address(&self, place: Place) -> u64 {
        let (_, there) = self.buffers.as_ref().expect("reserved");
        there.address() + place.at as u64
    }

    /// Copies the first `bytes`, in the order of the device's work.
    pub(crate) fn send(&mut self, device: &dyn Device, bytes: usize) -> Result<(), BackendError> {
        let (host, there) = self.buffers.as_mut().expect("reserved");
        self.in_flight = true;
        // SAFETY: `in_flight` keeps the host's bytes as they are until somebody has waited; there is as much room.
        unsafe { device.upload_later(there.address(), &host.bytes_mut()[..bytes]) }
    }
}

/// Fills a place from its beginning.
pub(crate) struct Writer<'a> {
    rest: &'a mut [u8],
}

impl Writer<'_> {
    pub(crate) fn put<T: Plain>(&mut self, values: &[T]) {
        let bytes = bytes_of(values);
        let (now, rest) = std::mem::take(&mut self.rest).split_at_mut(bytes.len());
        now.copy_from_slice(bytes);
        self.rest = rest;
    }

    pub(crate) fn put_each<T: Plain>(&mut self, values: impl Iterator<Item = T>) {
        values.for_each(|value| self.put(&[value]));
    }
}

/// Host memory that the device reads by itself.
struct Pinned {
    device: Arc<dyn Device>,
    address: *mut u8,
    bytes: usize,
}

// SAFETY: owned memory, like a box.
unsafe impl Send for Pinned {}

impl Pinned {
    fn new(device: &Arc<dyn Device>, bytes: usize) -> Result<Self, BackendError> {
        let address = device.allocate_host(bytes)?;
        // SAFETY: just allocated; zeros are bytes.
        unsafe { address.write_bytes(0, bytes) };
        Ok(Self { device: device.clone(), address, bytes })
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated and initialised in `new`, and borrowed with this value.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; the device waits for its copies.
        unsafe { self.device.release_host(self.address, self.bytes) };
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of the host", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::Emulated;

    #[test]
    fn places_lie_one_after_another_where_the_device_reads_whole_units() {
        let (places, end) = places([4, 0, 256, 257]);
        assert_eq!(places.iter().map(|place| place.at).collect::<Vec<_>>(), [0, 256, 256, 512]);
        assert_eq!(end, 1024);
    }

    #[test]
    fn what_was_sent_is_in_flight_until_somebody_waits() {
        let device: Arc<dyn Device> = Arc::new(Emulated::default());
        let mut stage = Stage::default();
        stage.reserve(&device, 8).unwrap();
        stage.at(Place { at: 0, capacity: 8 }).put(&[7u32]);
        assert!(!stage.in_flight);
        stage.send(&*device, 8).unwrap();
        assert!(stage.in_flight);
    }

    #[test]
    fn a_stage_that_grows_has_moved() {
        let device: Arc<dyn Device> = Arc::new(Emulated::default());
        let mut stage = Stage::default();
        let moves = [8, 8, 300].map(|bytes| {
            stage.reserve(&device, bytes).unwrap();
            stage.at(Place { at: bytes - 4, capacity: 4 }).put(&[7u32]);
            device.moves()
        });
        assert_eq!(moves, [0, 0, 1]);
    }
}
