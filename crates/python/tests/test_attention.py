"""Attention over pages against attention written down."""

import sys
import threading
import time

import numpy as np
import pytest

from octavo.attention import paged_attention
from octavo.kv_cache import KVCacheManager, PrefixCache


def reference(query, keys, values, scale, window):
    """One sequence: queries `[n, heads, dim]` are the last of `[len, kv_heads, dim]`."""
    n, heads, _ = query.shape
    length, kv_heads, _ = keys.shape
    out = np.zeros_like(query)
    for i in range(n):
        end = length - n + i + 1
        start = 0 if window is None else max(0, end - window)
        for head in range(heads):
            k, v = (rows[start:end, head * kv_heads // heads] for rows in (keys, values))
            scores = k @ query[i, head] * scale
            weights = np.exp(scores - scores.max())
            out[i, head] = weights @ v / weights.sum()
    return out


def case(seed, blocks=12, size=16, kv_heads=2, dim=8, heads=4):
    draw = np.random.default_rng(seed)
    cache = draw.standard_normal((blocks, 2, size, kv_heads, dim), dtype=np.float32)
    contexts, lens = [20, 5, 33, 16], [1, 5, 7, 1]
    order, tables = draw.permutation(blocks).tolist(), []
    for context in contexts:
        need = -(-context // size)
        tables.append([order.pop() for _ in range(need)])
    padded = [table + [-1] * (9 - len(table)) for table in tables]
    query = draw.standard_normal((sum(lens), heads, dim), dtype=np.float32)
    return cache, query, tables, padded, contexts, lens


def gathered(cache, table, context):
    return [np.concatenate([cache[block, half] for block in table])[:context] for half in (0, 1)]


@pytest.mark.parametrize("size", [16, 8, 5, 32])
@pytest.mark.parametrize("window", [None, 6])
def test_ragged_queries_see_their_own_sequence(size, window):
    cache, query, tables, padded, contexts, lens = case(1, blocks=20, size=size)
    out = paged_attention(query, cache, padded, contexts, query_lens=lens, window=window, scale=0.3)
    at = 0
    for table, context, n in zip(tables, contexts, lens):
        keys, values = gathered(cache, table, context)
        want = reference(query[at : at + n], keys, values, 0.3, window)
        assert np.allclose(out[at : at + n], want, atol=1e-5)
        at += n


def test_the_usual_scale_and_one_query_each_are_the_defaults():
    cache, query, tables, padded, contexts, _ = case(2)
    out = paged_attention(query[:4], cache, padded, contexts)
    for i, (table, context) in enumerate(zip(tables, contexts)):
        keys, values = gathered(cache, table, context)
        assert np.allclose(out[i : i + 1], reference(query[i : i + 1], keys, values, 8**-0.5, None), atol=1e-5)


def test_half_precision_and_views_are_read():
    cache, query, tables, padded, contexts, _ = case(3)
    half = cache.astype(np.float16)
    a = paged_attention(query[:4], half, padded, contexts)
    b = paged_attention(query[:4], half.astype(np.float32), padded, contexts)
    c = paged_attention(query[:4], np.asfortranarray(half), padded, contexts)
    assert np.allclose(a, b, atol=1e-5) and (a == c).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "fp8", "int8"])
@pytest.mark.parametrize("kind", [KVCacheManager, PrefixCache])
def test_a_cache_is_read_in_place_whatever_its_precision(small, dtype, kind):
    cache = kind(small(dtype=dtype, head_dim=8))
    draw = np.random.default_rng(4)
    keys, values = draw.standard_normal((2, 20, 2, 8), dtype=np.float32)
    if kind is KVCacheManager:
        seq = 7
        cache.allocate_sequence(seq, 20)
        cache.write(1, cache.get_slot_mapping(seq, 0, 20), keys, values)
    else:
        seq, _ = cache.admit(range(20))
        cache.write(1, cache.schedule(seq).slot_mapping, keys, values)
        cache.complete()
    query = draw.standard_normal((1, 6, 8), dtype=np.float32)
    out = paged_attention(query, cache, cache.block_tables([seq]), [20], layer=1)
    stored = cache.read(seq, 1)
    tolerance = 2e-2 if dtype in ("fp8", "int8") else 1e-5
    assert np.allclose(out, reference(query, *stored, 8**-0.5, None), atol=tolerance)


WRONG = [
    (TypeError, "query has dtype", dict(query=np.ones((4, 4, 8), dtype=np.int32))),
    (ValueError, "3 axes", dict(query=np.ones((4, 32), dtype=np.float32))),
    (ValueError, "numbers, the cache's have 8", dict(query=np.ones((4, 4, 7), dtype=np.float32))),
    (ValueError, "3 query heads", dict(query=np.ones((4, 3, 8), dtype=np.float32))),
    (TypeError, "block_tables has dtype", dict(block_tables=np.zeros((4, 9)))),
    (ValueError, "2 axes", dict(block_tables=[0, 1, 2, 3])),
    (IndexError, "of 12", dict(block_tables=[[0, 99, 2]] * 4)),
    (IndexError, "of 12", dict(block_tables=[[0, -1, 2]] * 4)),
    (ValueError, "in 2 blocks, the table has 1", dict(block_tables=[[0]] * 4)),
    (ValueError, "4 block tables and 3", dict(context_lens=[1, 1, 1])),
    (ValueError, "must be between 0", dict(context_lens=[-1, 1, 1, 1])),
    (ValueError, "the context counts them too", dict(query_lens=[1, 9, 1, 1], context_lens=[20, 5, 33, 16])),
    (ValueError, "add up to 5", dict(query_lens=[2, 1, 1, 1])),
    (ValueError, "window", dict(window=0)),
    (IndexError, "layer", dict(layer=1)),
    (TypeError, "kv_cache has dtype", dict(kv_cache=np.zeros((12, 2, 16, 2, 8), dtype=np.int8))),
    (ValueError, "num_blocks, 2", dict(kv_cache=np.zeros((12, 16, 2, 8), dtype=np.float32))),
    (ValueError, "num_blocks, 2", dict(kv_cache=np.zeros((12, 2, 16, 2, 0), dtype=np.float32))),
]


@pytest.mark.parametrize("kind, words, change", WRONG, ids=[words for _, words, _ in WRONG])
def test_wrong_shapes_and_dtypes_are_refused(kind, words, change):
    cache, query, _, padded, contexts, _ = case(5)
    arguments = dict(query=query[:4], kv_cache=cache, block_tables=padded, context_lens=contexts)
    with pytest.raises(kind, match=words):
        paged_attention(**{**arguments, **change})


@pytest.mark.parametrize("block", [2**32 + 1, -(2**32), 2**31, -1, 16])
def test_what_is_no_block_is_refused_however_large(small, block):
    cache = KVCacheManager(small())
    query = np.ones((1, 2, 4), dtype=np.float32)
    with pytest.raises(IndexError):
        paged_attention(query, cache, [[block]], [3])
    paged_attention(query, cache, [[0, block]], [3])


def test_other_threads_run_while_attention_is_computed():
    cache = np.ones((64, 2, 16, 2, 64), dtype=np.float32)
    query = np.ones((512, 16, 64), dtype=np.float32)
    over, turns = threading.Event(), 0

    def work():
        for _ in range(10):
            paged_attention(query, cache, [list(range(64))], [1024], query_lens=[512])
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
    assert turns > 100


def test_nobody_asks_nothing():
    cache = np.zeros((4, 2, 16, 2, 8), dtype=np.float32)
    # Lists and arrays of nothing are floats to NumPy.
    out = paged_attention(np.zeros((0, 4, 8), dtype=np.float32), cache, np.empty((0, 3)), [], query_lens=[])
    assert out.shape == (0, 4, 8)
