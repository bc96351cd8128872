use super::{Class, Idle};
use octavo_types::{PageId, Pages};

/// Which idle pages are prefixes and how many are not: enough to say what the page is that was used longest ago.
///
/// Of pages that are no prefixes the newest quarter of all idle pages is recent, and the one used longest ago is the
/// last of them. So it is recent only if all of them are.
#[derive(Debug)]
pub(super) struct Classes {
    /// One a page of the pool.
    is_prefix: Box<[bool]>,
    idle: usize,
    prefixes: usize,
}

impl Classes {
    pub(super) fn new(total: Pages) -> Self {
        Self { is_prefix: vec![false; total.as_usize()].into(), idle: 0, prefixes: 0 }
    }

    pub(super) fn insert(&mut self, idle: &Idle) {
        self.is_prefix[idle.page.index()] = idle.is_prefix;
        self.idle += 1;
        self.prefixes += usize::from(idle.is_prefix);
    }

    /// `page` is idle no longer. What it was, if no other that is no prefix was used longer ago.
    pub(super) fn remove(&mut self, page: PageId) -> Class {
        let is_prefix = self.is_prefix[page.index()];
        let all_recent = self.idle - self.prefixes <= self.idle.div_ceil(4);
        self.idle -= 1;
        self.prefixes -= usize::from(is_prefix);
        match (is_prefix, all_recent) {
            (true, _) => Class::Prefix,
            (false, true) => Class::Recent,
            (false, false) => Class::Old,
        }
    }
}
