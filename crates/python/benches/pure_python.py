"""How much faster than the document's pure-Python classes is a step of 256 sequences?

    python crates/python/benches/pure_python.py [--json -]

Both run here, one after the other, over and over; the figures are medians. `pure_python_classes.py` is the document's
file, unchanged; it needs torch.
"""

import argparse
import json
import statistics
import sys
import time

import numpy as np
import pure_python_classes as document
import torch

import octavo.kv_cache as ours


def manager(library, blocks):
    config = library.CacheConfig(blocks, num_layers=1, num_kv_heads=1, head_dim=8, dtype=torch.float16, device="cpu")
    return library.KVCacheManager(config)


class Decode:
    """Where each sequence's next token goes."""

    name = "slot mapping, 1 token each"

    def __init__(self, n):
        blocks = -(-512 // 16) * n
        self.ids, self.lens = np.arange(n), np.full(n, 511)
        self.ones = np.ones(n, dtype=np.int64)
        self.theirs, self.mine = manager(document, blocks), manager(ours, blocks)
        for seq in range(n):
            self.theirs.allocate_sequence(seq, 512)
        self.mine.allocate_sequences(self.ids, np.full(n, 512))

    def document(self):
        return [self.theirs.get_slot_mapping(seq, 511, 1) for seq in range(len(self.ids))]

    def one_by_one(self):
        return [self.mine.get_slot_mapping(seq, 511, 1) for seq in range(len(self.ids))]

    def octavo(self):
        return self.mine.get_slot_mappings(self.ids, self.lens, self.ones)


class Prefill(Decode):
    """Where a chunk of each sequence's prompt goes."""

    name = "slot mapping, 64 tokens each"

    def document(self):
        return [self.theirs.get_slot_mapping(seq, 100, 64) for seq in range(len(self.ids))]

    def one_by_one(self):
        return [self.mine.get_slot_mapping(seq, 100, 64) for seq in range(len(self.ids))]

    def octavo(self):
        return self.mine.get_slot_mappings(self.ids, self.ones * 100, self.ones * 64)


class Sequences(Decode):
    """Sequences of 512 tokens, 32 blocks each, come and go."""

    name = "allocate and free sequences of 32 blocks"

    def __init__(self, n):
        blocks = -(-512 // 16) * n
        self.ids, self.tokens = np.arange(n), np.full(n, 512)
        self.theirs, self.mine = manager(document, blocks), manager(ours, blocks)

    def _each(self, cache):
        for seq in range(len(self.ids)):
            cache.allocate_sequence(seq, 512)
        for seq in range(len(self.ids)):
            cache.free_sequence(seq)

    def document(self):
        self._each(self.theirs)

    def one_by_one(self):
        self._each(self.mine)

    def octavo(self):
        self.mine.allocate_sequences(self.ids, self.tokens)
        self.mine.free_sequences(self.ids)


class Blocks:
    """32 blocks for each of the sequences, by number."""

    name = "allocate_n and free of 32 blocks each"

    def __init__(self, n):
        self.n = n
        self.theirs, self.mine = document.BlockAllocator(32 * n), ours.BlockAllocator(32 * n)

    def _each(self, allocator):
        taken = [allocator.allocate_n(32) for _ in range(self.n)]
        for blocks in taken:
            for block in blocks:
                allocator.free(block)

    def document(self):
        self._each(self.theirs)

    def one_by_one(self):
        self._each(self.mine)

    def octavo(self):
        self.mine.free(self.mine.allocate(32 * self.n))


def microseconds(call):
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e6


def measure(case, repeats):
    ways = {"document": case.document, "one_by_one": case.one_by_one, "octavo": case.octavo}
    taken = {name: [] for name in ways}
    for _ in range(repeats):
        for name, call in ways.items():
            taken[name].append(microseconds(call))
    return {name: statistics.median(times) for name, times in taken.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=101)
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - for standard output")
    options = parser.parse_args()
    rows = []
    for case in (Decode, Prefill, Sequences, Blocks):
        figures = measure(case(options.sequences), options.repeats)
        speedup = figures["document"] / figures["octavo"]
        rows.append({"case": case.name, "sequences": options.sequences, **figures, "speedup": speedup})
    if options.json:
        text = json.dumps(rows, indent=2)
        if options.json == "-":
            print(text)
            return
        with open(options.json, "w") as file:
            file.write(text)
    print(f"{options.sequences} sequences a step; microseconds, medians of {options.repeats}")
    print(f"{'':42} {'document':>10} {'same calls':>11} {'one call':>9} {'faster':>8}")
    for row in rows:
        figures = f"{row['document']:10.0f} {row['one_by_one']:11.0f} {row['octavo']:9.1f} {row['speedup']:7.0f}x"
        print(f"{row['case']:42} {figures}")


if __name__ == "__main__":
    sys.exit(main())
