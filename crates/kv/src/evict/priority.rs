use super::queue::Queue;
use super::{Class, Idle, Policy};
use octavo_types::{PageId, Pages};

/// Prefix pages outlive recent pages, recent pages outlive old ones; within a class the page used longest ago
/// goes first.
///
/// A prefix page was found by a lookup or pinned at least once. Of the others, the newest quarter of all idle
/// pages is recent.
#[derive(Debug)]
pub struct Priority {
    old: Queue,
    recent: Queue,
    prefix: Queue,
}

impl Priority {
    pub fn new(total: Pages) -> Self {
        Self { old: Queue::new(total), recent: Queue::new(total), prefix: Queue::new(total) }
    }

    /// Invariant: no more than a quarter of the idle pages, rounded up, are recent.
    fn age(&mut self) {
        while self.recent.len() > self.len().as_usize().div_ceil(4) {
            let (page, last_use) = self.recent.pop_with_use().expect("a queue longer than zero");
            self.old.insert(page, last_use);
        }
    }
}

impl Policy for Priority {
    fn insert(&mut self, idle: Idle) {
        let class = if idle.is_prefix { &mut self.prefix } else { &mut self.recent };
        class.insert(idle.page, idle.last_use);
        self.age();
    }
    fn remove(&mut self, page: PageId) {
        let _ = self.old.remove(page) || self.recent.remove(page) || self.prefix.remove(page);
        self.age();
    }
    fn victim(&mut self) -> Option<(PageId, Class)> {
        let victim = if let Some(page) = self.old.pop() {
            (page, Class::Old)
        } else if let Some(page) = self.recent.pop() {
            (page, Class::Recent)
        } else {
            (self.prefix.pop()?, Class::Prefix)
        };
        self.age();
        Some(victim)
    }
    fn len(&self) -> Pages {
        Pages((self.old.len() + self.recent.len() + self.prefix.len()) as u32)
    }
    fn contains(&self, page: PageId) -> bool {
        self.old.contains(page) || self.recent.contains(page) || self.prefix.contains(page)
    }
}
