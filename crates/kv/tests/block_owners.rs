//! The plain interface by page id: whose blocks are whose, and which are lost.

mod plain;

use octavo_kv::{BlockAllocator, FreeError};
use octavo_types::{PageId, Pages, SeqId};
use plain::*;
use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

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
    fn the_number_that_stands_for_no_owner_is_refused_before_a_block_is_taken() {
        let blocks = BlockAllocator::new(Pages(10));
        let nobody = || blocks.allocate(Pages(2), Some(SeqId(u64::MAX)));
        assert!(catch_unwind(AssertUnwindSafe(nobody)).is_err());
        assert_eq!(blocks.num_free(), Pages(10));
        blocks.check().unwrap();
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
