"""The code on the pages for users runs as it stands."""

import importlib
import json
import re
import runpy
from dataclasses import fields
from pathlib import Path

import pytest

from supsup import Prediction, SupSup, nets

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code_of(page), str(page), "exec"), {"__name__": "page"})


def test_members_that_the_pages_name_exist() -> None:
    """`model.…` and `Prediction.…` in the text, which no code block would notice."""
    model = SupSup(nets.FullyConnected((4, 4, 2)))
    answer = {field.name for field in fields(Prediction)} | set(dir(Prediction))
    for page in PAGES:
        text = page.read_text()
        assert [name for name in re.findall(r"`model\.(\w+)(?!\.|\w)[(`]", text) if not hasattr(model, name)] == [], (
            page.name
        )
        assert [name for name in re.findall(r"`Prediction\.(\w+)", text) if name not in answer] == [], page.name


def code_of(page: Path) -> str:
    """The Python code of a page, each line where it is on the page: errors name the line."""
    parts = re.split(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return "".join(part if number % 2 else "\n" * (part.count("\n") + 1) for number, part in enumerate(parts))


def test_the_figures_on_hopfield_are_those_of_the_results() -> None:
    """`python -m benchmarks hopfield_tables` puts them right."""
    page = Path(__file__).parents[1] / "docs" / "hopfield.md"
    script = Path(__file__).parents[1] / "benchmarks" / "pages" / "hopfield_tables.py"
    assert runpy.run_path(str(script))["with_tables"](page.read_text()) == page.read_text()


def test_the_zoo_on_the_page_is_that_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m benchmarks zoo --table` puts it right. Masks without a recipe keep up, and on no row far behind."""
    root = Path(__file__).parents[1]
    monkeypatch.syspath_prepend(str(root))
    zoo = importlib.import_module("benchmarks.networks.zoo")
    rows = json.loads((root / "results" / "zoo.json").read_text())["rows"]
    page = (root / "docs" / "own-network.md").read_text()
    assert zoo.table(rows) in page
    assert zoo.with_table(page, rows) == page
    assert list(rows) == list(zoo.ROWS)
    behind = [row["ordinary %"] - row["SupSup %"] for row in rows.values()]
    assert sum(points <= 2 for points in behind) >= 10
    assert max(behind) < 5


def test_the_figures_of_photographs_are_those_of_the_results() -> None:
    """`python -m benchmarks photographs` measures them."""
    root = Path(__file__).parents[1]
    page = (root / "docs" / "command-line.md").read_text()
    for row in json.loads((root / "results" / "photographs-2-cores.json").read_text())["tiny-imagenet"].values():
        name, cpu = row["network"].partition("(")[0], row["seconds of the CPU"]
        (line,) = re.findall(rf"^\| `{name}`, .*\| \d.*$", page, flags=re.MULTILINE)
        assert line.endswith(f"| {row['right, %']} | {cpu:.0f} | {row['bytes']:,} |")


def test_the_speed_of_the_zoo_on_the_page_is_that_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m benchmarks zoo_speed --table` puts it right."""
    root = Path(__file__).parents[1]
    monkeypatch.syspath_prepend(str(root))
    speed = importlib.import_module("benchmarks.networks.zoo_speed")
    page = (root / "docs" / "speed.md").read_text()
    assert speed.table(speed.committed()) in page
    assert speed.with_table(page, speed.committed()) == page


def test_the_figures_on_trust_are_those_of_the_results() -> None:
    """`python -m benchmarks trust_tables` puts them right."""
    page = Path(__file__).parents[1] / "docs" / "trust.md"
    script = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "pages" / "trust_tables.py"))
    assert script["with_tables"](page.read_text()) == page.read_text()
    for part in script["present"]():
        assert script["read"](part)["sound"], part
    assert script["read"]("speed")["slower than allowed"] == []


def test_the_table_of_unannounced_tasks_is_that_of_the_results() -> None:
    root = Path(__file__).parents[1]
    page = (root / "docs" / "scenarios.md").read_text()
    shown = re.findall(r"^\| (\d+) \|.*\|$", page, flags=re.MULTILINE)
    assert shown == ["20", "60", "300"]
    for row in json.loads((root / "results" / "unannounced-rule.json").read_text())["rows"]:
        if str(row["masks"]) in shown:
            (new, *_, most), (low, *_, high) = row["new"]["k·ν"], row["known"]["k·ν"]
            first = f"| {row['masks']} | {new:.3f}–{most:.3f} | {low:.2f}–{high:.2f} "
            (new, *_, most), (low, *_, high) = row["new"]["deviations"], row["known"]["deviations"]
            assert f"{first}| {new:.1f}–{most:.1f} | {low:.1f}–{high:.1f} |" in page


def test_the_figures_on_scale_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m benchmarks simulation` puts them right."""
    root = Path(__file__).parents[1]
    monkeypatch.syspath_prepend(str(root))
    scale = importlib.import_module("benchmarks.scale.simulation")
    found, page = json.loads((root / "results" / "bench" / "scale.json").read_text()), (root / "docs" / "scale.md")
    assert scale.with_tables(page.read_text(), found) == page.read_text()
    assert scale.tables(found) in page.read_text()
    rates = scale.rates_measured()
    assert found["rates"]["driver"] == rates.driver
    assert [scale.costs(row["tasks"], rates) for row in found["costs"]] == found["costs"]
    assert scale.rows(rates)[:1] == found["rows"][:1]


def test_a_simulated_cluster_is_as_fast_as_its_parts_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are made with it: GPUs that are never waited for, one commit after the other, and groups that are lost."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    scale = importlib.import_module("benchmarks.scale.simulation")
    assert scale.simulated(40, 4, 8.0, 0.0, scale.CALM, 0) == (80.0, 0)
    seconds, _ = scale.simulated(40, 4, 8.0, 4.0, scale.CALM, 0)  # four GPUs make two groups while one is committed
    assert 160 <= seconds <= 172
    dying = scale.Conditions(hours=1 / 60, repair=30)
    seconds, lost = scale.simulated(400, 4, 8.0, 0.0, dying, 0)
    assert lost > 20
    assert seconds > 800 + 30 * lost / 4


def test_the_costs_of_a_request_are_those_of_the_results() -> None:
    root = Path(__file__).parents[1]
    page = (root / "docs" / "serve.md").read_text()
    rows = json.loads((root / "results" / "bench" / "serve-costs-2-cores.json").read_text())["rows"]
    for tasks, *costs, some, many in (row.values() for row in rows):
        assert f"| {tasks:,} | {' | '.join(map(str, costs))} | {some} and {many} |" in page


def test_the_hours_of_imagenet_are_those_of_the_results() -> None:
    """`python -m benchmarks imagenet_rate` measures them."""
    root = Path(__file__).parents[1]
    page = (root / "docs" / "reproduce.md").read_text()
    found = json.loads((root / "results" / "bench" / "imagenet-rate-h200.json").read_text())
    rates, hours = found["images per second"], found["hours for one budget of imagenet-gg"]
    rows = {
        "from JPEG files, as it runs": "from files",
        "files only decoded": "files only decoded",
        "images in memory, cropped on the GPU": "from memory",
    }
    for shown, name in rows.items():
        assert f"| {shown} | {rates[name]:,.0f} | {hours[name]:.1f} |" in page
    assert f"about **{3 * hours['from files']:.0f} hours**" in page
    alone, cores = found["images per second that one core decodes"], found["cores"]
    page = " ".join(page.split())
    assert f"one core decodes {alone:.0f} images a second, so {cores} could do {cores * alone:,.0f}" in page


def test_the_steps_of_rivals_are_those_of_the_results() -> None:
    """`python -m benchmarks residual_baselines` measures them."""
    root = Path(__file__).parents[1]
    page = (root / "docs" / "speed.md").read_text()
    found = json.loads((root / "results" / "bench" / "residual-rivals-h200.json").read_text())
    cases = [row for rows in found.values() if isinstance(rows, list) for row in rows]
    assert len(cases) == 5
    for row in cases:
        digits = 1 if "ResNet-50" in row["case"] else 2
        ours, graphs = (f"{row[name]:.{digits}f}" for name in ("ms per task-step", "captured, ms per task-step"))
        assert f"| {row['tasks']} | {ours} | {graphs} |" in page
