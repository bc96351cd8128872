//! The published test file of the block manager this interface follows, case by case.

mod plain;

use octavo_kv::BlockAllocator;
use octavo_types::{Bytes, Pages, SeqId, SlotId, Tokens};
use plain::*;

/// The cases of the published Python test file, in its order.
mod published_cases {
    use super::*;

    #[test]
    fn one_block_is_allocated_and_freed() {
        let blocks = BlockAllocator::new(Pages(100));
        let block = blocks.allocate_one(None).unwrap();
        assert!(block.0 < 100);
        assert_eq!((blocks.num_free(), blocks.ref_count(block)), (Pages(99), Ok(1)));
        blocks.free(&[block]).unwrap();
        assert_eq!((blocks.num_free(), blocks.ref_count(block)), (Pages(100), Ok(0)));
    }

    #[test]
    fn a_batch_is_allocated_and_freed_one_by_one() {
        let blocks = BlockAllocator::new(Pages(100));
        let ten = blocks.allocate(Pages(10), None).unwrap();
        assert_eq!((ten.len(), blocks.num_free()), (10, Pages(90)));
        for block in ten {
            blocks.free(&[block]).unwrap();
        }
        assert_eq!(blocks.num_free(), Pages(100));
    }

    #[test]
    fn a_block_shared_twice_takes_three_frees() {
        let blocks = BlockAllocator::new(Pages(10));
        let block = blocks.allocate_one(None).unwrap();
        assert_eq!(blocks.ref_count(block), Ok(1));
        blocks.add_ref(block).unwrap();
        blocks.add_ref(block).unwrap();
        for refs in [3, 2, 1] {
            assert_eq!(blocks.ref_count(block), Ok(refs));
            blocks.free(&[block]).unwrap();
        }
        assert_eq!((blocks.ref_count(block), blocks.num_free()), (Ok(0), Pages(10)));
    }

    #[test]
    fn an_empty_free_list_is_an_error() {
        let blocks = BlockAllocator::new(Pages(5));
        blocks.allocate(Pages(5), None).unwrap();
        assert!(blocks.allocate_one(None).is_err());
    }

    #[test]
    fn fifty_tokens_get_a_table_of_four_blocks() {
        let mut cache = manager(100, 16);
        let table = cache.allocate_sequence(SeqId(0), Tokens(50)).unwrap();
        assert_eq!(table.len(), Pages(4));
        assert_eq!(cache.allocator().num_free(), Pages(96));
        assert_eq!(cache.get_seq_len(SeqId(0)), Ok(Tokens(50)));
    }

    #[test]
    fn a_sequence_gets_another_block_when_its_last_is_full() {
        let mut cache = manager(100, 16);
        let seq = SeqId(0);
        assert_eq!(cache.allocate_sequence(seq, Tokens(16)).unwrap().len(), Pages(1));
        cache.extend_sequence(seq, Tokens(10)).unwrap();
        assert_eq!(cache.block_table(seq).unwrap().len(), Pages(2));
        cache.extend_sequence(seq, Tokens(20)).unwrap();
        assert_eq!(cache.block_table(seq).unwrap().len(), Pages(3));
        assert_eq!(cache.get_seq_len(seq), Ok(Tokens(46)));
        cache.extend_sequence(seq, Tokens(2)).unwrap();
        assert_eq!(cache.block_table(seq).unwrap().len(), Pages(3));
    }

    #[test]
    fn slots_of_the_first_block_follow_each_other() {
        let mut cache = manager(100, 16);
        let seq = SeqId(0);
        let block = cache.allocate_sequence(seq, Tokens(32)).unwrap().get(Pages(0)).unwrap();
        let slots = cache.slot_mapping(seq, Tokens(0), Tokens(16)).unwrap();
        let expected: Vec<SlotId> = (0..16).map(|at| SlotId(u64::from(block.0) * 16 + at)).collect();
        assert_eq!(slots, expected);
    }

    #[test]
    fn one_of_two_sequences_is_freed() {
        let mut cache = manager(100, 16);
        cache.allocate_sequence(SeqId(0), Tokens(64)).unwrap();
        cache.allocate_sequence(SeqId(1), Tokens(64)).unwrap();
        assert_eq!(cache.allocator().num_free(), Pages(92));
        cache.free_sequence(SeqId(0)).unwrap();
        assert_eq!(cache.allocator().num_free(), Pages(96));
        assert!(cache.block_table(SeqId(0)).is_err());
    }

    #[test]
    fn the_cache_has_the_shape_of_its_configuration() {
        let cache = manager(100, 16);
        assert_eq!(cache.spec().plane_shape(), [8, 16, 128]);
        assert_eq!(cache.spec().page_bytes(), Bytes(32 * 2 * 8 * 16 * 128 * 2));
        assert_eq!(cache.get_stats().total_blocks, Pages(100));
    }

    #[test]
    fn statistics_have_the_published_keys() {
        let mut cache = manager(100, 16);
        cache.allocate_sequence(SeqId(0), Tokens(48)).unwrap();
        let stats = cache.get_stats();
        assert_eq!((stats.total_blocks, stats.used_blocks), (Pages(100), Pages(3)));
        assert_eq!((stats.free_blocks, stats.num_sequences), (Pages(97), 1));
        assert!((stats.utilization - 0.03).abs() < 1e-12);
        assert!((stats.total_memory_gb - 100.0 * 2.0 / 1024.0).abs() < 1e-12);
    }
}
