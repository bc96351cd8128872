"""Shared prefixes, forks, copies, evictions."""

import dataclasses
import threading

import numpy as np
import pytest

from octavo.kv_cache import KVCacheManager, PrefixCache


def rows(cache, tokens):
    """Keys that depend on each token, `[layers, tokens, heads, dim]`."""
    c = cache.config
    base = np.asarray(tokens, dtype=np.float32)[None, :, None, None]
    layer = 1000 * np.arange(c.num_layers, dtype=np.float32)[:, None, None, None]
    return np.broadcast_to(base + layer, (c.num_layers, len(tokens), c.num_kv_heads, c.head_dim))


def fill(cache, seq):
    """Computes whatever is left of a sequence."""
    step = cache.schedule(seq)
    tokens = cache.tokens(seq)[step.start_pos[0] :]
    keys = rows(cache, tokens)
    for layer in range(cache.config.num_layers):
        cache.write(layer, step.slot_mapping, keys[layer], -keys[layer])
    cache.complete()
    cache.check()
    return step


def assert_holds(cache, seq):
    """What is in the cache for a sequence is what its tokens say."""
    tokens = cache.tokens(seq)[: cache.num_computed(seq)]
    for layer in range(cache.config.num_layers):
        keys, values = cache.read(seq, layer)
        assert (keys == rows(cache, tokens)[layer]).all() and (values == -keys).all()


def test_equal_beginnings_are_shared(small):
    cache = PrefixCache(small())
    first, hit = cache.admit(range(40))
    assert hit.tokens == 0 and "never seen" in hit.reason
    fill(cache, first)
    second, hit = cache.admit([*range(32), 7, 7, 7])
    assert hit.tokens == 32
    fill(cache, second)
    a, b = cache.block_tables([first, second])
    assert a[:2].tolist() == b[:2].tolist() and a[2] != b[2]
    assert_holds(cache, first), assert_holds(cache, second)
    assert cache.get_stats()["used_blocks"] == 4


def test_the_beginning_of_a_block_is_copied(small):
    cache = PrefixCache(small())
    first, _ = cache.admit(range(33))
    fill(cache, first)
    second, hit = cache.admit([*range(24), 99, 98])
    assert (hit.tokens, hit.copied) == (24, 8)
    fill(cache, second)
    assert_holds(cache, first), assert_holds(cache, second)


def test_what_is_freed_stays_until_its_room_is_needed(small):
    cache = PrefixCache(small(num_blocks=4))
    seq, _ = cache.admit(range(33))
    fill(cache, seq)
    cache.free(seq)
    assert cache.get_stats()["cached_blocks"] == 2
    assert cache.lookup(range(33)).tokens == 32
    other, _ = cache.admit(range(100, 150))
    fill(cache, other)
    assert cache.get_stats()["evicted_blocks"] == 2
    assert "evicted" in cache.lookup(range(33)).reason
    assert_holds(cache, other)


def test_a_fork_writes_to_a_copy(small):
    cache = PrefixCache(small())
    parent, _ = cache.admit(range(20))
    fill(cache, parent)
    child = cache.fork(parent)
    assert cache.block_tables([parent])[0].tolist() == cache.block_tables([child])[0].tolist()
    cache.append(child, [500, 501])
    cache.append(parent, 700)
    fill(cache, child), fill(cache, parent)
    assert cache.block_tables([parent])[0][1] != cache.block_tables([child])[0][1]
    assert_holds(cache, parent), assert_holds(cache, child)
    stats = cache.get_stats()
    assert (stats["forks"], stats["copies_on_write"]) == (1, 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "fp8", "int8"])
def test_copies_take_their_parameters_along(small, dtype):
    cache = PrefixCache(small(dtype=dtype))
    keys = np.random.default_rng(0).standard_normal((2, 20, 2, 4))
    seq, _ = cache.admit(range(20))
    step = cache.schedule(seq)
    for layer in range(2):
        cache.write(layer, step.slot_mapping, keys[layer], keys[layer])
    cache.complete()
    before = cache.read(seq, 1)[0]
    child = cache.fork(seq)
    cache.append(child, 99)
    step = cache.schedule(child)
    assert (cache.read(child, 1)[0] == before).all() and (cache.read(seq, 1)[0] == before).all()


def test_inserted_prefixes_are_found_with_their_numbers(small):
    cache = PrefixCache(small())
    tokens = list(range(40))
    assert cache.insert(tokens, rows(cache, tokens), -rows(cache, tokens)) == 40
    assert cache.insert(tokens, rows(cache, tokens), -rows(cache, tokens)) == 8
    seq, hit = cache.admit(tokens)
    assert hit.tokens == 32
    assert_holds(cache, seq)
    cache.check()


def test_an_insert_that_fails_leaves_nothing(small):
    cache = PrefixCache(small())
    tokens = list(range(40))
    numbers = rows(cache, tokens)
    for keys, values in [(numbers[:, 1:], numbers), (numbers, numbers[:1])]:
        with pytest.raises(ValueError, match=r"keys and values have shapes .*: need \(2, 40, 2, 4\)"):
            cache.insert(tokens, keys, values)

    class Breaks(PrefixCache):
        def write(self, *args):
            raise OSError("no more")

    cache = Breaks(small())
    with pytest.raises(OSError, match="no more"):
        cache.insert(tokens, numbers, numbers)
    cache.check()
    stats = cache.get_stats()
    assert (stats["used_blocks"], stats["cached_blocks"]) == (0, 0), stats


def test_what_a_cache_says_cannot_be_changed(small):
    cache = PrefixCache(small())
    seq, hit = cache.admit(range(3))
    step = cache.schedule(seq)
    for said, name in [(hit, "tokens"), (step, "start_pos")]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(said, name, 7)


def test_books_that_do_not_agree_are_told(small):
    class Broken:
        def check(self):
            raise RuntimeError("a block has two owners")

    for cache, books in [(PrefixCache(small()), "_cache"), (KVCacheManager(small()), "_manager")]:
        cache.check()
        setattr(cache, books, Broken())
        with pytest.raises(RuntimeError, match="two owners"):
            cache.check()


def test_a_step_has_a_token_of_each_of_its_sequences(small):
    cache = PrefixCache(small())
    seqs = [cache.admit(range(20))[0], cache.admit(range(50, 60))[0]]
    for counts in [[0, 10], [3, -1]]:
        with pytest.raises(ValueError, match="1 or more"):
            cache.schedule(seqs, counts)
    assert cache.schedule(seqs, [1, 10]).num_tokens == [1, 10]
    cache.complete()
    assert [cache.num_computed(seq) for seq in seqs] == [1, 10]


def test_salts_and_adapters_share_nothing(small):
    cache = PrefixCache(small())
    tokens = list(range(32))
    cache.insert(tokens, rows(cache, tokens), rows(cache, tokens), salt=b"a")
    longer = [*tokens, 1]
    assert cache.lookup(longer, salt=b"a").tokens == 32
    assert cache.lookup(longer).tokens == 0
    assert cache.lookup(longer, salt=b"a", adapter=b"x").tokens == 0


def test_a_step_that_fails_leaves_everything_as_it_was(small):
    cache = PrefixCache(small())
    seq, _ = cache.admit(range(20))
    fill(cache, seq)
    child = cache.fork(seq)
    cache.append(child, 5)
    before = cache.get_stats()["used_blocks"]
    step = cache.schedule(child)
    cache.write(0, step.slot_mapping, np.full((1, 2, 4), 9.0), np.full((1, 2, 4), 9.0))
    cache.fail()
    assert cache.get_stats()["used_blocks"] == before and cache.num_computed(child) == 20
    cache.check()
    fill(cache, child)
    assert_holds(cache, child), assert_holds(cache, seq)


def test_a_batch_is_scheduled_whole_or_not_at_all(small):
    cache = PrefixCache(small(num_blocks=4))
    a, _ = cache.admit(range(40))
    b, _ = cache.admit(range(100, 140))
    with pytest.raises(RuntimeError, match="Need 3 blocks, only 1 available"):
        cache.schedule([a, b])
    assert cache.get_stats()["used_blocks"] == 0
    step = cache.schedule([a, b], [16, 17])
    assert (step.start_pos, step.num_tokens, len(step.slot_mapping)) == ([0, 0], [16, 17], 33)
    cache.complete()
    cache.check()


@pytest.mark.parametrize("policy", ["lru", "priority", "adaptive"])
def test_every_policy_evicts(small, policy):
    cache = PrefixCache(small(num_blocks=6), policy=policy)
    for start in range(0, 1000, 100):
        tokens = list(range(start, start + 40))
        cache.insert(tokens, rows(cache, tokens), rows(cache, tokens))
        cache.check()
    stats = cache.get_stats()
    assert stats["evicted_blocks"] >= 10
    assert stats["used_blocks"] + stats["cached_blocks"] + stats["reserved_blocks"] + stats["free_blocks"] == 6


def test_priority_keeps_what_was_found_where_lru_does_not(small):
    kept = {}
    for policy in ("lru", "priority"):
        cache = PrefixCache(small(num_blocks=8), policy=policy)
        popular = list(range(16))
        cache.insert(popular, rows(cache, popular), rows(cache, popular))
        seq, _ = cache.admit([*popular, 1])
        cache.free(seq)
        for start in range(100, 900, 100):
            tokens = list(range(start, start + 16))
            cache.insert(tokens, rows(cache, tokens), rows(cache, tokens))
        kept[policy] = cache.lookup([*popular, 1]).tokens
    assert kept == {"lru": 0, "priority": 16}


def test_an_unknown_policy_is_refused_with_the_names_there_are(small):
    with pytest.raises(ValueError, match="lru, priority or adaptive"):
        PrefixCache(small(), policy="fifo")


def test_pins_keep_a_prefix(small):
    cache = PrefixCache(small(num_blocks=8))
    tokens = list(range(32))
    with pytest.raises(RuntimeError, match="cached"):
        cache.pin(tokens)
    cache.insert(tokens, rows(cache, tokens), rows(cache, tokens))
    pin, kept = cache.pin(tokens)
    assert kept == 32 and cache.evict(8) == 0
    cache.unpin(pin)
    assert cache.evict(8) == 2
    with pytest.raises(KeyError):
        cache.unpin(pin)


def test_a_reserve_is_for_those_that_run(small):
    cache = PrefixCache(small(num_blocks=4), reserve=1)
    seq, _ = cache.admit(range(60))
    with pytest.raises(RuntimeError, match="Need 4 blocks, only 3 available"):
        cache.schedule(seq)
    cache.schedule(seq, running=True)
    cache.complete()


def test_a_sequence_over_its_limit_is_refused(small):
    cache = PrefixCache(small(), sequence_limit=2)
    with pytest.raises(RuntimeError, match="limit"):
        cache.admit(range(40))


def test_two_threads_cannot_have_a_step_each(small):
    cache = PrefixCache(small())
    a, _ = cache.admit(range(20))
    b, _ = cache.admit(range(100, 120))
    cache.schedule(a)
    raised = []

    def other():
        for misuse in (lambda: cache.schedule(b), lambda: cache.free(a), lambda: cache.fork(a)):
            try:
                misuse()
            except RuntimeError as error:
                raised.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert len(raised) == 3
    cache.complete()
    with pytest.raises(RuntimeError, match="no step is open"):
        cache.complete()
    cache.check()


def test_threads_share_a_cache(small):
    cache = PrefixCache(small(num_blocks=256, num_layers=1))
    turn, errors = threading.Lock(), []

    def work(base):
        try:
            for n in range(60):
                tokens = [*range(48), base, n, n]
                seq, _ = cache.admit(tokens)
                cache.lookup(tokens)
                with turn:
                    fill(cache, seq)
                    assert_holds(cache, seq)
                cache.free(seq)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(100 + i,)) for i in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert errors == [] and cache.get_stats()["used_blocks"] == 0
    cache.check()


def test_a_freed_sequence_is_gone(small):
    cache = PrefixCache(small())
    seq, _ = cache.admit(range(20))
    cache.free(seq)
    uses = [
        lambda: cache.free(seq),
        lambda: cache.fork(seq),
        lambda: cache.append(seq, 1),
        lambda: cache.schedule(seq),
        lambda: cache.read(seq, 0),
        lambda: cache.block_tables([seq]),
        lambda: cache.get_slot_mappings([seq], [0], [1]),
        lambda: cache.num_tokens(seq),
    ]
    for use in uses:
        with pytest.raises(KeyError, match="freed or never admitted"):
            use()


def test_tokens_that_are_none_are_refused(small):
    cache = PrefixCache(small())
    with pytest.raises(ValueError, match="no token"):
        cache.admit([1, -1])
    with pytest.raises(TypeError):
        cache.admit([1.5])
    with pytest.raises(TypeError):
        cache.admit("text")
    with pytest.raises(ValueError, match="left to compute"):
        seq, _ = cache.admit([1, 2])
        cache.schedule(seq, 3)


def test_numbers_of_numpy_are_numbers(small):
    cache = PrefixCache(small())
    seq, _ = cache.admit(np.arange(5))
    cache.append(seq, np.int64(7))
    step = cache.schedule(np.int64(seq), np.int32(6))
    assert (step.num_tokens, len(step.slot_mapping)) == ([6], 6)
    cache.fail()
