"""A paged KV cache whose memory NumPy and torch share.

`CacheConfig`, `BlockAllocator`, `BlockTable` and `KVCacheManager` are a plain block manager: sequences by ids of your
choice, blocks by number, slots for a kernel. `PrefixCache` knows tokens as well: it shares equal beginnings, forks
sequences with copy-on-write, and evicts what nobody used for long.

>>> config = CacheConfig(num_blocks=100, num_layers=2, num_kv_heads=2, head_dim=8, dtype="float32", device="cpu")
>>> cache = KVCacheManager(config)
>>> table = cache.allocate_sequence(seq_id=0, num_tokens=50)
>>> len(table)
4
>>> cache.get_slot_mapping(seq_id=0, start_pos=0, num_tokens=3).tolist() == [16 * table[0] + i for i in range(3)]
True
>>> cache.kv_cache.shape
(100, 2, 16, 2, 8)

Every method may be called from any thread, and work on many sequences lets other threads run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Tuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _torch
from ._octavo import Arena, BlockAllocator, BlockTable, CacheTensor, Manager, Prefixes, dtype_name

__all__ = [
    "BlockAllocator",
    "BlockTable",
    "CacheConfig",
    "CacheTensor",
    "Hit",
    "KVCacheManager",
    "PrefixCache",
    "Step",
]

Ints = Sequence[int] | NDArray[np.int64] | NDArray[np.int32]


def _default_dtype() -> Any:
    """`torch.float16` where torch is imported, as in the document; its name where it is not."""
    torch = sys.modules.get("torch")
    return "float16" if torch is None else torch.float16


@dataclass
class CacheConfig:
    """Configuration for KV cache.

    `dtype` is a `torch.dtype`, a NumPy dtype or a name: float32, float16, bfloat16, float8_e4m3fn (fp8) or int8. It
    also says what you get: torch tensors for a `torch.dtype`, NumPy arrays otherwise. The two of eight bits are
    quantised, with parameters for each token and head: write and read them through the cache.

    >>> config = CacheConfig(num_blocks=1024, dtype="float16")
    >>> config.kv_cache_shape
    (1024, 2, 16, 8, 128)
    >>> config.bytes_per_block
    65536
    """

    num_blocks: int
    block_size: int = 16
    num_layers: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    dtype: Any = field(default_factory=_default_dtype)
    device: str = "cuda"

    def __post_init__(self) -> None:
        self._dtype_name()

    @property
    def kv_cache_shape(self) -> Tuple[int, ...]:
        """Shape of the KV cache tensor of one layer."""
        return (self.num_blocks, 2, self.block_size, self.num_kv_heads, self.head_dim)

    @property
    def bytes_per_block(self) -> int:
        """Memory per block of one layer in bytes."""
        _, row = dtype_name(_torch.name_of(self.dtype), self.head_dim)
        return 2 * self.block_size * self.num_kv_heads * row

    @property
    def total_memory_gb(self) -> float:
        """Cache memory of one layer in GB, which here are 2**30 bytes."""
        return (self.num_blocks * self.bytes_per_block) / (1024**3)

    def _dtype_name(self) -> str:
        return dtype_name(_torch.name_of(self.dtype), self.head_dim)[0]

    def _geometry(self) -> tuple[int, int, int, int, int, str]:
        if self.device != "cpu":
            raise RuntimeError(
                f"this cache lives in the CPU's memory, not on {self.device}: use CacheConfig(device='cpu')"
            )
        dtype = self._dtype_name()
        return (self.num_blocks, self.block_size, self.num_layers, self.num_kv_heads, self.head_dim, dtype)


class _Memory:
    """What both caches do with their bytes."""

    config: CacheConfig
    kv_cache: Any
    layers: Any
    arena: Arena

    def _share(self, config: CacheConfig, arena: Arena) -> None:
        tensor = arena.tensor()
        self.config = config
        self.arena = arena
        self.layers = _torch.shared(tensor, config.dtype)
        self.kv_cache = _torch.shared(tensor[0], config.dtype)

    def tensor(self, layer: int | None = None) -> CacheTensor:
        """The memory itself, of one layer or of all, for `numpy.asarray` and any `from_dlpack`.

        A layer is `[num_blocks, 2, block_size, num_kv_heads, head_dim]`; all of them have one axis more in front.
        """
        tensor = self.arena.tensor()
        return tensor if layer is None else tensor[layer]

    def write(self, layer: int, slots: Ints, keys: ArrayLike, values: ArrayLike) -> None:
        """Stores keys and values, each `[len(slots), num_kv_heads, head_dim]`, encoded as the cache has them."""
        rows = (_torch.to_float32("keys", keys, 3), _torch.to_float32("values", values, 3))
        self.arena.write(layer, _ints(slots), *rows)


def _ints(values: Any) -> Any:
    return values.detach().cpu().numpy() if _torch.is_torch_tensor(values) else values


class _Tables(Mapping[int, BlockTable]):
    """The block tables of a manager's sequences, as they are now."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def __getitem__(self, seq_id: int) -> BlockTable:
        return self._manager.table(seq_id)

    def __iter__(self) -> Iterator[int]:
        return iter(self._manager.ids())

    def __len__(self) -> int:
        return len(self._manager.ids())


class _Lengths(Mapping[int, int]):
    """The lengths of a manager's sequences, as they are now."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def __getitem__(self, seq_id: int) -> int:
        return self._manager.length(seq_id)

    def __iter__(self) -> Iterator[int]:
        return iter(self._manager.ids())

    def __len__(self) -> int:
        return len(self._manager.ids())


class KVCacheManager(_Memory):
    """High-level manager for paged KV cache.

    Handles block allocation per sequence, slot mapping for token placement, and memory statistics.

    `kv_cache` is the first layer, `[num_blocks, 2, block_size, num_kv_heads, head_dim]`; `layers` is every layer, with
    one axis more in front. Both are the cache's own memory: what you write there is there.

    >>> config = CacheConfig(num_blocks=8, num_layers=2, num_kv_heads=1, head_dim=4, dtype="float32", device="cpu")
    >>> cache = KVCacheManager(config)
    >>> table = cache.allocate_sequence(seq_id=7, num_tokens=20)
    >>> cache.layers[1, table[0], 0, 3] = 2.5
    >>> keys, values = cache.read(seq_id=7, layer=1)
    >>> keys[3].tolist()
    [[2.5, 2.5, 2.5, 2.5]]
    >>> cache.free_sequence(7)
    >>> cache.get_stats()["free_blocks"]
    8
    """

    def __init__(self, config: CacheConfig) -> None:
        self._manager = Manager(*config._geometry())
        self.allocator = self._manager.allocator
        self._share(config, self._manager.arena)

    @property
    def sequence_tables(self) -> Mapping[int, BlockTable]:
        """The block table of each sequence."""
        return _Tables(self._manager)

    @property
    def sequence_lengths(self) -> Mapping[int, int]:
        """The number of tokens of each sequence."""
        return _Lengths(self._manager)

    def allocate_sequence(self, seq_id: int, num_tokens: int) -> BlockTable:
        """Allocate blocks for a new sequence.

        Raises RuntimeError if there are too few, or if the sequence exists.
        """
        return self._manager.allocate(seq_id, num_tokens)

    def extend_sequence(self, seq_id: int, additional_tokens: int) -> None:
        """Extend a sequence by allocating more blocks if needed."""
        self._manager.extend(seq_id, additional_tokens)

    def free_sequence(self, seq_id: int) -> None:
        """Free all blocks for a sequence; one that there is not is no error."""
        self._manager.free(seq_id)

    def get_slot_mapping(self, seq_id: int, start_pos: int, num_tokens: int) -> Any:
        """Slots of consecutive positions: each is block * block_size + offset, an int32."""
        return _torch.like(self._manager.slots(seq_id, start_pos, num_tokens), self.config.dtype)

    def get_stats(self) -> dict[str, Any]:
        """Get memory usage statistics.

        `bytes_…` count every layer; `total_memory_gb` counts one, as `CacheConfig` does.
        """
        return {**self._manager.stats(), "total_memory_gb": self.config.total_memory_gb}

    def allocate_sequences(self, seq_ids: Ints, num_tokens: Ints) -> None:
        """As `allocate_sequence`, for many at once: all of them or none."""
        self._manager.allocate_many(_ints(seq_ids), _ints(num_tokens))

    def extend_sequences(self, seq_ids: Ints, additional_tokens: Ints) -> None:
        """As `extend_sequence`, for many at once: all of them or none."""
        self._manager.extend_many(_ints(seq_ids), _ints(additional_tokens))

    def free_sequences(self, seq_ids: Ints) -> int:
        """As `free_sequence`, for many at once; says how many of them there were."""
        return self._manager.free_many(_ints(seq_ids))

    def get_slot_mappings(self, seq_ids: Ints, start_pos: Ints, num_tokens: Ints) -> Any:
        """The slots of every sequence, one after another, in one array of int32.

        >>> config = CacheConfig(4, num_layers=1, num_kv_heads=1, head_dim=2, dtype="float32", device="cpu")
        >>> cache = KVCacheManager(config)
        >>> cache.allocate_sequences([1, 2], [17, 5])
        >>> cache.get_slot_mappings([1, 2], start_pos=[15, 0], num_tokens=[2, 2]).shape
        (4,)
        """
        slots = self._manager.slots_many(_ints(seq_ids), _ints(start_pos), _ints(num_tokens))
        return _torch.like(slots, self.config.dtype)

    def block_tables(self, seq_ids: Ints) -> Any:
        """The tables of many sequences as one array of int32, a row each, padded with -1."""
        return _torch.like(self._manager.tables(_ints(seq_ids)), self.config.dtype)

    def read(self, seq_id: int, layer: int, start_pos: int = 0, num_tokens: int | None = None) -> Any:
        """Keys and values of consecutive positions, each `[num_tokens, num_kv_heads, head_dim]` in float32: a copy."""
        count = self._manager.length(seq_id) - start_pos if num_tokens is None else num_tokens
        keys, values = self.arena.read(layer, self._manager.table(seq_id).table, start_pos, count)
        return _torch.like(keys, self.config.dtype), _torch.like(values, self.config.dtype)

    def check(self) -> None:
        """Raises RuntimeError if the books do not agree with themselves."""
        self._manager.check()


@dataclass(frozen=True)
class Hit:
    """What a prefix lookup found."""

    tokens: int
    """Tokens that need not be computed."""
    copied: int
    """How many of them are copied from a block of which only the beginning fits."""
    reason: str
    """Why there are no more."""


@dataclass(frozen=True)
class Step:
    """What to compute: write the keys and values of these positions to these slots."""

    seq_ids: list[int]
    start_pos: list[int]
    """The first position of each sequence."""
    num_tokens: list[int]
    slot_mapping: Any
    """The slot of every token, one sequence after another, int32."""


class PrefixCache(_Memory):
    """A cache that knows tokens: equal beginnings are computed once and shared.

    A sequence is admitted with its tokens and finds what is cached of them. `schedule` says where the rest goes,
    you write it there, `complete` makes it public.

    >>> config = CacheConfig(num_blocks=16, num_layers=1, num_kv_heads=1, head_dim=2, dtype="float32", device="cpu")
    >>> cache = PrefixCache(config)
    >>> first, hit = cache.admit(range(40))
    >>> hit.tokens
    0
    >>> step = cache.schedule(first)
    >>> rows = np.ones((len(step.slot_mapping), 1, 2))
    >>> cache.write(0, step.slot_mapping, keys=rows, values=rows)
    >>> cache.complete()
    >>> cache.lookup(range(40)).tokens
    32
    >>> second = cache.fork(first)
    >>> cache.append(second, 99)
    >>> _ = cache.schedule(second)
    >>> cache.complete()
    >>> cache.get_stats()["copies_on_write"]
    1
    """

    def __init__(
        self,
        config: CacheConfig,
        *,
        policy: str = "lru",
        reserve: int = 0,
        sequence_limit: int | None = None,
        cached_limit: int | None = None,
        pin_quota: int | None = None,
    ) -> None:
        """`policy` is lru, priority or adaptive: which cached blocks go when room is needed.

        `reserve` blocks are only for sequences scheduled as running; `sequence_limit` is the most that one sequence may
        hold, `cached_limit` the most that are kept for what they contain, `pin_quota` the most that pins may keep
        (a quarter of all, unless said otherwise).
        """
        self._cache = Prefixes(
            *config._geometry(), policy, reserve, sequence_limit, cached_limit, pin_quota
        )
        self._share(config, self._cache.arena)

    def lookup(self, tokens: Ints | range, *, salt: bytes = b"", adapter: bytes = b"") -> Hit:
        """What `admit` would find now."""
        return Hit(*self._cache.lookup(_token_list(tokens), salt, adapter))

    def admit(
        self, tokens: Ints | range, *, salt: bytes = b"", adapter: bytes = b"", reuse: bool = True
    ) -> tuple[int, Hit]:
        """Begins a sequence with what is cached of its tokens; returns its id and what was found.

        Sequences share what they have in common if their `salt` and `adapter` are equal. At least the last token is
        left to be computed.
        """
        seq_id, found = self._cache.admit(_token_list(tokens), salt, adapter, reuse)
        return seq_id, Hit(*found)

    def append(self, seq_id: int, tokens: int | Ints) -> None:
        """Adds a token, or some, to be computed by a later step."""
        self._cache.append(seq_id, [int(tokens)] if isinstance(tokens, (int, np.integer)) else _token_list(tokens))

    def schedule(
        self, seq_ids: int | Ints, num_tokens: int | Ints | None = None, *, running: bool = False
    ) -> Step:
        """Takes the blocks that the next tokens need, for all sequences or for none, and copies what is shared and
        would be written to. Without `num_tokens`: everything that is not computed yet.

        One step is open at a time: end it with `complete` or `fail`.
        """
        ids = [int(seq_ids)] if isinstance(seq_ids, (int, np.integer)) else list(seq_ids)
        if num_tokens is None:
            counts = [-1] * len(ids)
        else:
            counts = [int(num_tokens)] if isinstance(num_tokens, (int, np.integer)) else list(num_tokens)
            if any(count < 1 for count in counts):
                raise ValueError(f"num_tokens is {num_tokens}: a sequence of a step has 1 or more")
        seqs, starts, counts, slots = self._cache.schedule(ids, counts, running)
        return Step(seqs, starts, counts, _torch.like(slots, self.config.dtype))

    def complete(self) -> None:
        """What was scheduled is written: it is cached, for everybody."""
        self._cache.complete()

    def fail(self) -> None:
        """What was scheduled is not written: every sequence is as it was before. Of those admitted since the last step,
        what was found of a block in part is computed again."""
        self._cache.fail()

    def insert(
        self, tokens: Ints | range, keys: ArrayLike, values: ArrayLike, *, salt: bytes = b"", adapter: bytes = b""
    ) -> int:
        """Puts computed keys and values, each `[num_layers, len(tokens), num_kv_heads, head_dim]`, into the cache.

        Whole blocks stay, until their room is needed. Returns how many tokens were new, the last one
        always among them.
        """
        ids = _token_list(tokens)
        all_keys, all_values = (_torch.to_float32("keys", keys, 4), _torch.to_float32("values", values, 4))
        shape = (self.config.num_layers, len(ids), self.config.num_kv_heads, self.config.head_dim)
        if all_keys.shape != shape or all_values.shape != shape:
            raise ValueError(f"keys and values have shapes {all_keys.shape} and {all_values.shape}: need {shape}")
        seq_id, hit = self.admit(ids, salt=salt, adapter=adapter)
        try:
            step = self.schedule(seq_id)
            try:
                for layer in range(self.config.num_layers):
                    new = slice(step.start_pos[0], None)
                    self.write(layer, step.slot_mapping, all_keys[layer, new], all_values[layer, new])
            except BaseException:
                self.fail()
                raise
            self.complete()
        finally:
            self.free(seq_id)
        return len(ids) - hit.tokens

    def fork(self, seq_id: int) -> int:
        """A second sequence over the same blocks. Whichever of the two writes first gets a copy of the last one."""
        return self._cache.fork(seq_id)

    def free(self, seq_id: int) -> None:
        """Ends a sequence. Its full blocks stay cached until their room is needed."""
        self._cache.free(seq_id)

    def num_tokens(self, seq_id: int) -> int:
        """Known tokens."""
        return len(self._cache.sequence(seq_id)[0])

    def num_computed(self, seq_id: int) -> int:
        """Tokens whose keys and values are in the cache."""
        return self._cache.sequence(seq_id)[1]

    def tokens(self, seq_id: int) -> list[int]:
        """All tokens that are known."""
        return self._cache.sequence(seq_id)[0]

    @property
    def sequences(self) -> list[int]:
        """The ids of the sequences there are."""
        return self._cache.ids()

    def block_tables(self, seq_ids: Ints) -> Any:
        """The tables of many sequences as one array of int32, a row each, padded with -1."""
        return _torch.like(self._cache.tables(list(seq_ids)), self.config.dtype)

    def get_slot_mappings(self, seq_ids: Ints, start_pos: Ints, num_tokens: Ints) -> Any:
        """The slots of every sequence, one after another, in one array of int32."""
        slots = self._cache.slots(list(seq_ids), _ints(start_pos), _ints(num_tokens))
        return _torch.like(slots, self.config.dtype)

    def read(self, seq_id: int, layer: int) -> Any:
        """Keys and values of all computed tokens, each `[tokens, num_kv_heads, head_dim]` in float32: a copy."""
        keys, values = self._cache.read(seq_id, layer)
        return _torch.like(keys, self.config.dtype), _torch.like(values, self.config.dtype)

    def evict(self, num_blocks: int) -> int:
        """Makes up to so many cached blocks free, in the order of the policy; says how many there were."""
        return self._cache.evict(num_blocks)

    def pin(self, tokens: Ints | range, *, salt: bytes = b"", adapter: bytes = b"") -> tuple[int, int]:
        """Keeps what is cached of these tokens; returns the pin and how many tokens it keeps."""
        return self._cache.pin(_token_list(tokens), salt, adapter)

    def unpin(self, pin: int) -> None:
        """Lets go of a pin."""
        self._cache.unpin(pin)

    def get_stats(self) -> dict[str, Any]:
        """Blocks by what they are there for (used, cached, reserved and free add up), hits, evictions, copies."""
        return self._cache.stats()

    def check(self) -> None:
        """Raises RuntimeError if the books do not agree with themselves."""
        self._cache.check()


def _token_list(tokens: Any) -> Any:
    return list(tokens) if isinstance(tokens, range) else _ints(tokens)
