//! What the cache holds, for people who look at it.

use crate::request::RequestId;
use octavo_kv::{PinId, Scope, Snapshot};
use octavo_types::{Pages, Timestamp, Tokens};

/// What a page is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    Free,
    /// Held by nobody, kept for what it contains.
    Cached,
    /// Held by one sequence.
    Used,
    /// Held by several.
    Shared,
    /// Kept by a pin.
    Pinned,
}

/// A sequence that runs.
#[derive(Clone, Debug)]
pub struct SequenceReport {
    pub request: RequestId,
    pub choice: u32,
    /// Known tokens: prompt and generated.
    pub tokens: Tokens,
    pub computed: Tokens,
    pub pages: Pages,
}

/// What the requests of one scope hold, and what is kept of them.
#[derive(Clone, Debug, Default)]
pub struct TenantReport {
    /// Stands for the salt, which is not kept.
    pub tenant: String,
    pub sequences: usize,
    pub tokens: u64,
    /// Pages in the tables of its sequences; a shared page counts once a sequence.
    pub pages: u64,
    /// Pages that nobody holds, kept for what they contain.
    pub cached: Pages,
}

/// What a pin keeps.
#[derive(Clone, Debug)]
pub struct PinReport {
    pub id: PinId,
    /// As in [`TenantReport`].
    pub tenant: String,
    pub tokens: Tokens,
    /// Other pins and sequences may hold some of them, too.
    pub pages: Pages,
}

/// What stands for the salt of a scope; nothing for none.
pub(crate) fn tenant_of(scope: Scope) -> String {
    if scope == Scope::default() { String::new() } else { scope.to_string() }
}

/// The cache at one moment, page by page and sequence by sequence.
#[derive(Clone, Debug)]
pub struct CacheReport {
    pub snapshot: Snapshot,
    /// One a page.
    pub pages: Vec<PageState>,
    pub sequences: Vec<SequenceReport>,
    pub tenants: Vec<TenantReport>,
    pub waiting: usize,
    pub last_audit: Option<AuditReport>,
}

/// What the last check of the cache found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditReport {
    pub at: Timestamp,
    /// What is wrong, if anything.
    pub problem: Option<String>,
}
