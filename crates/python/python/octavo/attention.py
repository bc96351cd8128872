"""Attention over pages, on the CPU: for a notebook that wants to try a page map.

>>> import numpy as np
>>> kv_cache = np.random.default_rng(0).standard_normal((8, 2, 16, 1, 4), dtype=np.float32)
>>> query = np.ones((1, 2, 4), dtype=np.float32)
>>> out = paged_attention(query, kv_cache, block_tables=[[5, 2]], context_lens=[20])
>>> keys = np.concatenate([kv_cache[5, 0], kv_cache[2, 0]])[:20, 0]
>>> values = np.concatenate([kv_cache[5, 1], kv_cache[2, 1]])[:20, 0]
>>> weights = np.exp(keys @ query[0, 0] / np.sqrt(4))
>>> np.allclose(out[0, 0], weights @ values / weights.sum(), atol=1e-5)
True
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _torch
from ._octavo import Arena, attention
from .kv_cache import KVCacheManager, PrefixCache

__all__ = ["paged_attention"]

_NAMES = {"float32": "float32", "float16": "float16"}


def paged_attention(
    query: ArrayLike,
    kv_cache: KVCacheManager | PrefixCache | ArrayLike,
    block_tables: ArrayLike,
    context_lens: ArrayLike,
    *,
    query_lens: ArrayLike | None = None,
    scale: float | None = None,
    window: int | None = None,
    layer: int = 0,
) -> Any:
    """`softmax(q · kᵀ * scale) · v` of every query over the blocks of its sequence.

    - `query`: `[tokens, heads, head_dim]`; heads are a multiple of the cache's.
    - `kv_cache`: a cache, whose memory is read in place and in whatever precision it has, or an array
      `[num_blocks, 2, block_size, num_kv_heads, head_dim]` of float32 or float16, of which the blocks that are named
      are copied.
    - `block_tables`: a row of blocks for each sequence; what it does not need is not looked at.
    - `context_lens`: tokens of each sequence, its queries included.
    - `query_lens`: queries of each sequence, the last of its tokens; 1 unless given.
    - `scale`: `1 / sqrt(head_dim)` unless given.
    - `window`: how many positions a query sees, its own included; all of them unless given.

    Returns float32 in the shape of `query`.
    """
    queries = _torch.to_float32("query", query, 3)
    tables = _whole("block_tables", block_tables, 2)
    contexts = _whole("context_lens", context_lens, 1)
    lens = np.ones_like(contexts) if query_lens is None else _whole("query_lens", query_lens, 1)
    if isinstance(kv_cache, (KVCacheManager, PrefixCache)):
        arena = kv_cache.arena
    else:
        arena, tables = _copied(kv_cache, tables, contexts, layer)
        layer = 0
    scale = 1.0 / np.sqrt(queries.shape[2]) if scale is None else scale
    # What is no block stays none, however large; where it is not needed it is not looked at.
    tables = np.where((tables >= 0) & (tables < 2**31), tables, -1)
    rows = np.ascontiguousarray(tables, dtype=np.int32)
    return attention(arena, layer, queries, rows, contexts, lens, float(scale), window)


def _whole(name: str, value: Any, axes: int) -> Any:
    if _torch.is_torch_tensor(value):
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {array.dtype}: give whole numbers")
    if array.ndim != axes:
        raise ValueError(f"{name} has shape {array.shape}: it must have {axes} axes")
    return array.astype(np.int64)


def _copied(kv_cache: Any, tables: Any, contexts: Any, layer: int) -> tuple[Arena, Any]:
    """The blocks that are used, in an arena of their own, and the tables that name them there."""
    if _torch.is_torch_tensor(kv_cache):
        kv_cache = kv_cache.detach().cpu().numpy()
    blocks = np.asarray(kv_cache)
    if blocks.dtype.name not in _NAMES:
        raise TypeError(f"kv_cache has dtype {blocks.dtype}: give float32 or float16, or a cache")
    if blocks.ndim != 5 or blocks.shape[1] != 2 or 0 in blocks.shape[2:]:
        raise ValueError(
            f"kv_cache has shape {blocks.shape}: it must be [num_blocks, 2, block_size, num_kv_heads, head_dim]"
        )
    if layer != 0:
        raise IndexError(f"layer {layer}: an array of this shape has one layer")
    if len(contexts) != len(tables):
        raise ValueError(f"{len(tables)} block tables and {len(contexts)} context_lens: give as many of each")
    size = blocks.shape[2]
    used = np.arange(tables.shape[1])[None, :] < -(-contexts[:, None] // size)
    named = tables[used]
    if named.size and not (0 <= named.min() and named.max() < len(blocks)):
        raise IndexError(f"block_tables name blocks from {named.min()} to {named.max()} of {len(blocks)}")
    unique, places = np.unique(named, return_inverse=True)
    arena = Arena(max(len(unique), 1), size, 1, blocks.shape[3], blocks.shape[4], blocks.dtype.name)
    np.asarray(arena.tensor()[0])[: len(unique)] = blocks[unique]
    moved = np.full(tables.shape, -1, dtype=np.int64)
    moved[used] = places.reshape(-1)
    return arena, moved
