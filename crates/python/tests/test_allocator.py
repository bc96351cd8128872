"""Blocks by id."""

import threading

import pytest

from octavo.kv_cache import BlockAllocator, BlockTable


def test_pages_are_allocated_freed_and_counted_by_number():
    blocks = BlockAllocator(10)
    taken = blocks.allocate(3)
    assert len(set(taken)) == 3 and blocks.num_free == 7
    assert blocks.get_stats() == {
        "total_blocks": 10,
        "free_blocks": 7,
        "used_blocks": 3,
        "peak_blocks": 3,
        "utilization": pytest.approx(0.3),
    }
    blocks.free(taken)
    assert blocks.get_stats()["used_blocks"] == 0 and blocks.get_stats()["peak_blocks"] == 3


def test_a_list_is_freed_whole_or_not_at_all():
    blocks = BlockAllocator(10)
    taken = blocks.allocate(3)
    with pytest.raises(RuntimeError, match="Block 9 not allocated"):
        blocks.free([*taken, 9])
    assert blocks.num_free == 7
    with pytest.raises(RuntimeError, match="not allocated"):
        blocks.free([taken[0], taken[0]])
    assert blocks.num_free == 7


def test_an_allocation_that_fails_takes_nothing():
    blocks = BlockAllocator(5)
    with pytest.raises(RuntimeError, match="Need 6 blocks, only 5 available"):
        blocks.allocate(6)
    assert blocks.num_free == 5


def test_free_blocks_and_references_are_listed():
    blocks = BlockAllocator(4)
    one = blocks.allocate()
    blocks.add_ref(one)
    assert blocks.ref_counts == {one: 2}
    assert sorted([*blocks.free_blocks, one]) == [0, 1, 2, 3]


@pytest.mark.parametrize("wrong", [-1, 2**31, 2**40])
def test_a_pool_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match="num_blocks"):
        BlockAllocator(wrong)


@pytest.mark.parametrize("wrong", ["3", 1.5, None, [1.5]])
def test_what_is_no_block_is_a_type_error(wrong):
    with pytest.raises(TypeError):
        BlockAllocator(4).free(wrong)


def test_threads_share_an_allocator():
    blocks = BlockAllocator(64)

    def work():
        for n in range(2000):
            taken = blocks.allocate_n(n % 5)
            if taken:
                blocks.add_ref(taken[0])
                blocks.free(taken[0])
            blocks.free(taken)

    threads = [threading.Thread(target=work) for _ in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert blocks.num_free == 64 and blocks.ref_counts == {}
    assert sorted(blocks.allocate(64)) == list(range(64))


def test_a_table_of_ones_own_is_filled_by_hand():
    table = BlockTable()
    table.append(7)
    table.append(3)
    assert (len(table), table[0], table[-1], list(table)) == (2, 7, 3, [7, 3])
    with pytest.raises(IndexError):
        table[2]
    with pytest.raises(ValueError):
        table.append(-1)


def test_the_documents_classes_can_be_derived_from():
    class Counting(BlockAllocator):
        calls = 0

        def allocate(self, *args):
            self.calls += 1
            return super().allocate(*args)

    blocks = Counting(4)
    blocks.free(blocks.allocate())
    assert blocks.calls == 1 and blocks.num_free == 4
