"""
KV Cache Python Interface
=========================

High-level Python wrapper for paged KV cache management.
"""

from dataclasses import dataclass
from typing import List, Optional, Dict, Tuple
import torch


@dataclass
class CacheConfig:
    """Configuration for KV cache"""
    num_blocks: int
    block_size: int = 16
    num_layers: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    dtype: torch.dtype = torch.float16
    device: str = "cuda"

    @property
    def kv_cache_shape(self) -> Tuple[int, ...]:
        """Shape of the KV cache tensor"""
        # [num_blocks, 2, block_size, num_kv_heads, head_dim]
        return (
            self.num_blocks,
            2,  # K and V
            self.block_size,
            self.num_kv_heads,
            self.head_dim
        )

    @property
    def bytes_per_block(self) -> int:
        """Memory per block in bytes"""
        elem_size = 2 if self.dtype == torch.float16 else 4
        return 2 * self.block_size * self.num_kv_heads * self.head_dim * elem_size

    @property
    def total_memory_gb(self) -> float:
        """Total cache memory in GB"""
        return (self.num_blocks * self.bytes_per_block) / (1024 ** 3)


class BlockAllocator:
    """
    Manages allocation of KV cache blocks.

    Uses a simple free list for O(1) allocation and deallocation.
    Supports reference counting for prefix sharing.
    """

    def __init__(self, num_blocks: int):
        self.num_blocks = num_blocks

        # Free list (blocks available for allocation)
        self.free_blocks: List[int] = list(range(num_blocks))

        # Reference counts for sharing
        self.ref_counts: Dict[int, int] = {}

    @property
    def num_free(self) -> int:
        return len(self.free_blocks)

    def can_allocate(self, n: int) -> bool:
        return self.num_free >= n

    def allocate(self) -> int:
        """Allocate a single block"""
        if not self.free_blocks:
            raise RuntimeError("No free blocks available")

        block_id = self.free_blocks.pop()
        self.ref_counts[block_id] = 1
        return block_id

    def allocate_n(self, n: int) -> List[int]:
        """Allocate n blocks"""
        if self.num_free < n:
            raise RuntimeError(f"Need {n} blocks, only {self.num_free} available")

        blocks = []
        for _ in range(n):
            blocks.append(self.allocate())
        return blocks

    def free(self, block_id: int):
        """Free a block (decrement ref count)"""
        if block_id not in self.ref_counts:
            raise RuntimeError(f"Block {block_id} not allocated")

        self.ref_counts[block_id] -= 1

        if self.ref_counts[block_id] == 0:
            del self.ref_counts[block_id]
            self.free_blocks.append(block_id)

    def add_ref(self, block_id: int):
        """Increment reference count (for sharing)"""
        if block_id not in self.ref_counts:
            raise RuntimeError(f"Block {block_id} not allocated")
        self.ref_counts[block_id] += 1

    def get_ref_count(self, block_id: int) -> int:
        return self.ref_counts.get(block_id, 0)


class BlockTable:
    """
    Maps logical blocks to physical blocks for a sequence.
    """

    def __init__(self):
        self.table: List[int] = []

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, idx: int) -> int:
        return self.table[idx]

    def append(self, block_id: int):
        self.table.append(block_id)

    def as_tensor(self, device: str = "cuda") -> torch.Tensor:
        return torch.tensor(self.table, dtype=torch.int32, device=device)


class KVCacheManager:
    """
    High-level manager for paged KV cache.

    Handles:
    - Block allocation per sequence
    - Slot mapping for token placement
    - Memory statistics
    """

    def __init__(self, config: CacheConfig):
        self.config = config
        self.allocator = BlockAllocator(config.num_blocks)

        # Allocate the KV cache tensor
        self.kv_cache = torch.zeros(
            config.kv_cache_shape,
            dtype=config.dtype,
            device=config.device
        )

        # Track sequences
        self.sequence_tables: Dict[int, BlockTable] = {}
        self.sequence_lengths: Dict[int, int] = {}

    def allocate_sequence(self, seq_id: int, num_tokens: int) -> BlockTable:
        """
        Allocate blocks for a new sequence.

        Args:
            seq_id: Unique sequence identifier
            num_tokens: Number of tokens to allocate for

        Returns:
            Block table for the sequence
        """
        num_blocks = (num_tokens + self.config.block_size - 1) // self.config.block_size

        blocks = self.allocator.allocate_n(num_blocks)

        table = BlockTable()
        for block_id in blocks:
            table.append(block_id)

        self.sequence_tables[seq_id] = table
        self.sequence_lengths[seq_id] = num_tokens

        return table

    def extend_sequence(self, seq_id: int, additional_tokens: int):
        """
        Extend a sequence by allocating more blocks if needed.
        """
        table = self.sequence_tables[seq_id]
        current_len = self.sequence_lengths[seq_id]
        new_len = current_len + additional_tokens

        current_blocks = len(table)
        needed_blocks = (new_len + self.config.block_size - 1) // self.config.block_size

        additional_blocks = needed_blocks - current_blocks
        if additional_blocks > 0:
            new_blocks = self.allocator.allocate_n(additional_blocks)
            for block_id in new_blocks:
                table.append(block_id)

        self.sequence_lengths[seq_id] = new_len

    def free_sequence(self, seq_id: int):
        """Free all blocks for a sequence"""
        if seq_id in self.sequence_tables:
            table = self.sequence_tables[seq_id]
            for block_id in table.table:
                self.allocator.free(block_id)
            del self.sequence_tables[seq_id]
            del self.sequence_lengths[seq_id]

    def get_slot_mapping(self, seq_id: int, start_pos: int, num_tokens: int) -> torch.Tensor:
        """
        Get slot mapping for token placement.

        Each slot maps to: block_id * block_size + offset
        """
        table = self.sequence_tables[seq_id]

        slots = []
        for i in range(num_tokens):
            pos = start_pos + i
            logical_block = pos // self.config.block_size
            offset = pos % self.config.block_size
            physical_block = table[logical_block]
            slot = physical_block * self.config.block_size + offset
            slots.append(slot)

        return torch.tensor(slots, dtype=torch.int32, device=self.config.device)

    def get_stats(self) -> dict:
        """Get memory usage statistics"""
        return {
            "total_blocks": self.config.num_blocks,
            "free_blocks": self.allocator.num_free,
            "used_blocks": self.config.num_blocks - self.allocator.num_free,
            "utilization": 1.0 - (self.allocator.num_free / self.config.num_blocks),
            "num_sequences": len(self.sequence_tables),
            "total_memory_gb": self.config.total_memory_gb,
        }
