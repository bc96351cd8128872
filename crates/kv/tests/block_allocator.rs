//! The plain interface by page id: every scenario of the block allocator, and every mistake it refuses.

use octavo_kv::{AllocError, BlockAllocator, FreeError, RefError, Scrub};
use octavo_types::{PageId, Pages, SeqId};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex};

fn allocate(blocks: &BlockAllocator, n: u32) -> Vec<PageId> {
    blocks.allocate(Pages(n), None).unwrap()
}

fn allocate_for(blocks: &BlockAllocator, n: u32, owner: u64) -> Vec<PageId> {
    blocks.allocate(Pages(n), Some(SeqId(owner))).unwrap()
}

fn sorted(mut pages: Vec<PageId>) -> Vec<PageId> {
    pages.sort();
    pages
}

fn owners(blocks: &BlockAllocator, pages: &[PageId]) -> Vec<Option<u64>> {
    pages.iter().map(|page| blocks.owner(*page).unwrap().map(|seq| seq.0)).collect()
}

mod basic_allocation {
    use super::*;

    #[test]
    fn five_blocks_of_ten_leave_five_free() {
        let blocks = BlockAllocator::new(Pages(10));
        assert_eq!(allocate(&blocks, 5).len(), 5);
        assert_eq!(blocks.num_free(), Pages(5));
        assert_eq!(blocks.num_allocated(), Pages(5));
    }

    #[test]
    fn five_more_leave_none() {
        let blocks = BlockAllocator::new(Pages(10));
        let all: BTreeSet<PageId> = allocate(&blocks, 5).into_iter().chain(allocate(&blocks, 5)).collect();
        assert_eq!(all, (0..10).map(PageId).collect());
        assert_eq!(blocks.num_free(), Pages(0));
        blocks.check().unwrap();
    }

    #[test]
    fn one_more_than_there_are_is_refused_with_the_need_and_the_free_count() {
        let blocks = BlockAllocator::new(Pages(10));
        allocate(&blocks, 8);
        let error = blocks.allocate(Pages(3), None).unwrap_err();
        assert_eq!(error, AllocError::OutOfPages { need: Pages(3), free: Pages(2) });
        assert_eq!(error.to_string(), "need 3 pages, only 2 pages free or evictable");
        allocate(&blocks, 2);
        let error = blocks.allocate_one(None).unwrap_err();
        assert_eq!(error, AllocError::OutOfPages { need: Pages(1), free: Pages(0) });
    }

    #[test]
    fn allocation_fails_whole_and_takes_nothing() {
        let blocks = BlockAllocator::new(Pages(10));
        let held = allocate(&blocks, 8);
        blocks.allocate(Pages(3), Some(SeqId(1))).unwrap_err();
        assert_eq!(blocks.num_free(), Pages(2));
        assert_eq!(blocks.allocated_block_ids(), held.into_iter().collect());
        assert_eq!(blocks.peak(), Pages(8));
        blocks.check().unwrap();
    }

    #[test]
    fn more_than_the_pool_has_can_never_fit() {
        let blocks = BlockAllocator::new(Pages(10));
        let error = blocks.allocate(Pages(11), None).unwrap_err();
        assert_eq!(error, AllocError::NeverFits { need: Pages(11), total: Pages(10) });
        blocks.allocate(Pages(u32::MAX), None).unwrap_err();
        assert_eq!(blocks.num_free(), Pages(10));
    }
}

mod deallocation {
    use super::*;

    #[test]
    fn freed_blocks_are_free_again() {
        let blocks = BlockAllocator::new(Pages(10));
        let three = allocate(&blocks, 3);
        blocks.free(&three).unwrap();
        assert_eq!((blocks.num_free(), blocks.num_allocated()), (Pages(10), Pages(0)));
        blocks.check().unwrap();
    }

    #[test]
    fn the_next_allocation_gets_the_blocks_that_were_freed() {
        let blocks = BlockAllocator::new(Pages(10));
        let three = allocate(&blocks, 3);
        blocks.free(&three).unwrap();
        assert_eq!(sorted(allocate(&blocks, 3)), sorted(three));
    }

    #[test]
    fn one_block_is_freed_alone_and_a_batch_at_once() {
        let blocks = BlockAllocator::new(Pages(10));
        let all = allocate(&blocks, 10);
        blocks.free(&all[..1]).unwrap();
        assert_eq!(blocks.num_free(), Pages(1));
        blocks.free(&all[1..]).unwrap();
        assert_eq!(blocks.num_free(), Pages(10));
    }

    #[test]
    fn freeing_nothing_changes_nothing() {
        let blocks = BlockAllocator::new(Pages(2));
        blocks.free(&[]).unwrap();
        assert_eq!(blocks.num_free(), Pages(2));
    }

    #[test]
    fn the_free_list_starts_with_every_block_and_hands_out_the_last_freed_first() {
        let blocks = BlockAllocator::new(Pages(4));
        assert_eq!(blocks.num_free(), Pages(4));
        assert_eq!(allocate(&blocks, 4), [PageId(0), PageId(1), PageId(2), PageId(3)]);
        for page in [1, 3, 0] {
            blocks.free(&[PageId(page)]).unwrap();
        }
        assert_eq!(allocate(&blocks, 3), [PageId(0), PageId(3), PageId(1)]);
    }

    #[test]
    fn every_free_block_is_usable_wherever_it_lies() {
        let blocks = BlockAllocator::new(Pages(100));
        let all = allocate(&blocks, 100);
        let every_other: Vec<PageId> = all.iter().copied().step_by(2).collect();
        blocks.free(&every_other).unwrap();
        assert_eq!(sorted(allocate(&blocks, 50)), every_other);
        assert_eq!(blocks.num_free(), Pages(0));
    }
}

mod double_free {
    use super::*;

    #[test]
    fn blocks_that_were_freed_cannot_be_freed_again() {
        let blocks = BlockAllocator::new(Pages(10));
        let three = allocate(&blocks, 3);
        blocks.free(&three).unwrap();
        let error = blocks.free(&three).unwrap_err();
        assert_eq!(error, FreeError::NotAllocated { page: three[0] });
        assert!(error.to_string().starts_with("cannot free page 0: it is not allocated"), "{error}");
        assert_eq!(blocks.num_free(), Pages(10));
        blocks.check().unwrap();
    }

    #[test]
    fn a_block_that_was_never_allocated_cannot_be_freed() {
        let blocks = BlockAllocator::new(Pages(10));
        let one = allocate(&blocks, 1)[0];
        let never = PageId(9);
        assert_ne!(one, never);
        assert_eq!(blocks.free(&[never]), Err(FreeError::NotAllocated { page: never }));
    }

    #[test]
    fn a_block_that_does_not_exist_cannot_be_freed() {
        let blocks = BlockAllocator::new(Pages(10));
        let error = blocks.free(&[PageId(10)]).unwrap_err();
        assert_eq!(error, FreeError::Unknown { page: PageId(10), total: Pages(10) });
        assert_eq!(error.to_string(), "cannot free page 10: the pool has 10 pages");
        blocks.free(&[PageId(u32::MAX)]).unwrap_err();
        blocks.free_owned(SeqId(1), &[PageId(10)]).unwrap_err();
    }

    #[test]
    fn one_bad_id_among_good_ones_frees_nothing() {
        let blocks = BlockAllocator::new(Pages(10));
        let held = allocate(&blocks, 4);
        blocks.add_ref(held[1]).unwrap();
        for bad in [PageId(9), PageId(10), PageId(u32::MAX)] {
            for at in 0..=held.len() {
                let mut ids = held.clone();
                ids.insert(at, bad);
                blocks.free(&ids).unwrap_err();
                let counts: Vec<u32> = held.iter().map(|page| blocks.ref_count(*page).unwrap()).collect();
                assert_eq!(counts, [1, 2, 1, 1], "{bad} at {at}");
                assert_eq!(blocks.num_free(), Pages(6));
                blocks.check().unwrap();
            }
        }
    }

    #[test]
    fn a_block_named_twice_with_one_reference_is_a_double_free_and_stays() {
        let blocks = BlockAllocator::new(Pages(10));
        let held = allocate(&blocks, 3);
        let twice = [held[0], held[1], held[2], held[1]];
        assert_eq!(blocks.free(&twice), Err(FreeError::NotAllocated { page: held[1] }));
        assert_eq!((blocks.num_allocated(), blocks.ref_count(held[1])), (Pages(3), Ok(1)));
        blocks.check().unwrap();
        blocks.free(&held).unwrap();
    }

    #[test]
    fn a_block_named_as_often_as_it_is_referenced_is_freed_and_once_more_is_refused() {
        let blocks = BlockAllocator::new(Pages(10));
        let held = allocate(&blocks, 2);
        blocks.add_ref(held[0]).unwrap();
        let thrice = [held[0], held[1], held[0], held[0]];
        assert_eq!(blocks.free(&thrice), Err(FreeError::NotAllocated { page: held[0] }));
        assert_eq!((blocks.ref_count(held[0]), blocks.ref_count(held[1])), (Ok(2), Ok(1)));
        blocks.free(&[held[0], held[1], held[0]]).unwrap();
        assert_eq!(blocks.num_free(), Pages(10));
        blocks.check().unwrap();
    }
}

mod can_allocate {
    use super::*;

    #[test]
    fn two_fit_beside_eight_of_ten_and_three_do_not() {
        let blocks = BlockAllocator::new(Pages(10));
        allocate(&blocks, 8);
        assert!(blocks.can_allocate(Pages(2)));
        assert!(!blocks.can_allocate(Pages(3)));
    }
}

mod edge_cases {
    use super::*;

    #[test]
    fn allocating_nothing_gives_nothing_and_changes_nothing() {
        let blocks = BlockAllocator::new(Pages(10));
        let before = blocks.get_stats();
        assert_eq!(allocate(&blocks, 0), []);
        assert_eq!(blocks.get_stats(), before);
        allocate(&blocks, 10);
        assert_eq!(allocate(&blocks, 0), []);
    }

    #[test]
    fn an_empty_pool_has_room_for_nothing_and_for_nothing_only() {
        let blocks = BlockAllocator::new(Pages(0));
        let error = blocks.allocate(Pages(1), None).unwrap_err();
        assert_eq!(error, AllocError::NeverFits { need: Pages(1), total: Pages(0) });
        assert_eq!(blocks.num_free(), Pages(0));
        assert!(blocks.can_allocate(Pages(0)));
        assert!(!blocks.can_allocate(Pages(1)));
        assert_eq!(allocate(&blocks, 0), []);
        assert_eq!(blocks.get_stats().utilization, 0.0);
        blocks.free(&[PageId(0)]).unwrap_err();
        blocks.check().unwrap();
    }
}

mod owner_tracking {
    use super::*;

    #[test]
    fn every_block_knows_the_sequence_it_was_allocated_for() {
        let blocks = BlockAllocator::new(Pages(10));
        let three = allocate_for(&blocks, 3, 42);
        assert_eq!(owners(&blocks, &three), [Some(42); 3]);
        assert_eq!(owners(&blocks, &allocate(&blocks, 1)), [None]);
        assert!(blocks.owner(PageId(10)).is_err());
    }

    #[test]
    fn only_the_freed_blocks_lose_their_owner() {
        let blocks = BlockAllocator::new(Pages(10));
        let three = allocate_for(&blocks, 3, 42);
        blocks.free(&three[..2]).unwrap();
        assert_eq!(owners(&blocks, &three), [None, None, Some(42)]);
    }

    #[test]
    fn blocks_of_two_owners_live_side_by_side() {
        let blocks = BlockAllocator::new(Pages(10));
        let three = allocate_for(&blocks, 3, 42);
        blocks.free(&three[..2]).unwrap();
        let two = allocate_for(&blocks, 2, 99);
        assert_eq!(owners(&blocks, &three[2..]), [Some(42)]);
        assert_eq!(owners(&blocks, &two), [Some(99); 2]);
        let held: Vec<Option<u64>> = owners(&blocks, &(0..10).map(PageId).collect::<Vec<_>>());
        assert_eq!(held.iter().filter(|owner| owner.is_some()).count(), 3);
    }

    #[test]
    fn a_block_of_another_sequence_is_refused_with_both_owners_and_nothing_is_freed() {
        let blocks = BlockAllocator::new(Pages(10));
        let mine = allocate_for(&blocks, 2, 1);
        let theirs = allocate_for(&blocks, 1, 2);
        let nobodys = allocate(&blocks, 1);
        let error = blocks.free_owned(SeqId(1), &[mine[0], theirs[0], mine[1]]).unwrap_err();
        let (owner, asked) = (Some(SeqId(2)), SeqId(1));
        assert_eq!(error, FreeError::Foreign { page: theirs[0], owner, asked });
        assert_eq!(error.to_string(), "cannot free page 2 for sequence 1: it is owned by sequence 2");
        let error = blocks.free_owned(SeqId(1), &[mine[0], nobodys[0]]).unwrap_err();
        assert_eq!(error.to_string(), "cannot free page 3 for sequence 1: it is owned by no sequence");
        assert_eq!(blocks.num_allocated(), Pages(4));
        blocks.check().unwrap();
        blocks.free_owned(SeqId(1), &mine).unwrap();
        assert_eq!(blocks.num_allocated(), Pages(2));
    }

    #[test]
    fn a_double_free_by_an_owner_is_called_that_whoever_has_the_block_now() {
        let blocks = BlockAllocator::new(Pages(1));
        let page = allocate_for(&blocks, 1, 1);
        blocks.free_owned(SeqId(1), &page).unwrap();
        let again = blocks.free_owned(SeqId(1), &page).unwrap_err();
        assert_eq!(again, FreeError::NotAllocated { page: page[0] });
        allocate_for(&blocks, 1, 2);
        let stolen = blocks.free_owned(SeqId(1), &page).unwrap_err();
        assert!(matches!(stolen, FreeError::Foreign { owner: Some(SeqId(2)), .. }), "{stolen}");
        assert_eq!(blocks.num_allocated(), Pages(1));
    }
}

mod leak_detection {
    use super::*;

    fn two_owners() -> (BlockAllocator, Vec<PageId>, Vec<PageId>) {
        let blocks = BlockAllocator::new(Pages(10));
        let (first, second) = (allocate_for(&blocks, 5, 1), allocate_for(&blocks, 3, 2));
        allocate(&blocks, 1);
        (blocks, sorted(first), sorted(second))
    }

    #[test]
    fn blocks_of_an_owner_that_is_gone_are_leaked() {
        let (blocks, _, second) = two_owners();
        let leaked = blocks.find_leaked_blocks(&HashSet::from([SeqId(1)]));
        assert_eq!(leaked, BTreeMap::from([(SeqId(2), second)]));
    }

    #[test]
    fn nothing_is_leaked_while_all_owners_are_active() {
        let (blocks, ..) = two_owners();
        assert!(blocks.find_leaked_blocks(&HashSet::from([SeqId(1), SeqId(2)])).is_empty());
    }

    #[test]
    fn with_no_owner_active_all_of_them_leak() {
        let (blocks, first, second) = two_owners();
        let leaked = blocks.find_leaked_blocks(&HashSet::new());
        assert_eq!(leaked, BTreeMap::from([(SeqId(1), first), (SeqId(2), second)]));
    }
}

mod unreferenced_blocks {
    use super::*;

    fn ten_of_twelve() -> (BlockAllocator, Vec<PageId>) {
        let blocks = BlockAllocator::new(Pages(12));
        let ten = allocate(&blocks, 10);
        (blocks, ten)
    }

    #[test]
    fn the_three_that_seven_references_leave_out_are_found_in_order() {
        let (blocks, ten) = ten_of_twelve();
        let left_out = [ten[8], ten[1], ten[4]];
        let referenced = ten.iter().copied().filter(|page| !left_out.contains(page)).collect();
        assert_eq!(blocks.find_unreferenced_blocks(&referenced), sorted(left_out.to_vec()));
    }

    #[test]
    fn none_is_found_when_all_are_referenced() {
        let (blocks, ten) = ten_of_twelve();
        assert_eq!(blocks.find_unreferenced_blocks(&ten.into_iter().collect()), []);
    }

    #[test]
    fn all_are_found_when_none_is_referenced() {
        let (blocks, ten) = ten_of_twelve();
        assert_eq!(blocks.find_unreferenced_blocks(&HashSet::new()), sorted(ten));
    }
}

mod force_free {
    use super::*;

    #[test]
    fn forced_blocks_are_free_and_have_no_owner() {
        let blocks = BlockAllocator::new(Pages(10));
        let five = allocate_for(&blocks, 5, 7);
        assert_eq!(blocks.force_free(&five), Pages(5));
        assert_eq!(blocks.num_free(), Pages(10));
        assert_eq!(owners(&blocks, &five), [None; 5]);
        blocks.check().unwrap();
    }

    #[test]
    fn blocks_that_are_free_already_are_passed_over() {
        let blocks = BlockAllocator::new(Pages(10));
        let five = allocate(&blocks, 5);
        blocks.free(&five[..2]).unwrap();
        assert_eq!(blocks.force_free(&five), Pages(3));
        assert_eq!(blocks.force_free(&five), Pages(0));
        assert_eq!(blocks.force_free(&[PageId(9), PageId(10)]), Pages(0));
        assert_eq!(blocks.num_free(), Pages(10));
        blocks.check().unwrap();
    }

    #[test]
    fn shared_blocks_and_blocks_named_twice_are_freed_once() {
        let blocks = BlockAllocator::new(Pages(10));
        let page = allocate(&blocks, 1)[0];
        blocks.add_ref(page).unwrap();
        assert_eq!(blocks.force_free(&[page, page]), Pages(1));
        assert_eq!((blocks.num_free(), blocks.ref_count(page)), (Pages(10), Ok(0)));
        blocks.check().unwrap();
    }
}

mod allocated_block_ids {
    use super::*;

    #[test]
    fn they_are_the_blocks_that_were_handed_out() {
        let blocks = BlockAllocator::new(Pages(10));
        let five = allocate(&blocks, 5);
        assert_eq!(blocks.allocated_block_ids(), five.into_iter().collect());
    }

    #[test]
    fn they_follow_what_is_freed() {
        let blocks = BlockAllocator::new(Pages(10));
        let five = allocate(&blocks, 5);
        blocks.free(&five[..2]).unwrap();
        assert_eq!(blocks.allocated_block_ids(), five[2..].iter().copied().collect());
    }

    #[test]
    fn they_are_a_copy() {
        let blocks = BlockAllocator::new(Pages(10));
        let five = allocate(&blocks, 5);
        blocks.allocated_block_ids().clear();
        assert_eq!(blocks.num_allocated(), Pages(5));
        assert_eq!(blocks.allocated_block_ids().len(), 5);
        blocks.free(&five).unwrap();
    }
}

mod reference_counts {
    use super::*;

    #[test]
    fn a_shared_block_is_free_after_its_last_reference_and_not_before() {
        let blocks = BlockAllocator::new(Pages(10));
        let page = blocks.allocate_one(Some(SeqId(1))).unwrap();
        blocks.add_ref(page).unwrap();
        blocks.add_ref(page).unwrap();
        for left in [2, 1, 0] {
            assert_eq!(blocks.num_free(), Pages(9));
            blocks.free(&[page]).unwrap();
            assert_eq!(blocks.ref_count(page), Ok(left));
            assert_eq!(blocks.owner(page).unwrap(), (left > 0).then_some(SeqId(1)));
        }
        assert_eq!(blocks.num_free(), Pages(10));
        assert_eq!(blocks.free(&[page]), Err(FreeError::NotAllocated { page }));
        blocks.check().unwrap();
    }

    #[test]
    fn a_batch_frees_the_blocks_whose_last_reference_it_held_and_keeps_the_others() {
        let blocks = BlockAllocator::new(Pages(10));
        let held = allocate(&blocks, 4);
        blocks.add_ref(held[0]).unwrap();
        blocks.add_ref(held[2]).unwrap();
        blocks.free(&held).unwrap();
        assert_eq!(blocks.allocated_block_ids(), HashSet::from([held[0], held[2]]));
        blocks.check().unwrap();
        blocks.free(&[held[0], held[2]]).unwrap();
        assert_eq!(blocks.num_free(), Pages(10));
    }

    #[test]
    fn a_free_or_unknown_block_cannot_be_shared() {
        let blocks = BlockAllocator::new(Pages(2));
        let page = PageId(0);
        assert_eq!(blocks.add_ref(page), Err(RefError::NotHeld { page }));
        let page = PageId(2);
        assert_eq!(blocks.add_ref(page), Err(RefError::Unknown { page, total: Pages(2) }));
        assert_eq!(blocks.ref_count(page), Err(RefError::Unknown { page, total: Pages(2) }));
        assert_eq!(blocks.ref_count(PageId(1)), Ok(0));
    }
}

mod statistics {
    use super::*;

    #[test]
    fn they_count_used_and_free_blocks_and_remember_the_peak() {
        let blocks = BlockAllocator::new(Pages(10));
        let held = allocate(&blocks, 8);
        blocks.free(&held[..5]).unwrap();
        allocate(&blocks, 1);
        let stats = blocks.get_stats();
        assert_eq!(stats.total_blocks, Pages(10));
        assert_eq!((stats.used_blocks, stats.free_blocks), (Pages(4), Pages(6)));
        assert_eq!(stats.peak_blocks, Pages(8));
        assert!((stats.utilization - 0.4).abs() < 1e-12);
        assert!((stats.utilization_percent() - 40.0).abs() < 1e-12);
    }
}

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
