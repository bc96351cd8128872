use super::queue::Queue;
use super::{Class, Idle, Policy};
use octavo_types::{PageId, Pages};

/// The page used longest ago goes first.
#[derive(Debug)]
pub struct Lru(Queue);

impl Lru {
    pub fn new(total: Pages) -> Self {
        Self(Queue::new(total))
    }
}

impl Policy for Lru {
    fn insert(&mut self, idle: Idle) {
        self.0.insert(idle.page, idle.last_use);
    }
    fn remove(&mut self, page: PageId) {
        self.0.remove(page);
    }
    fn victim(&mut self) -> Option<(PageId, Class)> {
        Some((self.0.pop()?, Class::Old))
    }
    fn len(&self) -> Pages {
        Pages(self.0.len() as u32)
    }
    fn contains(&self, page: PageId) -> bool {
        self.0.contains(page)
    }
}
