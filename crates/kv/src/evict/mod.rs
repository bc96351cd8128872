//! Which cached page goes when room is needed. One policy a file, behind [`Policy`].
//!
//! A policy sees only idle pages: held by nobody, kept for what they contain. It can therefore never pick a
//! page of a running sequence, nor one that is pinned.

mod adaptive;
mod classes;
mod lru;
mod priority;
mod queue;

pub use adaptive::Adaptive;
pub use lru::Lru;
pub use priority::Priority;

use octavo_types::{PageId, Pages, Timestamp};
use std::fmt;
use std::str::FromStr;

/// What is known of a page when its last holder lets go of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    pub page: PageId,
    /// When a step last used the page.
    pub last_use: Timestamp,
    /// Whether a lookup found it since it was filled, or somebody pinned it.
    pub is_prefix: bool,
    /// How often requests had this prefix, counted for as long as it is cached or remembered as evicted.
    pub uses: u32,
}

/// How a request fared with a page of a prefix that is cached or remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Found,
    /// It had been evicted, and was computed again.
    Evicted,
}

/// What a victim was, for the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Old,
    /// Of the newest quarter of the idle pages.
    Recent,
    /// Found by a lookup since it was filled, or pinned.
    Prefix,
}

/// An order of eviction. `insert`, `remove` and `victim` take O(1) or O(log n).
pub trait Policy: Send + fmt::Debug {
    /// `idle.page` has become idle. Pages of one sequence come tail first. Panics if the policy holds the page already,
    /// or was made for a pool without it.
    fn insert(&mut self, idle: Idle);
    /// The page was taken again, or pinned. Does nothing if the policy does not hold it.
    fn remove(&mut self, page: PageId);
    /// Takes out the page to evict next.
    fn victim(&mut self) -> Option<(PageId, Class)>;
    /// How many idle pages the policy holds.
    fn len(&self) -> Pages;
    fn is_empty(&self) -> bool {
        self.len() == Pages::ZERO
    }
    fn contains(&self, page: PageId) -> bool;
    /// A request wanted a page that is, or was, cached. For policies that learn.
    fn note(&mut self, _wanted: Wanted) {}
    /// How many pages to evict at once when at least one must go, given how much of the pool is free.
    fn batch(&self, _free: Pages, _total: Pages) -> Pages {
        Pages(1)
    }
}

/// The policies there are, by the names that configuration uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PolicyKind {
    #[default]
    Lru,
    Priority,
    Adaptive,
}

impl PolicyKind {
    pub const ALL: [Self; 3] = [Self::Lru, Self::Priority, Self::Adaptive];

    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Priority => "priority",
            Self::Adaptive => "adaptive",
        }
    }

    /// A policy for a pool of `total` pages.
    pub fn build(self, total: Pages) -> Box<dyn Policy> {
        match self {
            Self::Lru => Box::new(Lru::new(total)),
            Self::Priority => Box::new(Priority::new(total)),
            Self::Adaptive => Box::new(Adaptive::new(total)),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no policy has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown eviction policy `{0}`: use lru, priority or adaptive")]
pub struct UnknownPolicy(pub String);

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}
