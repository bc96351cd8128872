"""Torch sees the same memory."""

import gc

import numpy as np
import pytest
import torch

from octavo.attention import paged_attention
from octavo.kv_cache import BlockTable, CacheConfig, KVCacheManager, PrefixCache


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_torch_dtype_gives_torch_tensors_of_the_caches_memory(small, dtype):
    cache = KVCacheManager(small(dtype=dtype))
    assert isinstance(cache.kv_cache, torch.Tensor) and cache.kv_cache.dtype == dtype
    assert cache.kv_cache.shape == (16, 2, 16, 2, 4) and cache.layers.shape == (2, 16, 2, 16, 2, 4)
    table = cache.allocate_sequence(0, 3)
    cache.layers[1, table[0], 0, 2] = 1.5
    keys, _ = cache.read(0, layer=1)
    assert isinstance(keys, torch.Tensor) and (keys[2] == 1.5).all() and keys.sum() == 12
    rows = torch.full((3, 2, 4), -2.0, dtype=dtype)
    cache.write(0, cache.get_slot_mapping(0, 0, 3), rows, rows)
    assert (cache.kv_cache[table[0], :, :3] == -2).all()


def test_quantised_bytes_are_torch_bytes(small):
    cache = KVCacheManager(small(dtype=torch.uint8))
    assert cache.kv_cache.dtype == torch.uint8


def test_names_give_numpy_even_where_torch_is(small):
    assert isinstance(KVCacheManager(small(dtype="float16")).kv_cache, np.ndarray)
    assert isinstance(KVCacheManager(small(dtype=np.float32)).kv_cache, np.ndarray)


def test_a_tensor_keeps_the_memory_alive(small):
    cache = KVCacheManager(small(num_blocks=4096, dtype=torch.float32))
    tensor = torch.from_dlpack(cache.tensor(1))
    tensor[-1] = 5
    del cache
    gc.collect()
    assert (tensor[-1] == 5).all()


def test_slots_and_tables_are_tensors(small):
    cache = KVCacheManager(small(dtype=torch.float16))
    table = cache.allocate_sequence(0, 20)
    assert cache.get_slot_mapping(0, 0, 20).dtype == torch.int32
    slots = cache.get_slot_mappings(torch.tensor([0]), torch.tensor([4]), torch.tensor([2]))
    assert slots.tolist() == [16 * table[0] + 4, 16 * table[0] + 5]
    assert torch.equal(table.as_tensor(device="cpu"), cache.block_tables([0])[0])
    assert BlockTable().as_tensor("cpu").dtype == torch.int32


def test_a_prefix_cache_speaks_torch_too(small):
    cache = PrefixCache(small(dtype=torch.float16))
    tokens = torch.arange(32)
    rows = torch.randn(2, 32, 2, 4)
    assert cache.insert(tokens, rows, rows) == 32
    seq, hit = cache.admit(torch.arange(33))
    assert hit.tokens == 32
    assert torch.allclose(cache.read(seq, 1)[0], rows[1], atol=1e-2)


def test_attention_reads_tensors():
    cache = torch.randn(4, 2, 16, 1, 8)
    query = torch.randn(1, 2, 8)
    out = paged_attention(query, cache, torch.tensor([[2, 1]]), torch.tensor([20]))
    keys, values = (torch.cat([cache[2, half], cache[1, half]])[:20, 0] for half in (0, 1))
    want = torch.softmax(query[0] @ keys.T / 8**0.5, -1) @ values
    assert np.allclose(out[0], want.numpy(), atol=1e-5)


@pytest.mark.parametrize("wrong", [torch.int64, torch.complex64, torch.float64])
def test_a_torch_dtype_that_no_cache_has_is_refused(wrong):
    with pytest.raises(TypeError, match="cannot hold"):
        CacheConfig(4, dtype=wrong)
