//! A paged KV cache, logical half.
//!
//! It says which token of which sequence lives in which page, who shares it, and which page goes when room is
//! needed. It holds no bytes and knows no device: whoever does carries out its instructions ([`Step::copies`],
//! [`Scrub`]).
//!
//! ```
//! use octavo_kv::{Claim, KvCache, Prompt, Reuse, Scope, Settings};
//! use octavo_types::{PageSize, Pages, Tokens};
//!
//! let mut cache = KvCache::new(Settings::new(Pages(64)))?;
//! let prompt = |len| Prompt::new((0..len).collect(), Scope::default(), PageSize::DEFAULT).unwrap();
//!
//! // The first request computes everything…
//! let (first, hit) = cache.admit(prompt(40), Reuse::Longest)?;
//! assert_eq!(hit.tokens, Tokens(0));
//! cache.schedule(first, Tokens(40), Claim::New)?;
//! // … here a model would run `cache.step()` …
//! cache.complete();
//!
//! // … the second finds the two full pages, shares them, and computes the rest.
//! let (second, hit) = cache.admit(prompt(40), Reuse::Longest)?;
//! assert_eq!(hit.tokens, Tokens(32));
//! cache.schedule(second, Tokens(8), Claim::New)?;
//! cache.complete();
//! assert_eq!(cache.counts().used, Pages(2 + 1 + 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod audit;
mod blocks;
mod cache;
mod config;
mod evict;
mod free_list;
mod hash;
mod learn;
#[cfg(all(test, not(loom)))]
mod lock_free_tests;
mod page;
mod pins;
mod plan;
mod pool;
mod prefix;
mod room;
mod sequence;
mod stats;
mod sync;
mod table;

pub use audit::{Audit, Inconsistent};
pub use blocks::{
    AllocateSequenceError, BlockAllocator, BlockStats, BlockTable, CacheManager, CacheStats, ExtendError,
    FreeError, FreeSequenceError, ManagerError, NoSuchBlock, PositionError,
};
pub use cache::{AdmitError, AppendError, ForkError, Hit, KvCache, ReleaseError, Reuse, UnknownSequence};
pub use config::{Settings, SettingsError};
pub use evict::{Adaptive, Class, Idle, Lru, Policy, PolicyKind, Priority, UnknownPolicy, Wanted};
pub use hash::{PageKey, Prompt, Scope, TooLong};
pub use page::{PageMut, PageRef};
pub use pins::{Pin, PinError, PinId};
pub use plan::{Claim, CopyPage, ScheduleError, Span, Step};
pub use pool::{AllocError, Pool, RefError, Scrub};
pub use prefix::Stop;
pub use room::PageTimes;
pub use sequence::Sequence;
pub use stats::{ByClass, Counters, PageCounts, PageUse, Rate, Snapshot, Stops};
pub use table::Table;
