"""What must end in an exception, and never in a crash."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from conftest import idle
from octavo import LLM, SamplingParams
from octavo.attention import paged_attention
from octavo.kv_cache import BlockAllocator, CacheConfig, KVCacheManager, PrefixCache

LONG = SamplingParams(max_tokens=4000, ignore_eos=True)


@pytest.mark.parametrize("wrong", ["float64", "int64", "complex64", "nonsense", 7, None, np.dtype("float64")])
def test_a_dtype_that_no_cache_has_is_refused(wrong):
    if wrong is None:
        # NumPy takes None for float64.
        wrong = np.float64
    with pytest.raises(TypeError):
        CacheConfig(4, dtype=wrong)


@pytest.mark.parametrize(
    "field", ["num_blocks", "block_size", "num_layers", "num_kv_heads", "head_dim"]
)
@pytest.mark.parametrize("value", [0, -1, 2**32])
def test_geometries_that_cannot_be_are_refused(small, field, value):
    with pytest.raises((ValueError, OverflowError)):
        KVCacheManager(small(**{field: value}))


def test_settings_below_zero_are_named(small):
    for name in ("reserve", "sequence_limit", "cached_limit", "pin_quota"):
        for wrong in (-1, 2**32):
            with pytest.raises(ValueError, match=f"{name} is {wrong}"):
                PrefixCache(small(), **{name: wrong})
    with pytest.raises(ValueError, match="head_dim is -1"):
        small(head_dim=-1)
    with pytest.raises(ValueError, match="window is -1"):
        paged_attention(np.ones((1, 2, 4), dtype=np.float32), KVCacheManager(small()), [[0]], [1], window=-1)


def test_sequences_and_pins_below_zero_are_not_there(small):
    cache = PrefixCache(small())
    one = [cache.fork, cache.free, cache.tokens, cache.schedule, cache.unpin, lambda seq: cache.append(seq, 5)]
    uses = [*one, lambda seq: cache.block_tables([seq]), lambda seq: cache.get_slot_mappings([seq], [0], [1])]
    for use in uses:
        with pytest.raises(KeyError, match="there is no (sequence|pin) -1"):
            use(-1)


def test_an_empty_array_is_an_empty_list(small):
    cache, none = KVCacheManager(small()), np.array([])
    cache.allocate_sequences(none, none)
    assert cache.free_sequences(none) == 0
    assert cache.block_tables(none).shape == (0, 0)
    assert cache.get_slot_mappings(none, none, none).shape == (0,)
    cache.write(0, none, np.ones((0, 2, 4)), np.ones((0, 2, 4)))


def test_memory_beyond_the_address_space_is_refused(small):
    with pytest.raises((MemoryError, ValueError)):
        KVCacheManager(small(num_blocks=2**27, num_layers=2**12, num_kv_heads=2**12, head_dim=2**12))


def test_books_beyond_all_memory_are_refused(small):
    for make in (
        lambda: BlockAllocator(2**31 - 1),
        lambda: KVCacheManager(small(num_layers=2**32 - 1, num_kv_heads=1, head_dim=1)),
    ):
        with pytest.raises((MemoryError, ValueError)):
            make()


def test_a_cache_elsewhere_is_refused():
    with pytest.raises(RuntimeError, match="device='cpu'"):
        KVCacheManager(CacheConfig(4, dtype="float16"))


def test_wrong_rows_are_refused(small):
    cache = KVCacheManager(small())
    cache.allocate_sequence(0, 3)
    slots, good = cache.get_slot_mapping(0, 0, 3), np.ones((3, 2, 4), dtype=np.float32)
    wrong = [
        (ValueError, (0, slots, good[:2], good)),
        (ValueError, (0, slots, good, good[:, :1])),
        (ValueError, (0, slots, good, good.reshape(3, 8))),
        (TypeError, (0, slots, good.astype(np.int32), good)),
        (TypeError, (0, slots.astype(np.float32), good, good)),
        (TypeError, (0, np.stack([slots, slots]), good, good)),
        (IndexError, (2, slots, good, good)),
        (IndexError, (-1, slots, good, good)),
        (IndexError, (0, [0, 1, 256], good, good)),
        (IndexError, (0, [0, 1, -1], good, good)),
    ]
    for kind, arguments in wrong:
        with pytest.raises(kind):
            cache.write(*arguments)
    assert (cache.layers == 0).all()


def test_positions_that_are_not_there_take_no_memory(small):
    cache = KVCacheManager(small())
    cache.allocate_sequence(5, 20)
    with pytest.raises(IndexError):
        cache.get_slot_mappings([5] * 8, [0] * 8, [2**32 - 1] * 8)


def test_a_freed_sequence_is_gone(small):
    cache = KVCacheManager(small())
    cache.allocate_sequence(5, 20)
    cache.free_sequence(5)
    uses = [
        lambda: cache.extend_sequence(5, 1),
        lambda: cache.get_slot_mapping(5, 0, 1),
        lambda: cache.get_slot_mappings([5], [0], [1]),
        lambda: cache.block_tables([5]),
        lambda: cache.read(5, 0),
        lambda: cache.sequence_tables[5],
        lambda: cache.extend_sequences([5], [1]),
    ]
    for use in uses:
        with pytest.raises(KeyError, match="sequence 5"):
            use()


def test_counts_that_are_none_are_refused(small):
    cache = KVCacheManager(small())
    for wrong in (-1, 2**32):
        with pytest.raises(ValueError):
            cache.allocate_sequence(0, wrong)
    with pytest.raises(TypeError):
        cache.allocate_sequence(0, 1.5)
    with pytest.raises(TypeError):
        cache.allocate_sequences([0], np.array([1.5]))
    with pytest.raises(ValueError, match="2 sequences and 1"):
        cache.allocate_sequences([0, 1], [1])
    with pytest.raises(IndexError):
        cache.read(0, 0) if cache.allocate_sequence(0, 1) is None else cache.read(0, 0, 0, 17)


def test_a_generation_is_waited_for_by_one_thread(llm):
    stream = llm.stream("The Vec type is", LONG)
    next(stream)
    ready, raised = threading.Barrier(2), []

    def pull():
        ready.wait()
        try:
            for _ in stream:
                pass
        except RuntimeError as error:
            raised.append(str(error))
            stream.cancel()

    threads = [threading.Thread(target=pull) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(raised) == 1 and "one thread at a time" in raised[0]


def test_threads_share_an_engine(llm):
    want = [output.token_ids for output in llm.generate(["The Vec type is", "A String is"], SamplingParams(max_tokens=20))]
    got, errors = {}, []

    def ask(i):
        try:
            prompt = ["The Vec type is", "A String is"][i % 2]
            got[i] = llm.generate(prompt, SamplingParams(max_tokens=20))[0].token_ids
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert errors == [] and all(got[i] == want[i % 2] for i in range(16))


def test_a_closed_engine_says_so():
    llm = LLM()
    llm.close()
    llm.close()
    for use in (lambda: llm.generate("a"), lambda: llm.stream("a"), lambda: llm.drop_prefixes()):
        with pytest.raises(RuntimeError, match="closed|stopped"):
            use()


def test_closing_while_another_thread_generates_ends_it_with_an_exception():
    llm, raised, begun = LLM(), [], threading.Event()

    def ask():
        try:
            llm.generate(["The Vec type is"] * 4, LONG, progress=lambda *_: begun.set())
        except RuntimeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    begun.wait()
    llm.close()
    thread.join(20)
    assert not thread.is_alive() and len(raised) == 1 and "shutting down" in raised[0]


@pytest.fixture
def ctrl_c():
    """Heard, even where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_generate_and_leaves_nothing_behind(ctrl_c):
    with LLM() as llm:

        def press(done, total, tokens):
            if tokens > 5:
                os.kill(os.getpid(), signal.SIGINT)

        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                llm.generate(["The Vec type is"] * 8, LONG, progress=press)
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["The Vec type is"] * 8, LONG)
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            for _ in llm.stream("The Vec type is", LONG):
                pass
        assert idle(llm) == 0
        assert llm.generate("The Vec type is", SamplingParams(max_tokens=3))[0].text


def run(program):
    """Another interpreter; how it ended, and what it said."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


BEGIN = """
    import threading, octavo, time, sys, os
    LONG = octavo.SamplingParams(max_tokens=4000, ignore_eos=True)
    llm = octavo.LLM()
    begun = threading.Event()
    def ask():
        try:
            llm.generate(["The Vec type is"] * 8, LONG, progress=lambda *_: begun.set())
        except BaseException as error:
            print("raised", type(error).__name__, flush=True)
"""


@pytest.fixture
def silent_hub():
    """The address of a hub that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_ctrl_c_ends_a_download_that_does_not_begin(silent_hub, tmp_path):
    code, out, err = run(f"""
    import os, signal, threading, time
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(HF_ENDPOINT={silent_hub!r}, HF_HOME={str(tmp_path)!r})
    import octavo
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    try:
        octavo.LLM("some/model")
    except KeyboardInterrupt:
        print(time.monotonic() - begun < 3)
""")
    assert (code, out) == (0, "True\n"), (code, out, err)


def test_a_download_that_fails_says_why(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed}")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(RuntimeError, match="check the network.*Connection refused"):
        LLM("some/model")


def test_options_are_checked_before_anything_is_downloaded(silent_hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", silent_hub)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="policy"):
        LLM("some/model", policy="fifo")


def test_the_interpreter_ends_while_a_daemon_thread_generates():
    for _ in range(3):
        code, out, err = run(BEGIN + """
    threading.Thread(target=ask, daemon=True).start()
    begun.wait()
    print("end", flush=True)
""")
        assert (code, err) == (0, ""), (code, out, err)
        assert out.startswith("end")


def test_the_interpreter_ends_while_a_stream_and_a_loop_are_open():
    code, out, err = run(BEGIN + """
    import asyncio
    stream = llm.stream("The Vec type is", LONG)
    next(stream)
    async def leave():
        await llm.astream("The Vec type is", LONG).__anext__()
        return asyncio.create_task(llm.agenerate("The Vec type is", LONG))
    asyncio.run(leave())
    print("end")
""")
    assert (code, out) == (0, "end\n"), (code, out, err)


def test_sys_exit_with_a_generating_daemon_keeps_its_status():
    code, out, err = run(BEGIN + """
    threading.Thread(target=ask, daemon=True).start()
    begun.wait()
    sys.exit(7)
""")
    assert (code, err) == (7, ""), (code, out, err)


def test_an_engine_that_nobody_holds_any_more_ends_by_itself():
    code, out, err = run(BEGIN + """
    llm.generate("The Vec type is")
    def threads():
        return [open(f"/proc/self/task/{t}/comm").read().strip() for t in os.listdir("/proc/self/task")]
    assert "octavo-engine" in threads()
    del llm
    for _ in range(200):
        if "octavo-engine" not in threads(): break
        time.sleep(0.05)
    print("octavo-engine" in threads())
""")
    assert (code, out) == (0, "False\n"), (code, out, err)


def test_a_fork_says_that_the_engine_is_not_its_own():
    code, out, err = run(BEGIN + """
    child = os.fork()
    if child == 0:
        try:
            llm.generate("a")
        except RuntimeError as error:
            os._exit(3 if "another process" in str(error) else 4)
        os._exit(5)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), llm.generate("The Vec type is", octavo.SamplingParams(max_tokens=2))[0].token_ids != [])
""")
    assert (code, out) == (0, "3 True\n"), (code, out, err)


def test_a_fork_is_not_told_what_comes_of_a_stream():
    code, out, err = run(BEGIN + """
    stream = llm.stream("The Vec type is", octavo.SamplingParams(max_tokens=2000, ignore_eos=True))
    next(stream)
    child = os.fork()
    if child == 0:
        try:
            for _ in stream: pass
        except RuntimeError as error:
            os._exit(3 if "another process" in str(error) else 4)
        os._exit(5)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    assert (code, out) == (0, "3\n"), (code, out, err)


def test_a_fork_has_attention_of_its_own():
    code, out, err = run("""
    import os, numpy as np
    from octavo.attention import paged_attention
    def attend():
        cache = np.ones((64, 2, 16, 4, 64), dtype=np.float32)
        return paged_attention(np.ones((64, 8, 64), dtype=np.float32), cache, [[i] for i in range(64)], [16] * 64)
    attend()
    child = os.fork()
    if child == 0:
        os._exit(0 if (attend() == 1).all() else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    assert (code, out) == (0, "0\n"), (code, out, err)
