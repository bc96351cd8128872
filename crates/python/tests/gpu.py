"""The built-in model from Python on a GPU, against the CPU: run by hand where there is one, with the wheel installed or
unpacked (`python -m zipfile -e octavo-*.whl folder`, `PYTHONPATH=folder`), as `python gpu.py [device]`."""

import sys
import time
from collections.abc import Iterator

import octavo

PROMPTS = ["The `Vec` type is", "The `HashMap::entry` method", "fn main() {", "A `String` is made of bytes, and"]
LIKELIEST = octavo.SamplingParams(max_tokens=32, temperature=0.0)


def tokens(llm: octavo.LLM, prompts: list[str]) -> list[list[int]]:
    return [output.token_ids for output in llm.generate(prompts, LIKELIEST)]


def common(ours: list[int], theirs: list[int]) -> int:
    pairs = zip(ours, theirs, strict=False)
    differing: Iterator[int] = (at for at, (a, b) in enumerate(pairs) if a != b)
    return next(differing, min(len(ours), len(theirs)))


device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
with octavo.LLM(device="cpu") as cpu:
    expected = tokens(cpu, PROMPTS)

told: list[str] = []
began = time.monotonic()
options = {"device": device, "deterministic": True, "max_batch": 8, "max_len": 1024}
with octavo.LLM(progress=lambda what, done, total: told.append(f"{what} {done}/{total}"), **options) as llm:
    print(f"{llm.device}: loaded in {time.monotonic() - began:.1f} s; last told: {told[-1]}")
    together = tokens(llm, PROMPTS)
    alone = [tokens(llm, [prompt])[0] for prompt in PROMPTS]
    assert together == alone, "deterministic: neighbours change nothing"
    streamed = "".join(chunk.text for chunk in llm.stream(PROMPTS[0], LIKELIEST))
    assert streamed == llm.generate([PROMPTS[0]], LIKELIEST)[0].text, "a stream says the same"
    began = time.monotonic()
    many = llm.generate(PROMPTS * 16, octavo.SamplingParams(max_tokens=64, temperature=0.8))
    seconds = time.monotonic() - began
    count = sum(len(output.token_ids) for output in many)
    print(f"{len(many)} sampled prompts, {count} tokens, {count / seconds:.0f} tokens/s")
    print(f"{PROMPTS[0]!r} -> {streamed!r}")

same = [common(ours, theirs) for ours, theirs in zip(together, expected, strict=True)]
print(f"greedy tokens as on the CPU before they part: {same} of {[len(own) for own in expected]}")
# Rounding may decide between two tokens that are as likely, but not among the first.
assert all(count >= min(4, len(own)) for count, own in zip(same, expected, strict=True)), (together, expected)
