//! How long something takes on the device that finds nothing in its cache.

use cudarc::driver::result as driver;
use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream};

/// Runs of which the quickest counts.
const TRIES: usize = 4;
/// More than a device's cache holds: written between tries, so that each finds its weights in memory.
const COLD: usize = 96 << 20;

/// The device's clock on a stream, and memory to empty its cache with.
pub(super) struct Clock {
    stream: CUstream,
    start: CUevent,
    end: CUevent,
    cold: u64,
}

impl Clock {
    /// `None` where there is no memory for it.
    pub(super) fn new(stream: CUstream) -> Option<Self> {
        let timed = CUevent_flags::CU_EVENT_DEFAULT;
        let (start, end) = (driver::event::create(timed).ok()?, driver::event::create(timed).ok()?);
        // SAFETY: freed in the order of the stream by `drop`.
        let cold = unsafe { driver::malloc_async(stream, COLD) }.ok()?;
        Some(Self { stream, start, end, cold })
    }

    pub(super) fn stream(&self) -> CUstream {
        self.stream
    }

    /// Milliseconds of the quickest of some runs; `None` if one failed.
    pub(super) fn least(&self, run: impl Fn() -> Option<()>) -> Option<f32> {
        let once = || {
            // SAFETY: live events and stream, as much memory as is written.
            unsafe {
                driver::memset_d8_async(self.cold, 0, COLD, self.stream).ok()?;
                driver::event::record(self.start, self.stream).ok()?;
                run()?;
                driver::event::record(self.end, self.stream).ok()?;
                driver::event::synchronize(self.end).ok()?;
                driver::event::elapsed(self.start, self.end).ok()
            }
        };
        let times: Option<Vec<f32>> = (0..TRIES).map(|_| once()).collect();
        times?.into_iter().reduce(f32::min)
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed here alone.
        unsafe {
            let _ = driver::free_async(self.cold, self.stream);
            let _ = driver::event::destroy(self.start);
            let _ = driver::event::destroy(self.end);
        }
    }
}
