"""The tests of the Python package. `cargo xtask test --only wheel` builds it and runs them."""

import importlib.util
import time

import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None

# These are about torch, or written with it.
collect_ignore = [] if HAS_TORCH else ["test_kv_cache.py", "test_document.py", "test_torch.py", "test_bench.py"]


@pytest.fixture(scope="session")
def llm():
    """The built-in model, for whoever only asks it something."""
    import octavo

    with octavo.LLM() as llm:
        yield llm


def idle(llm):
    """Waits until nothing runs, and says how many pages are used."""
    for _ in range(200):
        stats = llm.stats()
        if stats["requests_running"] == stats["requests_waiting"] == 0:
            llm.check()
            return llm.stats()["used_blocks"]
        time.sleep(0.01)
    raise AssertionError("it runs on")


def small(**changes):
    """A cache small enough to look through."""
    from octavo.kv_cache import CacheConfig

    geometry = dict(num_blocks=16, num_layers=2, num_kv_heads=2, head_dim=4, dtype="float32", device="cpu")
    return CacheConfig(**{**geometry, **changes})


@pytest.fixture(name="small")
def small_fixture():
    return small
