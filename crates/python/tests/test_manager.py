"""Sequences, tables and slots."""

import sys
import threading
import time

import numpy as np
import pytest

from octavo.kv_cache import KVCacheManager


def test_a_table_is_a_row_of_blocks(small):
    cache = KVCacheManager(small())
    table = cache.allocate_sequence(0, 40)
    assert list(table) == table.table == [table[i] for i in range(3)]
    seen = []
    for block in table:
        cache.extend_sequence(0, 16)
        seen.append(block)
    assert seen == table.table[:3] and len(table) == 6
    cache.free_sequence(0)
    with pytest.raises(RuntimeError, match="freed"):
        list(table)


def test_a_table_follows_its_sequence_and_ends_with_it(small):
    cache = KVCacheManager(small())
    table = cache.allocate_sequence(3, 10)
    cache.extend_sequence(3, 30)
    assert len(table) == 3
    cache.free_sequence(3)
    cache.allocate_sequence(3, 100)
    for use in (len, lambda t: t[0], lambda t: t.table):
        with pytest.raises(RuntimeError, match="sequence 3"):
            use(table)


def test_a_table_of_a_sequence_is_not_changed_by_hand(small):
    cache = KVCacheManager(small())
    table = cache.allocate_sequence(3, 10)
    with pytest.raises(RuntimeError, match="extend_sequence"):
        table.append(5)


def test_a_sequence_that_exists_is_not_begun_again(small):
    cache = KVCacheManager(small())
    cache.allocate_sequence(0, 10)
    with pytest.raises(RuntimeError, match="exists already"):
        cache.allocate_sequence(0, 10)
    assert cache.allocator.num_free == 15


def test_a_batch_of_slots_is_those_of_each(small):
    cache = KVCacheManager(small(num_blocks=64))
    ids = np.array([5, -2, 9])
    cache.allocate_sequences(ids, [40, 1, 17])
    starts, counts = [3, 0, 15], np.array([20, 1, 2], dtype=np.int32)
    whole = cache.get_slot_mappings(ids, starts, counts)
    assert whole.dtype == np.int32
    parts = [cache.get_slot_mapping(int(s), a, int(n)) for s, a, n in zip(ids, starts, counts)]
    assert whole.tolist() == np.concatenate(parts).tolist()
    tables = cache.block_tables(ids)
    assert tables.shape == (3, 3) and tables[1].tolist()[1:] == [-1, -1]
    assert parts[0].tolist() == [int(tables[0][p // 16]) * 16 + p % 16 for p in range(3, 23)]


def test_a_batch_is_allocated_whole_or_not_at_all(small):
    cache = KVCacheManager(small(num_blocks=4))
    with pytest.raises(RuntimeError, match="Need 5 blocks, only 4 available"):
        cache.allocate_sequences([1, 2], [32, 48])
    with pytest.raises(RuntimeError, match="exists already"):
        cache.allocate_sequences([1, 2, 1], [1, 1, 1])
    assert cache.allocator.num_free == 4 and dict(cache.sequence_lengths) == {}
    cache.check()


def test_a_batch_is_extended_whole_or_not_at_all(small):
    cache = KVCacheManager(small(num_blocks=4))
    cache.allocate_sequences([1, 2], [16, 16])
    with pytest.raises(RuntimeError, match="Need 3 blocks, only 2 available"):
        cache.extend_sequences([1, 2, 1], [16, 16, 1])
    with pytest.raises(KeyError):
        cache.extend_sequences([1, 7], [1, 1])
    assert dict(cache.sequence_lengths) == {1: 16, 2: 16}
    cache.extend_sequences([1, 2], [16, 1])
    assert dict(cache.sequence_lengths) == {1: 32, 2: 17}
    assert cache.free_sequences([1, 2, 3]) == 2
    assert cache.allocator.num_free == 4


def test_stats_count_every_layer(small):
    cache = KVCacheManager(small())
    cache.allocate_sequence(0, 8)
    stats = cache.get_stats()
    assert stats["bytes_used"] == 2 * cache.config.bytes_per_block
    assert stats["internal_fragmentation_percent"] == 50.0
    assert stats["total_memory_gb"] == cache.config.total_memory_gb


def test_blocks_that_were_freed_behind_a_sequences_back_are_an_error(small):
    cache = KVCacheManager(small())
    table = cache.allocate_sequence(0, 40)
    cache.allocator.free(table[1])
    with pytest.raises(RuntimeError, match="not all its own"):
        cache.free_sequence(0)


def test_threads_share_a_manager(small):
    cache = KVCacheManager(small(num_blocks=400))
    errors = []

    def work(base):
        try:
            ids = np.arange(base, base + 8)
            for n in range(150):
                cache.allocate_sequences(ids, np.full(8, 17 + n % 30))
                cache.extend_sequences(ids, np.full(8, n % 20))
                slots = cache.get_slot_mappings(ids, np.zeros(8, dtype=np.int64), np.full(8, 17))
                assert len(set(slots.tolist())) == 8 * 17
                cache.free_sequences(ids)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert errors == [] and cache.allocator.num_free == 400
    cache.check()


def test_other_threads_run_while_a_batch_is_worked_on(small):
    cache = KVCacheManager(small(num_blocks=40_000, num_layers=1, num_kv_heads=1, head_dim=1))
    ids, zeros, counts = np.arange(2000), np.zeros(2000, dtype=np.int64), np.full(2000, 300)
    cache.allocate_sequences(ids, counts)
    over, turns = threading.Event(), 0

    def work():
        for _ in range(40):
            cache.get_slot_mappings(ids, zeros, counts)
        over.set()

    sys.setswitchinterval(60)  # Nobody is asked to let go: only who does so by itself lets others run.
    try:
        thread = threading.Thread(target=work)
        thread.start()
        while not over.is_set():
            turns += 1
            time.sleep(0)
        thread.join()
    finally:
        sys.setswitchinterval(0.005)
    assert turns > 40
