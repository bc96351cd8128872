use super::classes::Classes;
use super::queue::Queues;
use super::{Class, Idle, Policy, Wanted};
use octavo_types::{PageId, Pages, Timestamp};

/// Least recently used, corrected by what the cache learns of its load.
///
/// A prefix that was wanted before will be wanted again, sooner than one that was seen once. So every earlier use
/// lends a page extra time, measured in *lifetimes*: the time that passes, at present, from the last use of a page to
/// its eviction. How many lifetimes depends on the *regret*, the share of wanted pages that had been evicted.
/// While the cache is large enough for its load there is no regret, and the order is plain least recently used;
/// when it is far too small, one-time prefixes give way early and the known ones stay.
///
/// Batches grow with the pressure: 1 page at a time while a quarter of the pool is free, 64 when nothing is (no
/// more than one in 32 of a small pool).
///
/// The class of a victim is told as if no other page that nobody found had been used longer ago. There may be one: it
/// had been evicted before, and was computed again.
#[derive(Debug)]
pub struct Adaptive {
    queue: Queues<1>,
    classes: Classes,
    last_use: Box<[Timestamp]>,
    newest_use: Timestamp,
    /// Microseconds, smoothed.
    lifetime: f64,
    /// 0 to 1, smoothed.
    regret: f64,
}

const LARGEST_BATCH: u32 = 64;
/// Lifetimes that one earlier use lends when everything wanted had been evicted.
const LIFETIMES_A_USE: f64 = 4.0;
/// Uses beyond this many lend no more.
const MOST_USES: u32 = 10;
const SMOOTH_LIFETIME: f64 = 1.0 / 1024.0;
const SMOOTH_REGRET: f64 = 1.0 / 2048.0;

impl Adaptive {
    pub fn new(total: Pages) -> Self {
        Self {
            queue: Queues::new(total),
            classes: Classes::new(total),
            last_use: vec![Timestamp::default(); total.as_usize()].into(),
            newest_use: Timestamp::default(),
            lifetime: 0.0,
            regret: 0.5,
        }
    }

    /// Microseconds that a page's earlier uses are worth.
    fn credit(&self, uses: u32) -> u64 {
        let earlier = uses.saturating_sub(1).min(MOST_USES);
        (f64::from(earlier) * LIFETIMES_A_USE * self.regret * self.lifetime) as u64
    }
}

impl Policy for Adaptive {
    fn insert(&mut self, idle: Idle) {
        self.newest_use = self.newest_use.max(idle.last_use);
        self.last_use[idle.page.index()] = idle.last_use;
        let rank = Timestamp(idle.last_use.0.saturating_add(self.credit(idle.uses)));
        self.queue.insert(0, idle.page, rank);
        self.classes.insert(&idle);
    }
    fn remove(&mut self, page: PageId) {
        if self.queue.remove(page).is_some() {
            self.classes.remove(page);
        }
    }
    fn victim(&mut self) -> Option<(PageId, Class)> {
        let (page, _) = self.queue.pop(0)?;
        let age = self.newest_use.since(self.last_use[page.index()]).as_micros() as f64;
        self.lifetime += SMOOTH_LIFETIME * (age - self.lifetime);
        Some((page, self.classes.remove(page)))
    }
    fn len(&self) -> Pages {
        Pages(self.queue.len(0) as u32)
    }
    fn contains(&self, page: PageId) -> bool {
        self.queue.contains(page)
    }
    fn note(&mut self, wanted: Wanted) {
        let evicted = f64::from(u8::from(wanted == Wanted::Evicted));
        self.regret += SMOOTH_REGRET * (evicted - self.regret);
    }
    /// Falls in a straight line from the largest batch with nothing free to 1 with a quarter free.
    fn batch(&self, free: Pages, total: Pages) -> Pages {
        let largest = u64::from(LARGEST_BATCH.min(total.0 / 32).max(1));
        let quarter = u64::from(total.0).div_ceil(4).max(1);
        let missing = quarter.saturating_sub(u64::from(free.0));
        Pages((1 + (largest - 1) * missing / quarter) as u32)
    }
}
