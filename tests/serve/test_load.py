"""Some seconds of the mixed load of benchmarks/trust/serve_load.py: no wrong answer, no error but those meant."""

import json
import re
import runpy
from pathlib import Path


def test_a_mixed_load_gives_no_wrong_answer(tmp_path: Path) -> None:
    benchmark = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "trust" / "serve_load.py"))
    load = benchmark["mixed"](tmp_path, seconds=3, clients=16)
    assert not load.problems
    assert load.counts["asked"] > 20
    assert load.counts["learned"] >= 4
    assert load.counts["forgotten"] >= 4
    assert load.counts["refused"] >= 40


def test_the_table_on_the_page_is_that_of_the_results() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "serve.md").read_text()
    rows = json.loads((root / "results" / "bench" / "serve-2-cores.json").read_text())["batching"]
    columns = ("tasks", "clients", "one by one, requests/s", "in batches, requests/s", "ratio")
    shown = re.findall(
        r"^\| ([\d,]+) \| [a-zA-Z, -]+ \| (\d+) \| ([\d.,]+) \| ([\d.,]+) \| ([\d.]+) \|$", page, flags=re.MULTILINE
    )
    assert shown == [tuple(f"{row[column]:,}" for column in columns) for row in rows]
