use super::queue::Queues;
use super::{Class, Idle, Policy};
use octavo_types::{PageId, Pages};

/// Prefix pages outlive recent pages, recent pages outlive old ones; within a class the page used longest ago
/// goes first.
///
/// A prefix page was found by a lookup or pinned at least once. Of the others, the newest quarter of all idle
/// pages is recent.
#[derive(Debug)]
pub struct Priority(Queues<3>);

const OLD: usize = 0;
const RECENT: usize = 1;
const PREFIX: usize = 2;

impl Priority {
    pub fn new(total: Pages) -> Self {
        Self(Queues::new(total))
    }

    /// Invariant: no more than a quarter of the idle pages, rounded up, are recent.
    fn age(&mut self) {
        while self.0.len(RECENT) > self.len().as_usize().div_ceil(4) {
            let (page, last_use) = self.0.pop(RECENT).expect("a queue longer than zero");
            self.0.insert(OLD, page, last_use);
        }
    }
}

impl Policy for Priority {
    fn insert(&mut self, idle: Idle) {
        self.0.insert(if idle.is_prefix { PREFIX } else { RECENT }, idle.page, idle.last_use);
        self.age();
    }
    fn remove(&mut self, page: PageId) {
        self.0.remove(page);
        self.age();
    }
    fn victim(&mut self) -> Option<(PageId, Class)> {
        let classes = [(OLD, Class::Old), (RECENT, Class::Recent), (PREFIX, Class::Prefix)];
        let victim = classes.into_iter().find_map(|(queue, class)| Some((self.0.pop(queue)?.0, class)))?;
        self.age();
        Some(victim)
    }
    fn len(&self) -> Pages {
        Pages([OLD, RECENT, PREFIX].map(|queue| self.0.len(queue) as u32).iter().sum())
    }
    fn contains(&self, page: PageId) -> bool {
        self.0.contains(page)
    }
}
