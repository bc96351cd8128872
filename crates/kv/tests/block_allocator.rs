//! The plain interface by page id: taking, sharing and giving back, and every mistake that is refused.

mod plain;

use octavo_kv::{AllocError, BlockAllocator, FreeError, RefError};
use octavo_types::{PageId, Pages, SeqId};
use plain::*;
use std::collections::{BTreeSet, HashSet};

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
