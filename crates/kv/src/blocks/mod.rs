//! The plain interface over the page pool: blocks by id, for callers that keep their own books.
//!
//! A *block* is a page. [`BlockAllocator`] hands ids out and takes them back; [`BlockTable`] maps one
//! sequence's logical blocks to physical ones; [`CacheManager`] keeps a table and a length for each sequence.
//! Nothing is cached here and nothing is evicted: a block that is freed goes straight to the free list. Whoever
//! wants prefixes shared and pages that free themselves uses [`KvCache`](crate::KvCache).
//!
//! An id is a plain number and can be given back twice by mistake, as a page handle cannot. So every mistake
//! that can be seen is refused, and a refused call changes nothing.

mod allocator;
mod errors;
mod manager;
mod stats;
mod table;

pub use allocator::BlockAllocator;
pub use errors::{
    AllocateSequenceError, ExtendError, FreeError, FreeSequenceError, ManagerError, PositionError,
};
pub use manager::CacheManager;
pub use stats::{BlockStats, CacheStats};
pub use table::{BlockTable, NoSuchBlock};
