use super::classes::Classes;
use super::queue::Queues;
use super::{Class, Idle, Policy};
use octavo_types::{PageId, Pages};

/// The page used longest ago goes first.
#[derive(Debug)]
pub struct Lru {
    queue: Queues<1>,
    classes: Classes,
}

impl Lru {
    pub fn new(total: Pages) -> Self {
        Self { queue: Queues::new(total), classes: Classes::new(total) }
    }
}

impl Policy for Lru {
    fn insert(&mut self, idle: Idle) {
        self.queue.insert(0, idle.page, idle.last_use);
        self.classes.insert(&idle);
    }
    fn remove(&mut self, page: PageId) {
        if self.queue.remove(page).is_some() {
            self.classes.remove(page);
        }
    }
    fn victim(&mut self) -> Option<(PageId, Class)> {
        let (page, _) = self.queue.pop(0)?;
        Some((page, self.classes.remove(page)))
    }
    fn len(&self) -> Pages {
        Pages(self.queue.len(0) as u32)
    }
    fn contains(&self, page: PageId) -> bool {
        self.queue.contains(page)
    }
}
