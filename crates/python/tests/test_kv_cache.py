"""
Test KV Cache Implementation
"""

import pytest
import torch
from octavo.kv_cache import CacheConfig, BlockAllocator, KVCacheManager


class TestBlockAllocator:
    def test_basic_allocation(self):
        allocator = BlockAllocator(num_blocks=100)

        # Allocate single block
        block = allocator.allocate()
        assert block >= 0 and block < 100
        assert allocator.num_free == 99
        assert allocator.get_ref_count(block) == 1

        # Free block
        allocator.free(block)
        assert allocator.num_free == 100
        assert allocator.get_ref_count(block) == 0

    def test_batch_allocation(self):
        allocator = BlockAllocator(num_blocks=100)

        blocks = allocator.allocate_n(10)
        assert len(blocks) == 10
        assert allocator.num_free == 90

        for block in blocks:
            allocator.free(block)
        assert allocator.num_free == 100

    def test_reference_counting(self):
        allocator = BlockAllocator(num_blocks=10)

        block = allocator.allocate()
        assert allocator.get_ref_count(block) == 1

        # Add references (for sharing)
        allocator.add_ref(block)
        allocator.add_ref(block)
        assert allocator.get_ref_count(block) == 3

        # Free requires 3 calls now
        allocator.free(block)
        assert allocator.get_ref_count(block) == 2
        allocator.free(block)
        assert allocator.get_ref_count(block) == 1
        allocator.free(block)
        assert allocator.get_ref_count(block) == 0
        assert allocator.num_free == 10

    def test_allocation_failure(self):
        allocator = BlockAllocator(num_blocks=5)

        allocator.allocate_n(5)

        with pytest.raises(RuntimeError):
            allocator.allocate()


class TestKVCacheManager:
    @pytest.fixture
    def cache_manager(self):
        config = CacheConfig(
            num_blocks=100,
            block_size=16,
            num_layers=32,
            num_kv_heads=8,
            head_dim=128,
            dtype=torch.float16,
            device="cpu"  # Use CPU for tests
        )
        return KVCacheManager(config)

    def test_allocate_sequence(self, cache_manager):
        table = cache_manager.allocate_sequence(seq_id=0, num_tokens=50)

        # 50 tokens @ 16 per block = 4 blocks
        assert len(table) == 4
        assert cache_manager.allocator.num_free == 96

    def test_extend_sequence(self, cache_manager):
        table = cache_manager.allocate_sequence(seq_id=0, num_tokens=16)
        assert len(table) == 1

        # Extend within same block
        cache_manager.extend_sequence(seq_id=0, additional_tokens=10)
        assert len(cache_manager.sequence_tables[0]) == 2  # Now needs 2 blocks

        # Extend to need third block
        cache_manager.extend_sequence(seq_id=0, additional_tokens=20)
        assert len(cache_manager.sequence_tables[0]) == 3

    def test_slot_mapping(self, cache_manager):
        cache_manager.allocate_sequence(seq_id=0, num_tokens=32)

        # Get slots for first 16 tokens (first block)
        slots = cache_manager.get_slot_mapping(seq_id=0, start_pos=0, num_tokens=16)

        table = cache_manager.sequence_tables[0]
        block0 = table[0]

        # Slots should be block0 * 16 + offset
        for i, slot in enumerate(slots.tolist()):
            assert slot == block0 * 16 + i

    def test_free_sequence(self, cache_manager):
        cache_manager.allocate_sequence(seq_id=0, num_tokens=64)
        cache_manager.allocate_sequence(seq_id=1, num_tokens=64)

        assert cache_manager.allocator.num_free == 92

        cache_manager.free_sequence(seq_id=0)
        assert cache_manager.allocator.num_free == 96
        assert 0 not in cache_manager.sequence_tables

    def test_cache_shape(self, cache_manager):
        expected_shape = (100, 2, 16, 8, 128)
        assert cache_manager.kv_cache.shape == expected_shape

    def test_stats(self, cache_manager):
        cache_manager.allocate_sequence(seq_id=0, num_tokens=48)

        stats = cache_manager.get_stats()
        assert stats["total_blocks"] == 100
        assert stats["used_blocks"] == 3
        assert stats["num_sequences"] == 1


if __name__ == "__main__":
    pytest.main([__file__, "-v"])
