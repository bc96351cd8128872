//! In the place of `gpu.rs` where the program is built without CUDA.

use crate::device::DeviceError;
use crate::llm::LoadError;
use crate::load::{Job, Loaded, Loading};
use crate::options::Options;

pub(crate) fn check(_: usize, _: &Options) -> Result<(), DeviceError> {
    Err(DeviceError::NotBuilt)
}

pub(crate) fn load(_: usize, _: Job<'_>, _: &mut dyn FnMut(Loading)) -> Result<Loaded, LoadError> {
    Err(DeviceError::NotBuilt.into())
}
