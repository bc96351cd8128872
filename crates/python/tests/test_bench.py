"""The bench and the example run, and say what they should. How fast is not a test's business."""

import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parents[1]


def test_the_bench_prints_its_figures_as_json():
    command = [sys.executable, HERE / "benches" / "pure_python.py", "--repeats", "2", "--sequences", "8", "--json", "-"]
    rows = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert len(rows) == 4
    for row in rows:
        assert row["speedup"] == row["document"] / row["octavo"]


def test_both_sides_of_the_bench_compute_the_same():
    sys.path.insert(0, str(HERE / "benches"))
    import pure_python

    for kind in (pure_python.Decode, pure_python.Prefill):
        case = kind(8)
        offsets = [[slot % 16 for slot in slots.tolist()] for slots in case.document()]
        assert [[slot % 16 for slot in slots.tolist()] for slots in case.one_by_one()] == offsets
        assert [slot % 16 for slot in case.octavo().tolist()] == sum(offsets, [])
    for kind in (pure_python.Sequences, pure_python.Blocks):
        case = kind(8)
        case.document(), case.one_by_one(), case.octavo()
        books = [getattr(side, "allocator", side) for side in (case.theirs, case.mine)]
        assert [blocks.num_free for blocks in books] == [256, 256]


def test_the_example_watches_the_pool():
    sys.path.insert(0, str(HERE / "examples"))
    import pool_use

    import octavo

    with octavo.LLM(device="cpu", num_pages=128, max_batch=8, max_len=1024) as llm:
        samples = pool_use.measure(llm, [4, 4], 0.05)
    for sample in samples:
        kinds = (sample[f"{kind}_blocks"] for kind in ("used", "cached", "reserved", "free"))
        assert sum(kinds) == sample["total_blocks"]
    assert max(sample["used_blocks"] for sample in samples) > 20
    assert samples[-1]["used_blocks"] == 0 and samples[-1]["requests_running"] == 0
