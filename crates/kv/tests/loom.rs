//! Models of the lock-free parts, run through every interleaving and every outcome that the memory model
//! allows, up to the bound that each model states.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p octavo-kv --test loom --release
//! ```
//!
//! Bounds: a model runs two or three threads over one to three pages. "At most n preemptions" means that
//! schedules in which threads are interrupted more than n times are left out (a thread that ends or waits is no
//! interruption); "exhaustive" means that none are. `LOOM_MAX_PREEMPTIONS` does not override these.
//!
//! Where pages change hands, each holder touches a cell that stands for the page's contents, and loom reports a
//! cell touched by two threads without one happening before the other. So a page that is handed out twice
//! fails, and so does one that is handed over with orders too weak for its contents to follow.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::thread;
use octavo_kv::{AllocError, BlockAllocator, FreeError, PageMut, PageRef, Pool};
use octavo_types::{PageId, Pages};
use std::sync::Arc;

/// One cell a page.
struct Contents(Vec<UnsafeCell<u32>>);

// SAFETY: the cells are only touched through `write` and `read`, which loom watches and which dereference
// nothing.
unsafe impl Sync for Contents {}
// SAFETY: as above.
unsafe impl Send for Contents {}

impl Contents {
    fn new(pages: u32) -> Arc<Self> {
        Arc::new(Self((0..pages).map(UnsafeCell::new).collect()))
    }
    /// Touches pages as their only holder does.
    fn write(&self, pages: &[PageId]) {
        pages.iter().for_each(|page| self.0[page.index()].with_mut(|_| ()));
    }
    /// Touches a page as one of several holders does.
    fn read(&self, page: PageId) {
        self.0[page.index()].with(|_| ());
    }
}

/// Every interleaving with at most `preemptions`, or every one there is.
fn model(preemptions: Option<usize>, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(run);
}

mod free_list {
    use super::*;

    fn blocks(pages: u32) -> (Arc<BlockAllocator>, Arc<Contents>) {
        (Arc::new(BlockAllocator::new(Pages(pages))), Contents::new(pages))
    }

    fn take(blocks: &BlockAllocator, contents: &Contents, n: u32) -> Result<Vec<PageId>, AllocError> {
        let pages = blocks.allocate(Pages(n), None)?;
        assert_eq!(pages.len(), n as usize);
        contents.write(&pages);
        Ok(pages)
    }

    /// At most 4 preemptions. One page, two threads: one gets it, or each in turn.
    #[test]
    fn a_page_is_handed_to_one_thread_at_a_time() {
        model(Some(4), || {
            let (blocks, contents) = blocks(1);
            let work = |blocks: &BlockAllocator, contents: &Contents| {
                if let Ok(page) = take(blocks, contents, 1) {
                    blocks.free(&page).unwrap();
                }
            };
            let other = thread::spawn({
                let (blocks, contents) = (Arc::clone(&blocks), Arc::clone(&contents));
                move || work(&blocks, &contents)
            });
            work(&blocks, &contents);
            other.join().unwrap();
            assert_eq!(blocks.num_free(), Pages(1));
            blocks.check().unwrap();
        });
    }

    /// At most 4 preemptions. The other thread takes two pages and gives the first back while this one is about
    /// to take it: the top of the list is the same as before, what lies below is not.
    #[test]
    fn a_list_whose_top_came_back_is_not_mistaken_for_the_one_before() {
        model(Some(4), || {
            let (blocks, contents) = blocks(3);
            let other = thread::spawn({
                let (blocks, contents) = (Arc::clone(&blocks), Arc::clone(&contents));
                move || {
                    let first = take(&blocks, &contents, 1).unwrap();
                    let second = take(&blocks, &contents, 1).unwrap();
                    blocks.free(&first).unwrap();
                    second
                }
            });
            let mut held = take(&blocks, &contents, 1).unwrap();
            held.extend(other.join().unwrap());
            held.extend(take(&blocks, &contents, 1).unwrap());
            held.sort();
            assert_eq!(held, [PageId(0), PageId(1), PageId(2)]);
        });
    }

    /// At most 4 preemptions. Two threads want two pages each of three.
    #[test]
    fn two_pages_are_taken_both_or_not_at_all() {
        model(Some(4), || {
            let (blocks, contents) = blocks(3);
            let work = |blocks: &BlockAllocator, contents: &Contents| match take(blocks, contents, 2) {
                Ok(pages) => {
                    blocks.free(&pages).unwrap();
                    true
                }
                Err(error) => {
                    assert_eq!(error, AllocError::OutOfPages { need: Pages(2), free: Pages(1) });
                    false
                }
            };
            let other = thread::spawn({
                let (blocks, contents) = (Arc::clone(&blocks), Arc::clone(&contents));
                move || work(&blocks, &contents)
            });
            let here = work(&blocks, &contents);
            let there = other.join().unwrap();
            assert!(here || there, "neither got two pages of three");
            assert_eq!(blocks.num_free(), Pages(3));
            blocks.check().unwrap();
        });
    }

    /// At most 2 preemptions. Of three pages one thread takes two and another one, and give them back; the third
    /// takes one and keeps it.
    #[test]
    fn pages_taken_by_ones_and_twos_on_three_threads_are_all_there_afterwards() {
        model(Some(2), || {
            let (blocks, contents) = blocks(3);
            let give_back = |n| {
                let (blocks, contents) = (Arc::clone(&blocks), Arc::clone(&contents));
                thread::spawn(move || {
                    if let Ok(pages) = take(&blocks, &contents, n) {
                        blocks.free(&pages).unwrap();
                    }
                })
            };
            let others = [give_back(2), give_back(1)];
            let kept = take(&blocks, &contents, 1);
            others.into_iter().for_each(|other| other.join().unwrap());
            assert_eq!(blocks.num_allocated(), Pages(kept.map_or(0, |kept| kept.len() as u32)));
            blocks.check().unwrap();
        });
    }

    /// Takes a page and drops it onto the return stack, whose links are the free list's too.
    fn take_and_drop(pool: &Arc<Pool>) -> thread::JoinHandle<()> {
        let pool = Arc::clone(pool);
        thread::spawn(move || drop(pool.take(Pages(1), None).unwrap()))
    }

    /// Exhaustive. A page moves to the other stack while the free list is measured: its link then says how deep
    /// it lies there.
    #[test]
    fn the_length_of_a_changing_list_is_one_that_it_had() {
        model(None, || {
            let pool = Pool::new(Pages(3));
            let other = take_and_drop(&pool);
            let free = pool.free();
            assert!(free == Pages(3) || free == Pages(2), "{free}");
            other.join().unwrap();
            assert_eq!((pool.free(), pool.returned()), (Pages(2), Pages(1)));
        });
    }

    /// At most 4 preemptions. The same while two pages are taken.
    #[test]
    fn two_pages_are_taken_from_a_changing_list_that_never_has_fewer() {
        model(Some(4), || {
            let pool = Pool::new(Pages(3));
            let other = take_and_drop(&pool);
            let two = pool.take(Pages(2), None).unwrap();
            other.join().unwrap();
            assert_eq!((pool.free(), pool.returned()), (Pages(0), Pages(1)));
            drop(two);
        });
    }
}

mod freeing_by_id {
    use super::*;

    /// Exhaustive. Both threads free the same reference: exactly one is told that it did.
    #[test]
    fn a_double_free_on_two_threads_frees_once() {
        model(None, || {
            let blocks = Arc::new(BlockAllocator::new(Pages(1)));
            let page = blocks.allocate_one(None).unwrap();
            let other = thread::spawn({
                let blocks = Arc::clone(&blocks);
                move || blocks.free(&[page])
            });
            let results = [blocks.free(&[page]), other.join().unwrap()];
            assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
            assert!(results.contains(&Err(FreeError::NotAllocated { page })));
            assert_eq!(blocks.num_free(), Pages(1));
            blocks.check().unwrap();
        });
    }

    /// Exhaustive. One holder's call is refused for another id in it, while the other holder lets go.
    #[test]
    fn a_refused_free_keeps_its_reference_while_another_holder_frees_the_page() {
        model(None, || {
            let blocks = Arc::new(BlockAllocator::new(Pages(1)));
            let contents = Contents::new(1);
            let page = blocks.allocate_one(None).unwrap();
            blocks.add_ref(page).unwrap();
            let other = thread::spawn({
                let (blocks, contents) = (Arc::clone(&blocks), Arc::clone(&contents));
                move || {
                    contents.read(page);
                    blocks.free(&[page]).unwrap();
                }
            });
            blocks.free(&[page, PageId(9)]).unwrap_err();
            assert!(blocks.ref_count(page).unwrap() > 0, "the reference is gone");
            other.join().unwrap();
            assert_eq!((blocks.num_free(), blocks.ref_count(page)), (Pages(0), Ok(1)));
            contents.write(&[page]);
            blocks.free(&[page]).unwrap();
            blocks.check().unwrap();
        });
    }

    /// At most 4 preemptions. Each thread frees one reference to a shared page and the only one to another.
    #[test]
    fn batches_that_share_a_page_free_it_once() {
        model(Some(4), || {
            let blocks = Arc::new(BlockAllocator::new(Pages(3)));
            let pages = blocks.allocate(Pages(3), None).unwrap();
            blocks.add_ref(pages[0]).unwrap();
            let other = thread::spawn({
                let (blocks, batch) = (Arc::clone(&blocks), [pages[0], pages[1]]);
                move || blocks.free(&batch).unwrap()
            });
            blocks.free(&[pages[2], pages[0]]).unwrap();
            other.join().unwrap();
            assert_eq!(blocks.num_free(), Pages(3));
            blocks.check().unwrap();
        });
    }

    /// Two holders read a page and free it, this one alone or with another page; the next one to get it writes.
    fn a_page_is_written_after_all_its_readers_have_read_it(preemptions: Option<usize>, pages: u32) {
        model(preemptions, move || {
            let blocks = Arc::new(BlockAllocator::new(Pages(pages)));
            let contents = Contents::new(pages);
            let mine = blocks.allocate(Pages(pages), None).unwrap();
            let page = mine[0];
            blocks.add_ref(page).unwrap();
            let other = thread::spawn({
                let (blocks, contents) = (Arc::clone(&blocks), Arc::clone(&contents));
                move || {
                    contents.read(page);
                    blocks.free(&[page]).unwrap();
                }
            });
            contents.read(page);
            blocks.free(&mine).unwrap();
            if let Ok(again) = blocks.allocate(Pages(pages), None) {
                contents.write(&again);
            }
            other.join().unwrap();
        });
    }

    /// Exhaustive.
    #[test]
    fn a_page_that_is_freed_alone_is_written_after_all_its_readers_have_read_it() {
        a_page_is_written_after_all_its_readers_have_read_it(None, 1);
    }

    /// At most 3 preemptions.
    #[test]
    fn a_page_that_is_freed_with_others_is_written_after_all_its_readers_have_read_it() {
        a_page_is_written_after_all_its_readers_have_read_it(Some(3), 2);
    }
}

mod return_stack {
    use super::*;

    fn two_pages(pool: &Arc<Pool>) -> (PageMut, PageMut) {
        let mut pages = pool.take(Pages(2), None).unwrap();
        let second = pages.pop().unwrap();
        (pages.pop().unwrap(), second)
    }

    /// At most 4 preemptions. Two threads drop a page each while this one reclaims.
    #[test]
    fn pages_dropped_on_two_threads_are_reclaimed_once_each() {
        model(Some(4), || {
            let pool = Pool::new(Pages(2));
            let contents = Contents::new(2);
            let (first, second) = two_pages(&pool);
            let on_thread = |page: PageMut| {
                let contents = Arc::clone(&contents);
                thread::spawn(move || {
                    contents.write(&[page.id()]);
                    drop(page);
                })
            };
            let others = [on_thread(first), on_thread(second)];
            let early = pool.reclaim();
            assert!(pool.free() == early, "what was reclaimed is free");
            others.into_iter().for_each(|other| other.join().unwrap());
            assert_eq!(early + pool.reclaim(), Pages(2));
            assert_eq!((pool.free(), pool.returned()), (Pages(2), Pages(0)));
            let again = pool.take(Pages(2), None).unwrap();
            contents.write(&again.iter().map(PageMut::id).collect::<Vec<_>>());
        });
    }

    /// Exhaustive. A page goes all the way round, from drop to reclaim to the next holder, while the
    /// other is dropped too.
    #[test]
    fn a_page_goes_round_while_another_is_dropped() {
        model(None, || {
            let pool = Pool::new(Pages(2));
            let contents = Contents::new(2);
            let (first, second) = two_pages(&pool);
            let other = thread::spawn({
                let contents = Arc::clone(&contents);
                move || {
                    contents.write(&[second.id()]);
                    drop(second.seal());
                }
            });
            contents.write(&[first.id()]);
            drop(first);
            assert!(pool.reclaim() >= Pages(1));
            let taken = pool.take(Pages(1), None).unwrap();
            contents.write(&[taken[0].id()]);
            other.join().unwrap();
            pool.reclaim();
            assert_eq!(pool.free(), Pages(1));
            drop(taken);
            assert_eq!((pool.reclaim(), pool.free()), (Pages(1), Pages(2)));
        });
    }
}

mod sharing {
    use super::*;

    fn shared_page() -> (Arc<Pool>, Arc<Contents>, PageRef) {
        let pool = Pool::new(Pages(1));
        let page = pool.take(Pages(1), None).unwrap().pop().unwrap().seal();
        (pool, Contents::new(1), page)
    }

    fn read_and_drop(contents: &Arc<Contents>, page: PageRef) -> thread::JoinHandle<()> {
        let contents = Arc::clone(contents);
        thread::spawn(move || {
            contents.read(page.id());
            drop(page);
        })
    }

    /// Exhaustive.
    #[test]
    fn a_page_dropped_by_its_two_readers_returns_once() {
        model(None, || {
            let (pool, contents, page) = shared_page();
            let other = read_and_drop(&contents, page.share().unwrap());
            contents.read(page.id());
            drop(page);
            other.join().unwrap();
            assert_eq!((pool.returned(), pool.reclaim(), pool.free()), (Pages(1), Pages(1), Pages(1)));
            contents.write(&[PageId(0)]);
        });
    }

    /// Exhaustive. The new reader stays while the others let go.
    #[test]
    fn a_page_shared_while_another_reader_drops_it_stays_held() {
        model(None, || {
            let (pool, contents, page) = shared_page();
            let other = read_and_drop(&contents, page.share().unwrap());
            let kept = page.share().unwrap();
            drop(page);
            other.join().unwrap();
            assert_eq!((pool.returned(), pool.refs(kept.id())), (Pages(0), Ok(1)));
            contents.read(kept.id());
            drop(kept);
            assert_eq!(pool.reclaim(), Pages(1));
        });
    }

    /// Exhaustive. One reader wants to write while the other reads and lets go.
    #[test]
    fn nobody_writes_while_another_reader_is_left() {
        model(None, || {
            let (pool, contents, page) = shared_page();
            let other = read_and_drop(&contents, page.share().unwrap());
            let page = match page.unseal() {
                Ok(page) => {
                    // The other reader is gone, and what it read was read before this.
                    contents.write(&[page.id()]);
                    page.seal()
                }
                Err(page) => {
                    contents.read(page.id());
                    page
                }
            };
            other.join().unwrap();
            let page = page.unseal().expect("the only reader");
            contents.write(&[page.id()]);
            drop(page);
            assert_eq!(pool.reclaim(), Pages(1));
        });
    }

    /// Exhaustive. Two readers both want to write: at most one of them may, and the page returns once.
    #[test]
    fn of_two_readers_that_want_to_write_one_may_once_the_other_is_gone() {
        model(None, || {
            let (pool, contents, page) = shared_page();
            let write = |contents: Arc<Contents>, page: PageRef| match page.unseal() {
                Ok(page) => contents.write(&[page.id()]),
                Err(page) => contents.read(page.id()),
            };
            let other = thread::spawn({
                let (contents, page) = (Arc::clone(&contents), page.share().unwrap());
                move || write(contents, page)
            });
            write(Arc::clone(&contents), page);
            other.join().unwrap();
            assert_eq!((pool.reclaim(), pool.free()), (Pages(1), Pages(1)));
        });
    }
}
