use octavo_backend::BackendError;
use octavo_kv::{AllocError, ExtendError, ManagerError, PositionError, UnknownSequence};
use octavo_types::{SeqId, SpecError, Tokens};

/// Why there is no such pool.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("a slot holds at least one token: give the longest length a sequence may have")]
    EmptySlot,
    #[error(transparent)]
    Geometry(#[from] SpecError),
    #[error(transparent)]
    Blocks(#[from] ManagerError),
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why a sequence was not begun. There is no trace of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    #[error("{asked} never fit a slot of {slot}: make the pool for longer sequences")]
    TooLong { asked: Tokens, slot: Tokens },
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// Why there is no such view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    #[error(transparent)]
    Unknown(#[from] UnknownSequence),
    #[error("{0} is in the list twice: a step has each sequence once")]
    Twice(SeqId),
    #[error("{slots} slots and {lens} lengths: give one length a slot")]
    Lengths { slots: usize, lens: usize },
}

/// Why nothing was stored. Every sequence is as it was.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    #[error("there is no layer {layer}: the pool has {layers}")]
    Layer { layer: usize, layers: usize },
    #[error("{keys} numbers of keys and {values} of values: give as many of each")]
    Halves { keys: usize, values: usize },
    #[error("{got} numbers are not whole rows of {width} (KV heads x head dimension)")]
    Width { got: usize, width: usize },
    #[error("{got} rows for {batch} sequences: give {need} of each")]
    Rows { got: usize, batch: usize, need: usize },
    #[error(
        "{seq} would have {len}, over the {slot} of a slot: end it, or make the pool for longer sequences"
    )]
    TooLong { seq: SeqId, len: Tokens, slot: Tokens },
    #[error("this view's one step is over: make another view")]
    Over,
    #[error(transparent)]
    Room(#[from] ExtendError),
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl From<UnknownSequence> for UpdateError {
    fn from(error: UnknownSequence) -> Self {
        ExtendError::from(error).into()
    }
}

impl From<AllocError> for UpdateError {
    fn from(error: AllocError) -> Self {
        ExtendError::from(error).into()
    }
}

/// Why a step did not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdvanceError {
    #[error("nothing was stored in this step: update every layer first")]
    NothingStored,
    #[error("{asked}, but the step stored {stored} rows of each sequence: advance by as many")]
    Count { asked: Tokens, stored: usize },
    #[error(transparent)]
    Position(#[from] PositionError),
}
