use octavo_types::{PageId, Pages, Timestamp};
use std::collections::BTreeMap;

/// Pages in order of their last use, those of equal use in the order they came. Every operation O(log n).
#[derive(Debug)]
pub(super) struct Queue {
    order: BTreeMap<Rank, PageId>,
    /// Where each page of the pool stands in `order`, if it does.
    ranks: Box<[Option<Rank>]>,
    arrivals: u64,
}

type Rank = (Timestamp, u64);

impl Queue {
    pub(super) fn new(total: Pages) -> Self {
        Self { order: BTreeMap::new(), ranks: vec![None; total.as_usize()].into(), arrivals: 0 }
    }

    /// Panics if the page is in the queue already.
    pub(super) fn insert(&mut self, page: PageId, last_use: Timestamp) {
        let rank = (last_use, self.arrivals);
        self.arrivals += 1;
        let before = self.ranks[page.index()].replace(rank);
        assert!(before.is_none(), "{page} is queued twice");
        self.order.insert(rank, page);
    }

    /// Whether the page was there.
    pub(super) fn remove(&mut self, page: PageId) -> bool {
        let Some(rank) = self.ranks[page.index()].take() else { return false };
        self.order.remove(&rank);
        true
    }

    /// Takes out the page used longest ago.
    pub(super) fn pop(&mut self) -> Option<PageId> {
        Some(self.pop_with_use()?.0)
    }

    pub(super) fn pop_with_use(&mut self) -> Option<(PageId, Timestamp)> {
        let ((last_use, _), page) = self.order.pop_first()?;
        self.ranks[page.index()] = None;
        Some((page, last_use))
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn contains(&self, page: PageId) -> bool {
        self.ranks[page.index()].is_some()
    }
}
