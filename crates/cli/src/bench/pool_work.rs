//! The work that `bench pool` times: one code for both allocators, over their ids.

use super::measure::{SEED, ns_each};
use super::pool_baseline::LockedAllocator;
use octavo_kv::BlockAllocator;
use octavo_types::{PageId, Pages};
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// The batch that the headline figures and the sweep over pool sizes use.
pub(super) const BATCH: u32 = 8;

/// Both allocators by their ids: a batch out, the same batch back.
pub(super) trait Allocator: Sync {
    type Id: Copy + Send;
    fn new(pages: Pages) -> Self;
    fn allocate_one(&self) -> Self::Id;
    fn allocate(&self, n: u32) -> Vec<Self::Id>;
    fn free(&self, ids: &[Self::Id]);
}

impl Allocator for BlockAllocator {
    type Id = PageId;
    fn new(pages: Pages) -> Self {
        Self::new(pages)
    }
    fn allocate_one(&self) -> PageId {
        Self::allocate_one(self, None).expect("the bench keeps within the pool")
    }
    fn allocate(&self, n: u32) -> Vec<PageId> {
        Self::allocate(self, Pages(n), None).expect("the bench keeps within the pool")
    }
    fn free(&self, ids: &[PageId]) {
        Self::free(self, ids).expect("the bench frees what it allocated");
    }
}

impl Allocator for LockedAllocator {
    type Id = u32;
    fn new(pages: Pages) -> Self {
        Self::new(pages.0)
    }
    fn allocate_one(&self) -> u32 {
        Self::allocate(self).expect("the bench keeps within the pool")
    }
    fn allocate(&self, n: u32) -> Vec<u32> {
        self.allocate_n(n as usize).expect("the bench keeps within the pool")
    }
    fn free(&self, ids: &[u32]) {
        for id in ids {
            Self::free(self, *id).expect("the bench frees what it allocated");
        }
    }
}

/// An allocator whose free pages lie in random order, as after a long run.
pub(super) fn scrambled<A: Allocator>(pages: Pages) -> A {
    let allocator = A::new(pages);
    let mut ids = allocator.allocate(pages.0);
    fastrand::seed(SEED);
    fastrand::shuffle(&mut ids);
    ids.iter().for_each(|id| allocator.free(&[*id]));
    allocator
}

/// Takes a batch and gives it back, by the calls that there are for so many.
fn cycle<A: Allocator>(allocator: &A, batch: u32) {
    if batch == 1 {
        allocator.free(&[black_box(allocator.allocate_one())]);
    } else {
        allocator.free(black_box(&allocator.allocate(batch)));
    }
}

/// Nanoseconds that a thread spends on a page, taking it and giving it back: the time from the first thread's
/// start to the last one's end, over the `pages` that each of them took. Each does the same number of
/// batches. They start together: every thread turns round until all have come. Two threads have a core each
/// where the system allows it: on a busy machine they would share one, and never meet.
pub(super) fn take_and_return<A: Allocator>(allocator: &A, batch: u32, threads: u32, pages: u32) -> f64 {
    let missing = AtomicU32::new(threads);
    let cores = if threads > 1 { core_affinity::get_core_ids().unwrap_or_default() } else { Vec::new() };
    let work = &|thread: usize| {
        cores.get(thread).map(|core| core_affinity::set_for_current(*core));
        missing.fetch_sub(1, Ordering::AcqRel);
        while missing.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        let start = Instant::now();
        for _ in 0..pages / batch {
            cycle(allocator, batch);
        }
        (start, Instant::now())
    };
    let spans: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads as usize).map(|thread| scope.spawn(move || work(thread))).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker panicked")).collect()
    });
    let start = spans.iter().map(|span| span.0).min().expect("one thread or more");
    let end = spans.iter().map(|span| span.1).max().expect("one thread or more");
    ns_each(end - start, u64::from(pages))
}

/// A pool half of which is always taken.
pub(super) struct Churn<A: Allocator> {
    allocator: A,
    /// What is taken, a batch after the other.
    held: Vec<A::Id>,
}

impl<A: Allocator> Churn<A> {
    pub(super) fn new(pages: Pages) -> Self {
        let allocator: A = scrambled(pages);
        let held = allocator.allocate(pages.0 / 2 / BATCH * BATCH);
        Self { allocator, held }
    }

    /// Nanoseconds a page for giving back a random batch and taking another, the look at the batch included.
    pub(super) fn replace(&mut self, pages: u32) -> f64 {
        let start = Instant::now();
        for _ in 0..pages / BATCH {
            let at = fastrand::usize(..self.held.len() / BATCH as usize) * BATCH as usize;
            let batch = &mut self.held[at..at + BATCH as usize];
            self.allocator.free(batch);
            batch.copy_from_slice(&self.allocator.allocate(BATCH));
        }
        ns_each(start.elapsed(), u64::from(pages))
    }
}
