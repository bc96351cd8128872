//! Device memory owned by a value.

use crate::device::{Device, Grid};
use crate::kernels::Kernel;
use octavo_backend::BackendError;
use octavo_types::PageId;
use std::fmt;
use std::sync::Arc;

/// A run of device memory; freed when it is dropped, in the order of the device's work.
pub(crate) struct Memory {
    device: Arc<dyn Device>,
    address: u64,
    bytes: usize,
    /// Recorded steps may use it.
    kept: bool,
}

impl Memory {
    pub(crate) fn new(device: &Arc<dyn Device>, bytes: usize) -> Result<Self, BackendError> {
        let address = if bytes == 0 { 0 } else { device.allocate(bytes)? };
        Ok(Self { device: device.clone(), address, bytes, kept: false })
    }

    pub(crate) fn of<T: Plain>(device: &Arc<dyn Device>, values: &[T]) -> Result<Self, BackendError> {
        let memory = Self::new(device, size_of_val(values))?;
        memory.write(0, bytes_of(values))?;
        Ok(memory)
    }

    pub(crate) fn zeroed(device: &Arc<dyn Device>, bytes: usize) -> Result<Self, BackendError> {
        let memory = Self::new(device, bytes)?;
        if bytes > 0 {
            // SAFETY: that many bytes were allocated just now.
            unsafe { device.zero(memory.address, bytes)? };
        }
        Ok(memory)
    }

    /// Memory that outlives a step: its end is the end of recordings that may use it.
    pub(crate) fn kept(mut self) -> Self {
        self.kept = true;
        self
    }

    /// The address of so many bytes in `slot`, which is replaced where it has fewer.
    pub(crate) fn at_least(
        slot: &mut Option<Self>,
        device: &Arc<dyn Device>,
        bytes: usize,
    ) -> Result<u64, BackendError> {
        match slot {
            Some(memory) if memory.bytes >= bytes => Ok(memory.address),
            _ => Ok(slot.insert(Self::new(device, bytes.next_power_of_two())?.kept()).address),
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn write(&self, at: usize, from: &[u8]) -> Result<(), BackendError> {
        assert!(at + from.len() <= self.bytes, "{} bytes at {at} of {}", from.len(), self.bytes);
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the range was checked to lie within this allocation.
        unsafe { self.device.upload(self.address + at as u64, from) }
    }

    pub(crate) fn read(&self, to: &mut [u8]) -> Result<(), BackendError> {
        self.read_at(0, to)
    }

    pub(crate) fn read_at(&self, at: usize, to: &mut [u8]) -> Result<(), BackendError> {
        assert!(at + to.len() <= self.bytes, "{} bytes at {at} of {}", to.len(), self.bytes);
        if to.is_empty() {
            return Ok(());
        }
        // SAFETY: the range was checked to lie within this allocation.
        unsafe { self.device.download(self.address + at as u64, to) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.kept {
            self.device.note_move();
        }
        if self.bytes > 0 {
            // SAFETY: allocated in `new`, and no one else has the address any more.
            unsafe { self.device.release(self.address) };
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.bytes, self.address)
    }
}

/// Types that are their bytes: any bits are a value, and there is no padding.
/// # Safety
/// As said.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: plain numbers.
unsafe impl Plain for u8 {}
// SAFETY: plain numbers.
unsafe impl Plain for u32 {}
// SAFETY: plain numbers.
unsafe impl Plain for f32 {}
// SAFETY: `repr(transparent)` over a number.
unsafe impl Plain for PageId {}

pub(crate) fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `Plain` types have no padding, so that all bytes are initialised; u8 has no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// # Safety
/// `args` is what the kernel's text declares, and the addresses in it have room for what the kernel does there.
pub(crate) unsafe fn launch<A>(
    device: &dyn Device,
    kernel: Kernel,
    grid: Grid,
    args: &A,
) -> Result<(), BackendError> {
    if grid.blocks.contains(&0) {
        return Ok(());
    }
    // SAFETY: the caller's promise, passed on; `args` lives until the call returns, which copies it.
    unsafe { device.launch(kernel, grid, std::ptr::from_ref(args).cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::Emulated;

    fn eight() -> Memory {
        let device: Arc<dyn Device> = Arc::new(Emulated::default());
        Memory::of(&device, &[1u32, 2]).unwrap()
    }

    #[test]
    #[should_panic(expected = "4 bytes at 5 of 8")]
    fn nothing_is_written_beyond_an_allocation() {
        eight().write(5, &[0; 4]).unwrap();
    }

    #[test]
    #[should_panic(expected = "4 bytes at 5 of 8")]
    fn nothing_is_read_beyond_an_allocation() {
        eight().read_at(5, &mut [0; 4]).unwrap();
    }
}
