//! Real threads over one pool, a fixed number of operations from fixed seeds. Schedules differ from run to run,
//! so a failure may need several; what each thread wants to do is the same every time.
#![cfg(not(loom))]

use octavo_kv::{BlockAllocator, Claim, KvCache, PageMut, PageRef, Pool, Prompt, Reuse, Scope, Settings};
use octavo_types::{GroupId, PageId, PageSize, Pages, SeqId, Tokens};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// Few, so that threads meet.
const PAGES: u32 = 12;
const THREADS: u64 = 4;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    /// Takes up to `n` items out of `from`, anywhere.
    fn draw<T>(&mut self, from: &mut Vec<T>, n: usize) -> Vec<T> {
        (0..n.min(from.len())).map(|_| from.swap_remove(self.below(from.len()))).collect()
    }
}

/// How many hold each page, as the threads themselves know it. A holder is counted from after it got its
/// reference until before it gives it back, so a page can only be handed out when the count is zero.
struct Holders(Vec<AtomicU32>);

impl Holders {
    fn new() -> Self {
        Self((0..PAGES).map(|_| AtomicU32::new(0)).collect())
    }
    fn took(&self, page: PageId) {
        assert_eq!(self.0[page.index()].swap(1, Ordering::Relaxed), 0, "{page} was handed out twice");
    }
    fn shared(&self, page: PageId) {
        assert_ne!(self.0[page.index()].fetch_add(1, Ordering::Relaxed), 0, "{page} was not held");
    }
    fn gives(&self, page: PageId) {
        assert_ne!(self.0[page.index()].fetch_sub(1, Ordering::Relaxed), 0, "{page} was not held");
    }
    fn alone(&self, page: PageId) {
        assert_eq!(self.0[page.index()].load(Ordering::Relaxed), 1, "{page} has other holders");
    }
}

#[test]
fn no_block_is_handed_to_two_threads_and_none_is_lost() {
    let blocks = BlockAllocator::new(Pages(PAGES));
    let holders = Holders::new();
    let refused: u32 = thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|seed| {
                let (blocks, holders) = (&blocks, &holders);
                scope.spawn(move || take_and_free(blocks, holders, SeqId(seed)))
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert!(refused > 0, "the pool was never exhausted");
    assert_eq!((blocks.num_free(), blocks.num_allocated()), (Pages(PAGES), Pages(0)));
    assert!(blocks.peak() <= Pages(PAGES));
    blocks.check().unwrap();
}

/// Returns how often the pool had not enough.
fn take_and_free(blocks: &BlockAllocator, holders: &Holders, me: SeqId) -> u32 {
    let mut random = Random(me.0);
    let mut held: Vec<PageId> = Vec::new();
    let mut refused = 0;
    for _ in 0..1_000_000 {
        match random.below(8) {
            0..=3 => match blocks.allocate(Pages(random.below(4) as u32), Some(me)) {
                Ok(pages) => {
                    pages.iter().for_each(|page| holders.took(*page));
                    held.extend(pages);
                }
                Err(_) => refused += 1,
            },
            4..=6 => {
                let n = random.below(6);
                let pages = random.draw(&mut held, n);
                pages.iter().for_each(|page| holders.gives(*page));
                blocks.free_owned(me, &pages).unwrap();
            }
            // A call with a mistake at its end: what was claimed before it must come back whole.
            _ => {
                let mistake = if held.is_empty() { PageId(PAGES) } else { held[0] };
                let with_mistake: Vec<PageId> = held.iter().copied().chain([mistake]).collect();
                blocks.free(&with_mistake).unwrap_err();
                held.iter().for_each(|page| assert_eq!(blocks.ref_count(*page), Ok(1)));
            }
        }
    }
    held.iter().for_each(|page| holders.gives(*page));
    blocks.free(&held).unwrap();
    refused
}

/// Every thread's inbox, and the way to the others'.
fn ring<T>() -> Vec<(Sender<T>, Receiver<T>)> {
    let (mut senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel()).unzip();
    senders.rotate_left(1);
    senders.into_iter().zip(receivers).collect()
}

#[test]
fn blocks_shared_between_threads_are_freed_once_by_the_last() {
    let blocks = BlockAllocator::new(Pages(PAGES));
    let holders = Holders::new();
    thread::scope(|scope| {
        for (seed, (next, inbox)) in (0..).zip(ring()) {
            let (blocks, holders) = (&blocks, &holders);
            scope.spawn(move || share_and_free(blocks, holders, seed, next, inbox));
        }
    });
    assert_eq!(blocks.num_free(), Pages(PAGES));
    blocks.check().unwrap();
}

fn share_and_free(
    blocks: &BlockAllocator,
    holders: &Holders,
    seed: u64,
    next: Sender<PageId>,
    inbox: Receiver<PageId>,
) {
    let mut random = Random(seed);
    let mut held: Vec<PageId> = Vec::new();
    for _ in 0..400_000 {
        held.extend(inbox.try_iter());
        match random.below(4) {
            0 => {
                let pages = blocks.allocate(Pages(random.below(4) as u32), None).unwrap_or_default();
                pages.iter().for_each(|page| holders.took(*page));
                held.extend(pages);
            }
            // One more reference, for the next thread to free.
            1 if !held.is_empty() => {
                let page = held[random.below(held.len())];
                blocks.add_ref(page).unwrap();
                holders.shared(page);
                next.send(page).unwrap();
            }
            // A batch of pages that are shared and pages that are not, the same one perhaps twice.
            _ => {
                let n = random.below(6);
                let pages = random.draw(&mut held, n);
                pages.iter().for_each(|page| holders.gives(*page));
                blocks.free(&pages).unwrap();
            }
        }
    }
    drop(next);
    held.extend(inbox.iter());
    held.iter().for_each(|page| holders.gives(*page));
    blocks.free(&held).unwrap();
}

#[test]
fn references_to_one_page_on_all_threads_at_once_are_all_counted() {
    let blocks = BlockAllocator::new(Pages(1));
    let block = blocks.allocate_one(None).unwrap();
    let pool = Pool::new(Pages(1));
    let page = pool.take(Pages(1), None).unwrap().remove(0).seal();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..200_000 {
                    blocks.add_ref(block).unwrap();
                    drop(page.share().unwrap());
                    blocks.free(&[block]).unwrap();
                }
            });
        }
    });
    assert_eq!((blocks.ref_count(block), pool.refs(page.id())), (Ok(1), Ok(1)));
    drop(page.unseal().expect("the only reader"));
    assert_eq!((pool.reclaim(), pool.free()), (Pages(1), Pages(1)));
}

#[test]
fn pages_dropped_on_any_thread_are_reclaimed_once() {
    let pool = Pool::new(Pages(PAGES));
    let holders = Holders::new();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let drain = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert!(pool.reclaim() <= Pages(PAGES));
                assert!(pool.free() <= Pages(PAGES));
                thread::yield_now();
            }
        });
        let workers: Vec<_> = (0..)
            .zip(ring())
            .map(|(seed, (next, inbox))| {
                let mut worker = Worker { pool: &pool, holders: &holders, random: Random(seed), next };
                scope.spawn(move || worker.run(inbox))
            })
            .collect();
        let unsealed: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        drain.join().unwrap();
        assert!(unsealed.into_iter().map(Result::unwrap).sum::<u32>() > 0, "no page was ever written again");
    });
    pool.reclaim();
    assert_eq!((pool.free(), pool.returned()), (Pages(PAGES), Pages(0)));
    assert!((0..PAGES).all(|page| pool.refs(PageId(page)) == Ok(0)));
}

/// Takes pages, passes readers of them on, makes the last reader a writer again, and drops what it has.
struct Worker<'a> {
    pool: &'a std::sync::Arc<Pool>,
    holders: &'a Holders,
    random: Random,
    next: Sender<PageRef>,
}

impl Worker<'_> {
    /// Returns how often a page was made writable again.
    fn run(&mut self, inbox: Receiver<PageRef>) -> u32 {
        let mut held: Vec<PageRef> = Vec::new();
        let mut unsealed = 0;
        for _ in 0..400_000 {
            held.extend(inbox.try_iter());
            match self.random.below(5) {
                0 => held.extend(self.take()),
                1 => {
                    let n = self.random.below(held.len() + 1);
                    held.get(n).into_iter().for_each(|page| self.pass_on(page));
                }
                2 => {
                    let page = self.random.draw(&mut held, 1).pop();
                    unsealed += page.is_some_and(|page| self.rewrite(page, &mut held)) as u32;
                }
                _ => {
                    let n = self.random.below(6);
                    self.random.draw(&mut held, n).into_iter().for_each(|page| self.give(page));
                }
            }
        }
        // Hangs up, so that the next thread's inbox ends.
        self.next = channel().0;
        held.extend(inbox.iter());
        held.into_iter().for_each(|page| self.give(page));
        unsealed
    }

    fn take(&mut self) -> impl Iterator<Item = PageRef> + use<> {
        let pages = self.pool.take(Pages(self.random.below(4) as u32), None).unwrap_or_default();
        pages.iter().for_each(|page| self.holders.took(page.id()));
        pages.into_iter().map(PageMut::seal)
    }

    fn pass_on(&self, page: &PageRef) {
        let shared = page.share().unwrap();
        self.holders.shared(shared.id());
        self.next.send(shared).unwrap();
    }

    fn rewrite(&self, page: PageRef, held: &mut Vec<PageRef>) -> bool {
        match page.unseal() {
            Ok(page) => {
                self.holders.alone(page.id());
                held.push(page.seal());
                true
            }
            Err(page) => {
                held.push(page);
                false
            }
        }
    }

    fn give(&self, page: PageRef) {
        self.holders.gives(page.id());
        drop(page);
    }
}

/// Whoever drops a page on another thread lowers its count before the page is back.
#[test]
fn an_audit_beside_a_thread_that_drops_pages_finds_nothing_wrong() {
    let page_size = PageSize::new(1).unwrap();
    for _ in 0..20 {
        let settings = Settings { page_size, ..Settings::new(Pages(2000)) };
        let mut cache = KvCache::new(settings).unwrap();
        let prompt = Prompt::new((0..1000).collect(), Scope::default(), page_size).unwrap();
        let (seq, _) = cache.admit(prompt, Reuse::Longest).unwrap();
        cache.schedule(seq, Tokens(1000), Claim::New).unwrap();
        cache.complete();
        let held: Vec<PageRef> =
            (0..1000).map(|i| cache.hold(seq, GroupId(0), Pages(i)).unwrap().unwrap()).collect();
        cache.free(seq).unwrap();
        let dropping = std::thread::spawn(move || {
            for page in held {
                drop(page);
                std::thread::yield_now();
            }
        });
        while !dropping.is_finished() {
            cache.check().unwrap();
        }
        dropping.join().unwrap();
        cache.check().unwrap();
    }
}
