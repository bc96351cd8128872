use crate::cache::UnknownSequence;
use crate::free_list::MAX_PAGES;
use crate::pool::{AllocError, RefError};
use octavo_types::{Bytes, PageId, Pages, SeqId, Tokens};

/// Why a call freed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FreeError {
    #[error("cannot free {page}: the pool has {total}")]
    Unknown { page: PageId, total: Pages },
    #[error("cannot free {page}: it is not allocated, or not as often as it is freed (double free)")]
    NotAllocated { page: PageId },
    #[error("cannot free {page} for {asked}: it is owned by {}", owner.map_or("no sequence".into(), |o| o.to_string()))]
    Foreign { page: PageId, owner: Option<SeqId>, asked: SeqId },
}

impl From<RefError> for FreeError {
    fn from(error: RefError) -> Self {
        match error {
            RefError::Unknown { page, total } => Self::Unknown { page, total },
            // Giving a reference back cannot fail for too many of them.
            RefError::NotHeld { page } | RefError::TooManyHolders { page } => Self::NotAllocated { page },
        }
    }
}

/// Why there is no such [`CacheManager`](crate::CacheManager).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ManagerError {
    #[error("the pool has no blocks: give it memory for at least one ({page_bytes})")]
    NoPages { page_bytes: Bytes },
    #[error("{total} are more than a pool can count ({max}): use larger blocks", max = MAX_PAGES - Pages(1))]
    TooManyPages { total: Pages },
    #[error("the model has {groups} layer groups, a sequence here has one block table: use a KvCache")]
    LayerGroups { groups: usize },
}

/// Why a sequence was not begun. There is no trace of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AllocateSequenceError {
    #[error("{0} exists already: free it first")]
    Exists(SeqId),
    #[error("{0} is above the largest id a caller may choose ({max})", max = i64::MAX)]
    IdTooLarge(SeqId),
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// Why a sequence did not grow. It is as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExtendError {
    #[error(transparent)]
    Unknown(#[from] UnknownSequence),
    #[error("{seq} has {len}; {more} more are over the limit of {max}", max = Tokens(u32::MAX))]
    TooLong { seq: SeqId, len: Tokens, more: Tokens },
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// Why positions of a sequence cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PositionError {
    #[error(transparent)]
    Unknown(#[from] UnknownSequence),
    #[error("position {} of {seq} has no block: its blocks hold {room}", position.0)]
    NoBlock { seq: SeqId, position: Tokens, room: Tokens },
}

/// Why a sequence was not freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FreeSequenceError {
    #[error(transparent)]
    Unknown(#[from] UnknownSequence),
    /// Somebody freed its blocks by id. The sequence is gone; blocks that are left show up in an audit.
    #[error("the blocks of {seq} were not all its own any more")]
    Blocks {
        seq: SeqId,
        #[source]
        error: FreeError,
    },
}
