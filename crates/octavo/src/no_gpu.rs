//! In the place of `gpu.rs` where the program is built without CUDA.

use crate::device::DeviceError;
use crate::llm::LoadError;
use crate::load::{Job, Loaded};
use octavo_model::Progress;

pub(crate) fn load(_: usize, _: Job<'_>, _: &mut dyn FnMut(Progress)) -> Result<Loaded, LoadError> {
    Err(DeviceError::NotBuilt.into())
}
