//! Sequences over plain blocks: the bookkeeping of a paged pool without prefix cache.

mod plain;

use octavo_kv::{
    AllocError, AllocateSequenceError, BlockAllocator, BlockTable, CacheManager, ExtendError, FreeError,
    FreeSequenceError, ManagerError, NoSuchBlock, PositionError, Scrub, UnknownSequence,
};
use octavo_types::{Bytes, KvDtype, KvSpec, PageId, PageSize, Pages, SeqId, SlotId, Tokens};
use plain::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

mod sequences {
    use super::*;

    #[test]
    fn fifty_tokens_take_four_blocks_of_sixteen() {
        let mut cache = manager(100, 16);
        cache.allocate_slot(Tokens(50)).unwrap();
        assert_eq!(cache.allocator().num_allocated(), Pages(4));
        cache.check().unwrap();
    }

    #[test]
    fn a_new_sequence_has_its_blocks_in_its_table_and_no_tokens_yet() {
        let mut cache = manager(100, 16);
        let seq = cache.allocate_slot(Tokens(50)).unwrap();
        assert_eq!(cache.block_table(seq).unwrap().len(), Pages(4));
        assert_eq!(cache.get_seq_len(seq), Ok(Tokens(0)));
    }

    #[test]
    fn no_initial_tokens_take_an_id_and_no_block() {
        let mut cache = manager(100, 16);
        let seq = cache.allocate_slot(Tokens(0)).unwrap();
        assert!(cache.block_table(seq).unwrap().is_empty());
        assert_eq!(cache.allocator().num_allocated(), Pages(0));
        assert_eq!(cache.active_seq_count(), 1);
        cache.free_slot(seq).unwrap();
    }

    #[test]
    fn a_freed_sequence_gives_its_blocks_back() {
        let mut cache = manager(100, 16);
        let seq = cache.allocate_slot(Tokens(50)).unwrap();
        cache.free_slot(seq).unwrap();
        assert_eq!(cache.allocator().num_free(), Pages(100));
        cache.check().unwrap();
    }

    #[test]
    fn a_freed_sequence_has_neither_table_nor_length() {
        let mut cache = manager(100, 16);
        let seq = cache.allocate_slot(Tokens(50)).unwrap();
        cache.free_slot(seq).unwrap();
        assert_eq!(cache.block_table(seq), Err(UnknownSequence(seq)));
        assert_eq!(cache.get_seq_len(seq), Err(UnknownSequence(seq)));
        assert_eq!(cache.active_seq_count(), 0);
    }

    #[test]
    fn a_sequence_that_does_not_exist_cannot_be_freed() {
        let mut cache = manager(100, 16);
        let seq = SeqId(999);
        assert_eq!(cache.free_slot(seq), Err(FreeSequenceError::Unknown(UnknownSequence(seq))));
        assert_eq!(cache.free_sequence(seq), Err(FreeSequenceError::Unknown(UnknownSequence(seq))));
    }

    #[test]
    fn several_sequences_have_the_blocks_of_their_lengths() {
        let mut cache = manager(100, 16);
        for (tokens, blocks) in [(10, 1), (50, 4), (33, 3)] {
            let seq = cache.allocate_slot(Tokens(tokens)).unwrap();
            assert_eq!(cache.block_table(seq).unwrap().len(), Pages(blocks), "{tokens} tokens");
        }
        assert_eq!((cache.active_seq_count(), cache.free_slot_count()), (3, Pages(92)));
        cache.check().unwrap();
    }

    #[test]
    fn freeing_the_middle_sequence_frees_only_its_blocks() {
        let mut cache = manager(100, 16);
        let [first, middle, last] = [10, 50, 33].map(|n| cache.allocate_slot(Tokens(n)).unwrap());
        let kept = [blocks_of(&cache, first), blocks_of(&cache, last)].concat();
        cache.free_slot(middle).unwrap();
        assert_eq!(cache.allocator().allocated_block_ids(), kept.into_iter().collect());
        cache.check().unwrap();
    }

    #[test]
    fn seventy_free_blocks_of_sixteen_hold_1120_tokens() {
        let mut cache = manager(100, 16);
        for tokens in [10 * 16, 15 * 16 - 3, 5 * 16] {
            cache.allocate_slot(Tokens(tokens)).unwrap();
        }
        assert_eq!(cache.free_token_capacity(), Tokens(1120));
        assert_eq!(cache.free_slot_count(), Pages(70));
    }

    #[test]
    fn more_free_tokens_than_can_be_counted_are_as_many_as_can_be_counted() {
        let spec = KvSpec::full_attention(1, 1, 1, KvDtype::F16, PageSize::new(1 << 31).unwrap()).unwrap();
        let cache = CacheManager::new(spec, Pages(4)).unwrap();
        assert_eq!(cache.free_token_capacity(), Tokens(u32::MAX));
    }

    #[test]
    fn the_length_starts_at_zero() {
        let mut cache = manager(100, 16);
        let seq = cache.allocate_slot(Tokens(50)).unwrap();
        assert_eq!(cache.get_seq_len(seq), Ok(Tokens(0)));
    }

    #[test]
    fn the_length_is_what_was_advanced_to() {
        let mut cache = manager(100, 16);
        let seq = cache.allocate_slot(Tokens(50)).unwrap();
        cache.advance(seq, Tokens(40)).unwrap();
        cache.advance(seq, Tokens(2)).unwrap();
        assert_eq!(cache.get_seq_len(seq), Ok(Tokens(42)));
        cache.check().unwrap();
    }

    #[test]
    fn no_token_is_counted_without_a_block() {
        let mut cache = manager(100, 16);
        let seq = cache.allocate_slot(Tokens(50)).unwrap();
        cache.advance(seq, Tokens(64)).unwrap();
        let (position, room) = (Tokens(64), Tokens(64));
        let refused = Err(PositionError::NoBlock { seq, position, room });
        assert_eq!(cache.advance(seq, Tokens(1)), refused);
        assert_eq!(cache.advance(seq, Tokens(u32::MAX)), refused);
        assert_eq!(cache.get_seq_len(seq), Ok(Tokens(64)));
        cache.reserve(seq, Tokens(1)).unwrap();
        cache.advance(seq, Tokens(1)).unwrap();
        assert_eq!(cache.block_table(seq).unwrap().len(), Pages(5));
    }
}

mod exhaustion {
    use super::*;

    #[test]
    fn a_full_pool_refuses_the_next_sequence() {
        let mut cache = manager(10, 16);
        for _ in 0..3 {
            cache.allocate_slot(Tokens(48)).unwrap();
        }
        let refused = AllocError::OutOfPages { need: Pages(2), free: Pages(1) };
        assert_eq!(cache.allocate_slot(Tokens(17)), Err(refused));
    }

    #[test]
    fn a_refused_sequence_leaves_no_trace() {
        let mut cache = manager(10, 16);
        let held = cache.allocate_slot(Tokens(144)).unwrap();
        cache.allocate_slot(Tokens(17)).unwrap_err();
        let refused = SeqId(held.0 + 1);
        assert_eq!(cache.get_seq_len(refused), Err(UnknownSequence(refused)));
        assert_eq!(cache.block_table(refused), Err(UnknownSequence(refused)));
        assert_eq!((cache.active_seq_count(), cache.free_slot_count()), (1, Pages(1)));
        assert_eq!(cache.audit_blocks(), []);
        cache.check().unwrap();
    }

    #[test]
    fn a_sequence_that_cannot_grow_stays_as_it_was() {
        let mut cache = manager(4, 16);
        let seq = cache.allocate_slot(Tokens(48)).unwrap();
        cache.advance(seq, Tokens(48)).unwrap();
        let refused = AllocError::OutOfPages { need: Pages(2), free: Pages(1) };
        assert_eq!(cache.extend_sequence(seq, Tokens(17)), Err(ExtendError::Alloc(refused)));
        assert_eq!(cache.get_seq_len(seq), Ok(Tokens(48)));
        assert_eq!(cache.block_table(seq).unwrap().len(), Pages(3));
        cache.extend_sequence(seq, Tokens(16)).unwrap();
        cache.check().unwrap();
    }

    #[test]
    fn a_sequence_longer_than_can_be_counted_is_refused() {
        let mut cache = manager(4, 16);
        let seq = cache.allocate_slot(Tokens(1)).unwrap();
        cache.advance(seq, Tokens(1)).unwrap();
        let error = cache.extend_sequence(seq, Tokens(u32::MAX)).unwrap_err();
        assert_eq!(error, ExtendError::TooLong { seq, len: Tokens(1), more: Tokens(u32::MAX) });
        let unknown = SeqId(77);
        assert_eq!(
            cache.extend_sequence(unknown, Tokens(1)),
            Err(ExtendError::Unknown(UnknownSequence(unknown)))
        );
    }
}

mod blocks_of_one_token {
    use super::*;

    #[test]
    fn five_tokens_take_five_blocks() {
        let mut cache = manager(10, 1);
        cache.allocate_slot(Tokens(5)).unwrap();
        assert_eq!(cache.allocator().num_allocated(), Pages(5));
    }

    #[test]
    fn every_decoded_token_takes_a_block_of_its_own() {
        let mut cache = manager(10, 1);
        let seq = cache.allocate_slot(Tokens(5)).unwrap();
        cache.advance(seq, Tokens(5)).unwrap();
        for token in 5..10 {
            cache.extend_sequence(seq, Tokens(1)).unwrap();
            assert_eq!(cache.block_table(seq).unwrap().len(), Pages(token + 1));
        }
        let slots = cache.slot_mapping(seq, Tokens(0), Tokens(10)).unwrap();
        let blocks: Vec<SlotId> = blocks_of(&cache, seq).iter().map(|p| SlotId(p.0.into())).collect();
        assert_eq!(slots, blocks);
        assert_eq!(cache.get_stats().internal_fragmentation_percent, 0.0);
        cache.check().unwrap();
    }
}

mod ids {
    use super::*;

    #[test]
    fn a_failed_allocation_uses_up_its_id() {
        let mut cache = manager(10, 16);
        let before = cache.allocate_slot(Tokens(144)).unwrap();
        cache.allocate_slot(Tokens(32)).unwrap_err();
        assert_eq!(cache.allocate_slot(Tokens(16)), Ok(SeqId(before.0 + 2)));
    }

    #[test]
    fn ids_are_counted_up_and_never_given_out_again() {
        let mut cache = manager(10, 16);
        let mut last = None;
        for _ in 0..100 {
            let seq = cache.allocate_slot(Tokens(16)).unwrap();
            assert!(Some(seq) > last, "{seq} after {last:?}");
            last = Some(seq);
            cache.free_slot(seq).unwrap();
        }
    }

    #[test]
    fn ids_are_counted_on_from_the_largest_that_a_caller_chose() {
        let mut cache = manager(10, 16);
        cache.allocate_sequence(SeqId(41), Tokens(1)).unwrap();
        assert_eq!(cache.allocate_slot(Tokens(1)), Ok(SeqId(42)));
        cache.allocate_sequence(SeqId(7), Tokens(1)).unwrap();
        assert_eq!(cache.allocate_slot(Tokens(1)), Ok(SeqId(43)));
        cache.check().unwrap();
    }

    #[test]
    fn an_id_in_use_and_one_too_large_are_refused_without_trace() {
        let mut cache = manager(10, 16);
        let seq = SeqId(3);
        cache.allocate_sequence(seq, Tokens(20)).unwrap();
        let again = cache.allocate_sequence(seq, Tokens(1)).unwrap_err();
        assert_eq!(again, AllocateSequenceError::Exists(seq));
        for id in [1 << 63, u64::MAX] {
            let error = cache.allocate_sequence(SeqId(id), Tokens(1)).unwrap_err();
            assert_eq!(error, AllocateSequenceError::IdTooLarge(SeqId(id)));
        }
        cache.allocate_sequence(SeqId(i64::MAX as u64), Tokens(1)).unwrap();
        assert_eq!(cache.get_seq_len(seq), Ok(Tokens(20)));
        assert_eq!(cache.allocator().num_allocated(), Pages(3));
        cache.check().unwrap();
    }
}

mod leaks {
    use super::*;

    fn with_five_leaked_blocks() -> (CacheManager, Vec<PageId>) {
        let mut cache = manager(100, 16);
        cache.allocate_slot(Tokens(50)).unwrap();
        let mut leaked = cache.allocator().allocate(Pages(5), Some(SeqId(999))).unwrap();
        leaked.sort();
        (cache, leaked)
    }

    #[test]
    fn an_audit_of_sequences_in_order_finds_nothing() {
        let mut cache = manager(100, 16);
        for tokens in [10, 50, 33] {
            cache.allocate_slot(Tokens(tokens)).unwrap();
        }
        assert_eq!(cache.audit_blocks(), []);
        assert_eq!(cache.reclaim_leaked_blocks(), Pages(0));
    }

    #[test]
    fn an_audit_finds_allocated_blocks_that_are_in_no_table() {
        let (cache, leaked) = with_five_leaked_blocks();
        assert_eq!(cache.audit_blocks(), leaked);
    }

    #[test]
    fn reclaiming_leaked_blocks_says_how_many_there_were() {
        let (mut cache, _) = with_five_leaked_blocks();
        assert_eq!(cache.reclaim_leaked_blocks(), Pages(5));
    }

    #[test]
    fn reclaimed_blocks_are_free() {
        let (mut cache, _) = with_five_leaked_blocks();
        let before = cache.allocator().num_free();
        cache.reclaim_leaked_blocks();
        assert_eq!(cache.allocator().num_free(), before + Pages(5));
    }

    #[test]
    fn an_audit_after_reclaiming_finds_nothing_and_sequences_keep_their_blocks() {
        let (mut cache, _) = with_five_leaked_blocks();
        cache.reclaim_leaked_blocks();
        assert_eq!(cache.audit_blocks(), []);
        assert_eq!(cache.block_table(SeqId(0)).unwrap().len(), Pages(4));
        cache.check().unwrap();
    }

    #[test]
    fn a_sequence_whose_block_was_freed_by_id_ends_with_an_error_and_a_reclaim() {
        let mut cache = manager(10, 16);
        let seq = cache.allocate_slot(Tokens(48)).unwrap();
        let stolen = blocks_of(&cache, seq)[1];
        cache.allocator().free(&[stolen]).unwrap();
        assert!(cache.check().is_err());
        let error = FreeError::NotAllocated { page: stolen };
        assert_eq!(cache.free_sequence(seq), Err(FreeSequenceError::Blocks { seq, error }));
        assert_eq!(cache.reclaim_leaked_blocks(), Pages(2));
        assert_eq!(cache.free_slot_count(), Pages(10));
        cache.check().unwrap();
    }
}

mod slot_mapping {
    use super::*;

    #[test]
    fn a_slot_is_the_physical_block_times_the_block_size_plus_the_offset() {
        let mut cache = manager(10, 16);
        let other = cache.allocate_slot(Tokens(16)).unwrap();
        let seq = cache.allocate_slot(Tokens(16)).unwrap();
        cache.free_slot(other).unwrap();
        cache.extend_sequence(seq, Tokens(45)).unwrap();
        let blocks = blocks_of(&cache, seq);
        assert!(!blocks.is_sorted(), "{blocks:?} should be out of order");
        let slots = cache.slot_mapping(seq, Tokens(5), Tokens(40)).unwrap();
        for (position, slot) in (5..45).zip(slots) {
            let block = u64::from(blocks[position / 16].0);
            assert_eq!(slot, SlotId(block * 16 + position as u64 % 16), "position {position}");
        }
    }

    #[test]
    fn a_position_without_a_block_is_refused_and_named() {
        let mut cache = manager(10, 16);
        let seq = cache.allocate_slot(Tokens(20)).unwrap();
        assert_eq!(cache.slot_mapping(seq, Tokens(20), Tokens(12)).unwrap().len(), 12);
        let error = cache.slot_mapping(seq, Tokens(20), Tokens(13)).unwrap_err();
        assert_eq!(error, PositionError::NoBlock { seq, position: Tokens(32), room: Tokens(32) });
        assert_eq!(error.to_string(), "position 32 of sequence 0 has no block: its blocks hold 32 tokens");
        for (start, n) in [(32, 1), (u32::MAX, 1), (1, u32::MAX)] {
            assert!(cache.slot_mapping(seq, Tokens(start), Tokens(n)).is_err(), "{start}, {n}");
        }
        assert_eq!(cache.slot_mapping(seq, Tokens(99), Tokens(0)), Ok(vec![]));
        let unknown = SeqId(9);
        assert_eq!(
            cache.slot_mapping(unknown, Tokens(0), Tokens(1)),
            Err(PositionError::Unknown(UnknownSequence(unknown)))
        );
    }
}

mod block_table {
    use super::*;

    #[test]
    fn blocks_are_appended_looked_up_replaced_and_listed() {
        let mut table = BlockTable::new();
        assert!(table.is_empty());
        for page in [7, 23, 15] {
            table.append(PageId(page));
        }
        assert_eq!(table.len(), Pages(3));
        assert_eq!((table.get(Pages(1)), table.get(Pages(3))), (Some(PageId(23)), None));
        assert_eq!(table.set(Pages(2), PageId(4)), Ok(PageId(15)));
        assert!(table.iter().eq([7, 23, 4].map(PageId)));
    }

    #[test]
    fn a_table_has_no_holes() {
        let mut table = BlockTable::from_iter([PageId(7)]);
        assert_eq!(table.set(Pages(1), PageId(8)), Err(NoSuchBlock { index: Pages(1), len: Pages(1) }));
        assert_eq!(table.as_slice(), [PageId(7)]);
    }

    #[test]
    fn token_thirty_lies_in_slot_fourteen_of_the_second_block() {
        let table = BlockTable::from_iter([7, 23, 15].map(PageId));
        let size = PageSize::DEFAULT;
        assert_eq!(table.slot(Tokens(30), size), Some(SlotId(23 * 16 + 14)));
        assert_eq!(table.slot(Tokens(47), size), Some(SlotId(15 * 16 + 15)));
        assert_eq!(table.slot(Tokens(48), size), None);
    }
}

mod construction {
    use super::*;

    #[test]
    fn a_budget_in_bytes_becomes_the_whole_blocks_that_fit_it() {
        let page = spec(16).page_bytes();
        let cache = CacheManager::with_budget(spec(16), Bytes(10 * page.0 + page.0 / 2)).unwrap();
        let stats = cache.get_stats();
        assert_eq!((stats.total_blocks, stats.free_blocks), (Pages(10), Pages(10)));
        assert_eq!(stats.bytes_free, Bytes(10 * page.0));
    }

    #[test]
    fn pools_that_cannot_work_are_refused() {
        let page_bytes = spec(16).page_bytes();
        let too_small = Bytes(page_bytes.0 - 1);
        let none = ManagerError::NoPages { page_bytes };
        assert_eq!(CacheManager::with_budget(spec(16), too_small).unwrap_err(), none);
        assert_eq!(CacheManager::new(spec(16), Pages(0)).unwrap_err(), none);
        let total = Pages(u32::MAX);
        assert_eq!(CacheManager::new(spec(16), total).unwrap_err(), ManagerError::TooManyPages { total });
        let windows = [None, Some(Tokens(512))];
        let gemma = KvSpec::new(&windows, 1, 256, KvDtype::Bf16, PageSize::DEFAULT).unwrap();
        assert_eq!(CacheManager::new(gemma, Pages(8)).unwrap_err(), ManagerError::LayerGroups { groups: 2 });
    }

    struct Count(Arc<AtomicUsize>);

    impl Scrub for Count {
        fn zero(&self, pages: &[PageId]) {
            self.0.fetch_add(pages.len(), Ordering::Relaxed);
        }
    }

    #[test]
    fn a_sequence_is_zeroed_when_it_is_freed_where_the_allocator_does_that() {
        let zeroed = Arc::new(AtomicUsize::new(0));
        let blocks = BlockAllocator::with_scrub(Pages(10), Box::new(Count(Arc::clone(&zeroed))));
        let mut cache = CacheManager::over(spec(16), blocks).unwrap();
        let seq = cache.allocate_slot(Tokens(50)).unwrap();
        cache.free_slot(seq).unwrap();
        assert_eq!(zeroed.load(Ordering::Relaxed), 4);
    }
}

mod statistics {
    use super::*;

    #[test]
    fn bytes_used_free_and_at_the_peak_are_blocks_times_their_size() {
        let mut cache = manager(10, 16);
        let page = cache.spec().page_bytes().0;
        let seq = cache.allocate_slot(Tokens(7 * 16)).unwrap();
        cache.free_slot(seq).unwrap();
        cache.allocate_slot(Tokens(3 * 16)).unwrap();
        let stats = cache.get_stats();
        assert_eq!((stats.bytes_used, stats.bytes_free), (Bytes(3 * page), Bytes(7 * page)));
        assert_eq!((stats.peak_blocks, stats.bytes_peak), (Pages(7), Bytes(7 * page)));
        assert!((stats.utilization_percent() - 30.0).abs() < 1e-12);
    }

    #[test]
    fn internal_fragmentation_is_the_percentage_of_slots_without_a_token() {
        let mut cache = manager(10, 16);
        assert_eq!(cache.get_stats().internal_fragmentation_percent, 0.0);
        let first = cache.allocate_slot(Tokens(32)).unwrap();
        assert_eq!(cache.get_stats().internal_fragmentation_percent, 100.0);
        cache.advance(first, Tokens(20)).unwrap();
        assert_eq!(cache.get_stats().internal_fragmentation_percent, 37.5);
        cache.allocate_sequence(SeqId(7), Tokens(32)).unwrap();
        assert_eq!(cache.get_stats().internal_fragmentation_percent, 18.75);
    }
}
