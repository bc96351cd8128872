//! One sequence: its tokens, how many of them are in the cache, and where.

use crate::cache::Reuse;
use crate::hash::Prompt;
use crate::prefix::NodeId;
use crate::table::Table;
use octavo_types::{GroupId, Pages, Timestamp, Tokens};

/// Invariants: `computed <= scheduled <= tokens`; every table covers the scheduled tokens, less those that
/// left its window; `cursor` is the index node of the last full scheduled page.
#[derive(Debug)]
pub struct Sequence {
    pub(crate) prompt: Prompt,
    pub(crate) computed: Tokens,
    pub(crate) scheduled: Tokens,
    /// One a layer group.
    pub(crate) tables: Vec<Table>,
    /// None when the sequence is not indexed (any further).
    pub(crate) cursor: Option<NodeId>,
    pub(crate) reuse: Reuse,
    pub(crate) last_step: Timestamp,
}

impl Sequence {
    /// All tokens that are known, prompt and generated.
    pub fn tokens(&self) -> &[u32] {
        self.prompt.tokens()
    }
    pub fn prompt(&self) -> &Prompt {
        &self.prompt
    }
    /// Tokens whose keys and values are in the cache.
    pub fn computed(&self) -> Tokens {
        self.computed
    }
    /// Tokens whose keys and values will be in the cache once the open step has run.
    pub fn scheduled(&self) -> Tokens {
        self.scheduled
    }
    /// Panics if the cache does not have the group.
    pub fn table(&self, group: GroupId) -> &Table {
        &self.tables[group.index()]
    }
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }
    /// Pages held in all tables together.
    pub fn pages(&self) -> Pages {
        self.tables.iter().map(Table::held).sum()
    }
}
