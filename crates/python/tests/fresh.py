"""What works in an environment with nothing but the wheel and NumPy. Run by `cargo xtask test --only wheel`."""

import importlib.metadata
import importlib.util

import numpy as np

import octavo
from octavo.attention import paged_attention
from octavo.kv_cache import BlockTable, CacheConfig, KVCacheManager, PrefixCache

assert importlib.util.find_spec("torch") is None, "this environment has torch"
assert importlib.metadata.version("octavo") == octavo.__version__

with octavo.LLM() as llm:
    answer = llm.chat([{"role": "user", "content": "What does Vec::push do?"}])
    assert "element" in answer.text, answer

# Without torch, precisions have names, and arrays are NumPy's.
config = CacheConfig(num_blocks=8, num_layers=2, num_kv_heads=2, head_dim=16, device="cpu")
assert config.dtype == "float16"
cache = KVCacheManager(config)
table = cache.allocate_sequence(0, 20)
assert isinstance(cache.kv_cache, np.ndarray) and cache.kv_cache.dtype == np.float16
assert isinstance(cache.get_slot_mapping(0, 0, 20), np.ndarray)
assert table.as_tensor(device="cpu").tolist() == table.table
try:
    BlockTable().as_tensor()
except RuntimeError as error:
    assert "no torch" in str(error)
else:
    raise AssertionError("there is no GPU to put a tensor on")

rows = np.random.default_rng(0).standard_normal((20, 2, 16), dtype=np.float32)
cache.write(1, cache.get_slot_mapping(0, 0, 20), rows, rows)
out = paged_attention(rows[-1:], cache, cache.block_tables([0]), [20], layer=1)
assert out.shape == (1, 2, 16) and np.isfinite(out).all()

array = np.from_dlpack(cache.tensor(1))
array[table[0], 0, 0] = 3
assert (cache.layers[1, table[0], 0, 0] == 3).all()

prefixes = PrefixCache(config)
tokens = list(range(32))
both = np.stack([np.concatenate([rows, rows[:12]])] * 2)
assert prefixes.insert(tokens, both, both) == 32
assert prefixes.lookup([*tokens, 1]).tokens == 32
print(f"octavo {octavo.__version__} with NumPy {np.__version__} and nothing else: {answer.text!r}")
