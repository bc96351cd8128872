"""A short soak; `python tests/python/soak.py` runs a long one."""

from soak import soak


def test_mixed_requests_through_a_pool_far_too_small_say_what_they_say_alone():
    summary = soak(150)
    assert summary["preemptions"] > 0 and summary["pages_evicted"] > 0 and summary["prompt_tokens_cached"] > 0
    assert summary["read_and_equal"] > 100
    assert summary["pages"]["used"] == 0
