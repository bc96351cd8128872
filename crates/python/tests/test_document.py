"""The classes of the document against the document's own."""

import hashlib
import pathlib
import random
import sys

import pytest
import torch

import octavo.kv_cache as ours

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "benches"))
import pure_python_classes as document  # noqa: E402


def test_the_documents_tests_are_unchanged_but_for_their_import():
    text = pathlib.Path(__file__).with_name("test_kv_cache.py").read_text()
    original = text.replace("from octavo.kv_cache import", "from mini_vllm.kv_cache import")
    digest = hashlib.sha256(original.encode()).hexdigest()
    assert digest == "24edac8572914a489f9696880eb232e476351d674b6cd464ef9e4d7f2d1fad88"


def test_defaults_are_those_of_the_document():
    mine, theirs = ours.CacheConfig(num_blocks=7), document.CacheConfig(num_blocks=7)
    for name in ("num_blocks", "block_size", "num_layers", "num_kv_heads", "head_dim", "dtype", "device"):
        assert getattr(mine, name) == getattr(theirs, name), name
    for dtype in (torch.float16, torch.float32):
        mine, theirs = ours.CacheConfig(7, dtype=dtype), document.CacheConfig(7, dtype=dtype)
        assert mine.kv_cache_shape == theirs.kv_cache_shape
        assert mine.bytes_per_block == theirs.bytes_per_block
        assert mine.total_memory_gb == theirs.total_memory_gb


def allocators():
    return ours.BlockAllocator(num_blocks=4), document.BlockAllocator(num_blocks=4)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda a: (a.allocate_n(4), a.allocate()),
        lambda a: (a.allocate(), a.allocate_n(4)),
        lambda a: a.free(2),
        lambda a: a.free(99),
        lambda a: a.add_ref(2),
        lambda a: a.add_ref(-1),
    ],
)
def test_errors_of_the_allocator_have_the_documents_type_and_words(misuse):
    said = []
    for allocator in allocators():
        with pytest.raises(RuntimeError) as error:
            misuse(allocator)
        said.append(str(error.value))
    assert said[0] == said[1]


def managers(num_blocks=24, **geometry):
    geometry = dict(num_layers=1, num_kv_heads=1, head_dim=2, dtype=torch.float16, device="cpu") | geometry
    return [lib.KVCacheManager(lib.CacheConfig(num_blocks, **geometry)) for lib in (ours, document)]


@pytest.mark.parametrize(
    "misuse",
    [
        lambda m: m.extend_sequence(5, 1),
        lambda m: m.get_slot_mapping(5, 0, 1),
        lambda m: (m.allocate_sequence(1, 3), m.get_slot_mapping(1, 16, 1)),
        lambda m: m.allocate_sequence(1, 16 * 25),
        lambda m: m.sequence_tables[3],
        lambda m: m.sequence_lengths[3],
        lambda m: m.allocate_sequence(1, 1)[1],
    ],
)
def test_errors_of_the_manager_have_the_documents_type(misuse):
    types = []
    for manager in managers():
        with pytest.raises((RuntimeError, KeyError, IndexError)) as error:
            misuse(manager)
        types.append(error.type)
    assert types[0] is types[1]


def test_freeing_what_is_not_there_is_no_error():
    for manager in managers():
        manager.free_sequence(9)


def attempt(call):
    try:
        return call()
    except (RuntimeError, KeyError, IndexError) as error:
        return type(error)


@pytest.mark.parametrize("seed", range(20))
def test_random_operations_do_what_the_documents_classes_do(seed):
    draw = random.Random(seed)
    mine, theirs = managers()
    for _ in range(300):
        seq, n = draw.randrange(6), draw.randrange(60)
        operation = draw.choice(["allocate", "extend", "extend", "free", "slots", "borrow"])
        results = []
        for manager in (mine, theirs):
            if operation == "allocate" and seq not in manager.sequence_tables:
                results.append(attempt(lambda: len(manager.allocate_sequence(seq, n))))
            elif operation == "extend":
                results.append(attempt(lambda: manager.extend_sequence(seq, n % 20)))
            elif operation == "free":
                results.append(attempt(lambda: manager.free_sequence(seq)))
            elif operation == "slots":
                results.append(attempt(lambda: slots_by_table(manager, seq, n // 2, n % 9)))
            else:
                results.append(attempt(lambda: manager.allocator.free(manager.allocator.allocate())))
        assert results[0:1] == results[1:2], operation
        assert mine.allocator.num_free == theirs.allocator.num_free
        assert dict(mine.sequence_lengths) == theirs.sequence_lengths
        lengths = [{s: len(t) for s, t in m.sequence_tables.items()} for m in (mine, theirs)]
        assert lengths[0] == lengths[1]
        stats, want = mine.get_stats(), theirs.get_stats()
        assert {key: stats[key] for key in want} == pytest.approx(want)
        mine.check()


def slots_by_table(manager, seq, start, n):
    """Slots as (logical block, offset): the numbers of the blocks are each manager's own affair."""
    table = manager.sequence_tables[seq]
    places = {block: index for index, block in enumerate(table.table)}
    slots = manager.get_slot_mapping(seq, start, n)
    assert slots.dtype == torch.int32
    return [(places[slot // 16], slot % 16) for slot in slots.tolist()]
