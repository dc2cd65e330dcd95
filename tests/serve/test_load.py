"""Some seconds of the mixed load of benchmarks/serve_load.py: no wrong answer, no error but those meant."""

import runpy
from pathlib import Path


def test_a_mixed_load_gives_no_wrong_answer(tmp_path: Path) -> None:
    benchmark = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "serve_load.py"))
    load = benchmark["mixed"](tmp_path, seconds=3, clients=16)
    assert not load.problems
    assert load.counts["asked"] > 20
    assert load.counts["learned"] >= 4
    assert load.counts["forgotten"] >= 4
    assert load.counts["refused"] >= 40
