//! What goes wrong, as Python says it.

use octavo_backend::BackendError;
use octavo_kv::{
    AllocError, ExtendError, FreeError, FreeSequenceError, ManagerError, PositionError, RefError,
};
use octavo_types::{PageId, SpecError};
use pyo3::exceptions::{PyIndexError, PyKeyError, PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

pub(crate) fn value(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

pub(crate) fn runtime(error: impl std::fmt::Display) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

pub(crate) fn no_sequence(seq: i64) -> PyErr {
    PyKeyError::new_err(format!("there is no sequence {seq}: it was freed or never allocated"))
}

/// In the words of the document.
pub(crate) fn alloc(error: AllocError) -> PyErr {
    let AllocError::OutOfPages { need, free } = error else { return runtime(error) };
    PyRuntimeError::new_err(format!("Need {} blocks, only {} available", need.0, free.0))
}

pub(crate) fn not_allocated(page: PageId) -> PyErr {
    PyRuntimeError::new_err(format!("Block {} not allocated", page.0))
}

pub(crate) fn reference(error: RefError) -> PyErr {
    match error {
        RefError::Unknown { page, .. } | RefError::NotHeld { page } => not_allocated(page),
        RefError::TooManyHolders { .. } => runtime(error),
    }
}

pub(crate) fn free(error: FreeError) -> PyErr {
    match error {
        FreeError::Unknown { page, .. } | FreeError::NotAllocated { page } => not_allocated(page),
        FreeError::Foreign { .. } => runtime(error),
    }
}

pub(crate) fn free_sequence(seq: i64, error: FreeSequenceError) -> PyErr {
    match error {
        FreeSequenceError::Unknown(_) => no_sequence(seq),
        FreeSequenceError::Blocks { error, .. } => {
            runtime(format!("the blocks of sequence {seq} were not all its own any more: {error}"))
        }
    }
}

pub(crate) fn extend(seq: i64, error: ExtendError) -> PyErr {
    match error {
        ExtendError::Unknown(_) => no_sequence(seq),
        ExtendError::TooLong { .. } => value(error),
        ExtendError::Alloc(error) => alloc(error),
    }
}

pub(crate) fn position(seq: i64, error: PositionError) -> PyErr {
    match error {
        PositionError::Unknown(_) => no_sequence(seq),
        PositionError::NoBlock { position, room, .. } => PyIndexError::new_err(format!(
            "position {} of sequence {seq} has no block: its blocks hold {room}",
            position.0
        )),
    }
}

pub(crate) fn manager(error: ManagerError) -> PyErr {
    value(error)
}

pub(crate) fn spec(error: SpecError) -> PyErr {
    value(error)
}

pub(crate) fn backend(error: BackendError) -> PyErr {
    match error {
        BackendError::OutOfMemory(_) => PyMemoryError::new_err(error.to_string()),
        BackendError::Unsupported { .. } => value(error),
        BackendError::Device(_) | BackendError::Lost(_) => runtime(error),
    }
}
