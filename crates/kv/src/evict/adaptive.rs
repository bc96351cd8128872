use super::{Class, Idle, Lru, Policy};
use octavo_types::{PageId, Pages};

/// Least recently used, in batches that grow with the pressure: 1 page at a time while a quarter of the pool
/// or more is free, 64 when nothing is.
#[derive(Debug)]
pub struct Adaptive(Lru);

const LARGEST_BATCH: u64 = 64;

impl Adaptive {
    pub fn new(total: Pages) -> Self {
        Self(Lru::new(total))
    }
}

impl Policy for Adaptive {
    fn insert(&mut self, idle: Idle) {
        self.0.insert(idle);
    }
    fn remove(&mut self, page: PageId) {
        self.0.remove(page);
    }
    fn victim(&mut self) -> Option<(PageId, Class)> {
        self.0.victim()
    }
    fn len(&self) -> Pages {
        self.0.len()
    }
    fn contains(&self, page: PageId) -> bool {
        self.0.contains(page)
    }
    /// Falls in a straight line from 64 with nothing free to 1 with a quarter free.
    fn batch(&self, free: Pages, total: Pages) -> Pages {
        let quarter = u64::from(total.0).div_ceil(4).max(1);
        let missing = quarter.saturating_sub(u64::from(free.0));
        Pages((1 + (LARGEST_BATCH - 1) * missing / quarter) as u32)
    }
}
