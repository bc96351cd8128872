"""The cache's bytes, as others see them."""

import ctypes
import gc

import numpy as np
import pytest

from octavo.kv_cache import KVCacheManager, PrefixCache

# DLPack's own numbers: (code, bits).
PRECISIONS = {
    "float32": (2, 32),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "float8_e4m3fn": (10, 8),
    "int8": (1, 8),
}


def test_arrays_have_the_documents_shape_and_the_layered_one(small):
    cache = KVCacheManager(small(num_layers=3))
    assert cache.kv_cache.shape == (16, 2, 16, 2, 4)
    assert cache.layers.shape == (3, 16, 2, 16, 2, 4)
    assert np.asarray(cache.tensor(2)).shape == cache.kv_cache.shape


def test_what_is_written_to_an_array_is_in_the_cache(small):
    cache = KVCacheManager(small())
    table = cache.allocate_sequence(1, 20)
    cache.layers[1, table[1], 1, 3, 0] = [1, 2, 3, 4]
    _, values = cache.read(1, layer=1)
    assert values[19, 0].tolist() == [1, 2, 3, 4]
    assert values.sum() == 10
    cache.kv_cache[table[0], 0, 5] = 7
    assert cache.layers[0, table[0], 0, 5].tolist() == [[7] * 4] * 2


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_written_to_the_cache_is_in_the_array(small, dtype):
    cache = KVCacheManager(small(dtype=dtype))
    table = cache.allocate_sequence(1, 20)
    rows = np.arange(20 * 2 * 4, dtype=np.float32).reshape(20, 2, 4)
    cache.write(1, cache.get_slot_mapping(1, 0, 20), keys=rows, values=-rows)
    stored = np.concatenate([cache.layers[1, block] for block in table], axis=1)[:, :20]
    assert (stored[0] == rows).all() and (stored[1] == -rows).all()
    assert (cache.layers[0] == 0).all()


@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 1e-2), ("fp8", 7e-2), ("int8", 2e-2)])
def test_every_precision_is_written_and_read(small, dtype, tolerance):
    cache = KVCacheManager(small(dtype=dtype))
    cache.allocate_sequence(1, 20)
    rows = np.random.default_rng(1).standard_normal((20, 2, 4), dtype=np.float32)
    cache.write(1, cache.get_slot_mapping(1, 0, 20), keys=rows, values=2 * rows)
    keys, values = cache.read(1, layer=1)
    assert np.allclose(keys, rows, atol=3 * tolerance) and np.allclose(values, 2 * rows, atol=6 * tolerance)
    assert not (keys == rows).all()


def test_an_array_keeps_the_memory_alive(small):
    config = small(num_blocks=4096)
    for _ in range(20):
        cache = KVCacheManager(config)
        layer, part = np.asarray(cache.tensor(1)), cache.kv_cache[7]
        layer[-1] = 5
        del cache
        gc.collect()
        assert (layer[-1] == 5).all() and (part == 0).all()


def test_numpy_reads_dlpack_without_a_copy(small):
    cache = KVCacheManager(small())
    array = np.from_dlpack(cache.tensor())
    assert array.shape == cache.layers.shape
    cache.layers[1, 3, 1, 2] = 9
    assert (array[1, 3, 1, 2] == 9).all()
    assert np.shares_memory(array, cache.layers)


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


def opened(capsule, name, kind):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.cast(get(capsule, name), ctypes.POINTER(kind)).contents


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("versioned", [False, True])
def test_every_precision_is_in_dlpack_as_what_it_is(small, dtype, versioned):
    cache = KVCacheManager(small(dtype=dtype, num_layers=3))
    tensor = cache.tensor()
    if versioned:
        capsule = tensor.__dlpack__(max_version=(1, 0))
        whole = opened(capsule, b"dltensor_versioned", Versioned)
        assert (whole.major, whole.flags) == (1, 0)
        seen = whole.tensor
    else:
        capsule = tensor.__dlpack__()
        seen = opened(capsule, b"dltensor", Tensor)
    assert (seen.code, seen.bits, seen.lanes) == (*PRECISIONS[dtype], 1)
    assert (seen.device_type, seen.device_id, seen.byte_offset) == (1, 0, 0)
    assert tuple(seen.shape[: seen.ndim]) == tensor.shape == (3, 16, 2, 16, 2, 4)
    size = seen.bits // 8
    assert tuple(size * stride for stride in seen.strides[: seen.ndim]) == tensor.strides
    # The last element of the last block is the last of the page, but for parameters.
    reach = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.strides, strict=True)) + size
    page = tensor.strides[1]
    parameters = page - size * 3 * 2 * 16 * 2 * 4
    assert reach == 16 * page - parameters and parameters in (0, 4 * 3 * 2 * 16 * 2)


def test_a_capsule_that_nobody_takes_gives_its_memory_back(small):
    before = resident()
    for _ in range(50):
        cache = KVCacheManager(small(num_blocks=2048))
        cache.layers[:] = 1
        cache.tensor().__dlpack__()
        cache.tensor().__dlpack__(max_version=(1, 0))
        np.from_dlpack(cache.tensor())
    del cache
    gc.collect()
    assert resident() - before < 20e6  # 50 of them are 840 MB


def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_precisions_without_a_numpy_dtype_say_what_to_do(small):
    for dtype in ("bfloat16", "fp8"):
        cache = KVCacheManager(small(dtype=dtype))
        assert cache.kv_cache.shape == (16, 2, 16, 2, 4)
        with pytest.raises(TypeError, match="from_dlpack"):
            np.asarray(cache.kv_cache.__array_interface__)
        assert np.asarray(cache.kv_cache.bytes()).dtype == np.uint8


def test_bytes_of_bfloat16_are_its_bits(small):
    cache = KVCacheManager(small(dtype="bfloat16"))
    table = cache.allocate_sequence(0, 1)
    ones = np.ones((1, 2, 4), dtype=np.float32)
    cache.write(0, [16 * table[0]], ones, 2 * ones)
    raw = np.asarray(cache.kv_cache.bytes())[table[0], :, 0, 1]
    assert raw[0].tolist() == [0x80, 0x3F] * 4 and raw[1].tolist() == [0x00, 0x40] * 4


def test_dlpack_refuses_what_it_cannot_do(small):
    tensor = KVCacheManager(small()).tensor()
    assert tensor.__dlpack_device__() == (1, 0)
    for wrong in (dict(stream=1), dict(dl_device=(2, 0)), dict(copy=True)):
        with pytest.raises(BufferError):
            tensor.__dlpack__(**wrong)
    tensor.__dlpack__(dl_device=(1, 0), copy=False)


def test_both_caches_share_their_memory(small):
    cache = PrefixCache(small())
    seq, _ = cache.admit(range(20))
    step = cache.schedule(seq)
    cache.layers[1, step.slot_mapping // 16, 0, step.slot_mapping % 16] = 3
    cache.complete()
    assert (cache.read(seq, 1)[0] == 3).all()
