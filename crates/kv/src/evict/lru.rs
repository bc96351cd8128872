use super::queue::Queues;
use super::{Class, Idle, Policy};
use octavo_types::{PageId, Pages};

/// The page used longest ago goes first.
#[derive(Debug)]
pub struct Lru(Queues<1>);

impl Lru {
    pub fn new(total: Pages) -> Self {
        Self(Queues::new(total))
    }
}

impl Policy for Lru {
    fn insert(&mut self, idle: Idle) {
        self.0.insert(0, idle.page, idle.last_use);
    }
    fn remove(&mut self, page: PageId) {
        self.0.remove(page);
    }
    fn victim(&mut self) -> Option<(PageId, Class)> {
        Some((self.0.pop(0)?.0, Class::Old))
    }
    fn len(&self) -> Pages {
        Pages(self.0.len(0) as u32)
    }
    fn contains(&self, page: PageId) -> bool {
        self.0.contains(page)
    }
}
