//! The plain interface by page id: zeroing of blocks, and what the calls themselves allocate.

mod plain;

use octavo_kv::{BlockAllocator, Scrub};
use octavo_types::{PageId, Pages, SeqId};
use plain::*;
use std::sync::{Arc, Mutex};

mod zeroing {
    use super::*;

    /// Notes what it is asked to zero.
    struct Recorder(Arc<Mutex<Vec<PageId>>>);

    impl Scrub for Recorder {
        fn zero(&self, pages: &[PageId]) {
            self.0.lock().unwrap().extend(pages);
        }
    }

    #[test]
    fn blocks_are_zeroed_once_when_they_become_free_and_not_while_somebody_holds_them() {
        let zeroed = Arc::new(Mutex::new(Vec::new()));
        let blocks = BlockAllocator::with_scrub(Pages(4), Box::new(Recorder(Arc::clone(&zeroed))));
        let held = allocate(&blocks, 4);
        let take_zeroed = || std::mem::take(&mut *zeroed.lock().unwrap());
        assert_eq!(take_zeroed(), []);
        blocks.add_ref(held[0]).unwrap();
        blocks.free(&held[..2]).unwrap();
        assert_eq!(take_zeroed(), [held[1]]);
        blocks.free(&[held[2], PageId(9)]).unwrap_err();
        assert_eq!(take_zeroed(), []);
        blocks.free(&[held[0]]).unwrap();
        assert_eq!(take_zeroed(), [held[0]]);
        assert_eq!(blocks.force_free(&held), Pages(2));
        assert_eq!(take_zeroed(), held[2..]);
    }

    /// Looks, while it zeroes, whether the blocks could be handed out already.
    struct Early(Arc<Mutex<Option<Arc<BlockAllocator>>>>);

    impl Scrub for Early {
        fn zero(&self, pages: &[PageId]) {
            let blocks = self.0.lock().unwrap();
            let blocks = blocks.as_ref().unwrap();
            assert_eq!(blocks.num_free(), Pages(0));
            assert_eq!(pages.len(), 2);
        }
    }

    #[test]
    fn a_block_cannot_be_handed_out_before_it_was_zeroed() {
        let seen = Arc::new(Mutex::new(None));
        let blocks = Arc::new(BlockAllocator::with_scrub(Pages(2), Box::new(Early(Arc::clone(&seen)))));
        *seen.lock().unwrap() = Some(Arc::clone(&blocks));
        let held = allocate(&blocks, 2);
        blocks.free(&held).unwrap();
        assert_eq!(blocks.num_free(), Pages(2));
        seen.lock().unwrap().take();
    }
}

mod memory {
    use super::*;
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    thread_local!(static ALLOCATIONS: Cell<u64> = const { Cell::new(0) });

    /// Counts the allocations of each thread.
    struct Counting;

    // SAFETY: every call goes to the system allocator unchanged.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            ALLOCATIONS.with(|count| count.set(count.get() + 1));
            // SAFETY: the caller's promise, passed on.
            unsafe { System.alloc(layout) }
        }
        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            // SAFETY: the caller's promise, passed on.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    #[global_allocator]
    static COUNTING: Counting = Counting;

    fn allocations(work: impl FnOnce()) -> u64 {
        let before = ALLOCATIONS.with(Cell::get);
        work();
        ALLOCATIONS.with(Cell::get) - before
    }

    #[test]
    fn freeing_blocks_that_nobody_shares_allocates_nothing() {
        let blocks = BlockAllocator::new(Pages(100));
        let held = allocate_for(&blocks, 100, 1);
        assert_eq!(allocations(|| blocks.free(&held[..50]).unwrap()), 0);
        assert_eq!(allocations(|| blocks.free_owned(SeqId(1), &held[50..]).unwrap()), 0);
    }

    #[test]
    fn an_allocation_allocates_its_list_of_ids_and_nothing_else() {
        let blocks = BlockAllocator::new(Pages(100));
        assert_eq!(allocations(|| drop(allocate(&blocks, 100))), 1);
    }
}
