use octavo_types::{PageId, Pages, Timestamp};
use std::collections::BTreeMap;

/// `N` queues of pages, each in order of last use, pages of equal use in the order they came. A page is in one of
/// them at most.
///
/// Pages of one queue and one last use form a *run*: a list through their slots. There are far fewer runs than
/// pages, for everything that a step used has the same last use, so the tree of runs is small. Every operation
/// takes O(log runs).
#[derive(Debug)]
pub(super) struct Queues<const N: usize> {
    queues: [Queue; N],
    /// One a page of the pool.
    slots: Box<[Option<Slot>]>,
}

#[derive(Debug, Default)]
struct Queue {
    runs: BTreeMap<Timestamp, Run>,
    len: usize,
}

#[derive(Debug)]
struct Run {
    first: PageId,
    last: PageId,
}

/// Where a page stands.
#[derive(Clone, Copy, Debug)]
struct Slot {
    queue: usize,
    last_use: Timestamp,
    /// Neighbours in the run.
    before: Option<PageId>,
    after: Option<PageId>,
}

impl<const N: usize> Queues<N> {
    pub(super) fn new(total: Pages) -> Self {
        Self { queues: std::array::from_fn(|_| Queue::default()), slots: vec![None; total.as_usize()].into() }
    }

    /// Panics if the page is in a queue already, or not one of the pool.
    pub(super) fn insert(&mut self, queue: usize, page: PageId, last_use: Timestamp) {
        assert!(!self.contains(page), "{page} is queued twice");
        let Queue { runs, len } = &mut self.queues[queue];
        *len += 1;
        let mut before = None;
        runs.entry(last_use)
            .and_modify(|run| before = Some(std::mem::replace(&mut run.last, page)))
            .or_insert(Run { first: page, last: page });
        if let Some(before) = before {
            self.slot_mut(before).after = Some(page);
        }
        self.slots[page.index()] = Some(Slot { queue, last_use, before, after: None });
    }

    /// Takes the page out of whatever queue it is in, and says when it was last used.
    pub(super) fn remove(&mut self, page: PageId) -> Option<Timestamp> {
        let Slot { queue, last_use, before, after } = self.slots.get_mut(page.index())?.take()?;
        if let Some(before) = before {
            self.slot_mut(before).after = after;
        }
        if let Some(after) = after {
            self.slot_mut(after).before = before;
        }
        let Queue { runs, len } = &mut self.queues[queue];
        *len -= 1;
        match (before, after) {
            (Some(_), Some(_)) => {}
            (None, None) => _ = runs.remove(&last_use),
            (None, Some(first)) => run_mut(runs, last_use).first = first,
            (Some(last), None) => run_mut(runs, last_use).last = last,
        }
        Some(last_use)
    }

    /// Takes out the page of `queue` used longest ago.
    pub(super) fn pop(&mut self, queue: usize) -> Option<(PageId, Timestamp)> {
        let page = self.queues[queue].runs.first_key_value()?.1.first;
        Some((page, self.remove(page)?))
    }

    pub(super) fn len(&self, queue: usize) -> usize {
        self.queues[queue].len
    }

    pub(super) fn contains(&self, page: PageId) -> bool {
        self.slots.get(page.index()).is_some_and(Option::is_some)
    }

    fn slot_mut(&mut self, page: PageId) -> &mut Slot {
        self.slots[page.index()].as_mut().expect("neighbours are queued")
    }
}

fn run_mut(runs: &mut BTreeMap<Timestamp, Run>, last_use: Timestamp) -> &mut Run {
    runs.get_mut(&last_use).expect("a queued page has a run")
}
