"""The campaign of wrong changes: a kind that is never made, or made somewhere else, would flatter the tests."""

import ast
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "trust" / "mutants.py"))


def programs(source: str) -> set[str]:
    """All mutants of a piece of source, as programs."""
    found = SCRIPT["mutants_of"]("piece", source.encode())
    return {ast.unparse(ast.parse(mutant.applied(source.encode()))) for mutant in found}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {"a <= b"}),
        ("a == b != c", {"a != b != c", "a == b == c"}),
        ("a is None", {"a is not None"}),
        ("a + b", {"a - b"}),
        ("a @ b", set()),
        ("x = a and b", {"x = a or b"}),
        ("x = not a", {"x = a"}),
        ("x = -a", {"x = a"}),
        ("x = 3", {"x = 4", "x = 3 * 2"}),
        ("x = 1", {"x = 2", "x = 0"}),
        ("x = 0", {"x = 1"}),
        ("x = 1e-4", {"x = 0.0001 * 2"}),
        ("x = 0.0", {"x = 1.0"}),
        ("x = True", {"x = False"}),
        ("x = min(a, b)", {"x = max(a, b)"}),
        ("x = a.argmax(b)", {"x = a.argmin(b)"}),
        ("x += a", {"pass"}),
        ("x[a] = b", {"pass"}),
        ("a(b)", {"pass"}),
        ("x = [a] * b", set()),
    ],
)
def test_every_kind_of_change_is_made(source: str, expected: set[str]) -> None:
    assert programs(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "def f(x: int | None = None) -> Literal[3]: ...",
        "@given(max_examples=3)\nclass A: ...",
        "raise ValueError(f'{a + 1}')",
        "assert a is not None",
        "x: Callable[[int], 'A'] = b",
        '"""3 < 4"""',
    ],
)
def test_types_messages_and_decorators_are_left_alone(source: str) -> None:
    """They decide no answer: a survivor there would say nothing about the tests."""
    assert programs(source) == set()


def test_changes_are_made_where_they_belong() -> None:
    """Positions are of bytes: letters such as α before a change must not move it."""
    source = "x = 'α' + y  # µ\nz = (a <\n     b)\n"
    assert programs(source) == {"x = 'α' - y\nz = a < b", "x = 'α' + y\nz = a <= b"}


def test_every_module_of_the_table_has_its_tests() -> None:
    for module in SCRIPT["MODULES"]:
        source = SCRIPT["ROOT"] / "src" / f"{module}.py"
        assert source.exists()
        assert all(test.exists() for test in SCRIPT["tests_of"](module)), module
    sources = "".join(path.read_text(encoding="utf-8") for path in (SCRIPT["ROOT"] / "src").rglob("*.py"))
    assert [piece for piece in SCRIPT["WHY"] if piece not in sources] == [], "an explanation of a line that is gone"


def test_the_summary_takes_nothing_out() -> None:
    """A score without the survivors that were explained would rise with every explanation; the blind one stays."""
    records: list[dict[str, Any]] = [
        {"module": "m", "source": "a", "outcome": outcome} for outcome in ("caught", "caught", "survived", "timed out")
    ]
    records[0]["at first"] = "survived"
    assert SCRIPT["summary"](records) == {
        "tried": 4, "caught": 2, "survived": 1, "timed out": 1, "explained": 0, "noticed %": 75.0,
        "noticed at first %": 50.0,
    }  # fmt: skip


def test_what_a_test_noticed_holds_while_that_test_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a new test survivors alone are tried again; after another module, everything of it."""
    names = SCRIPT["digest_of"].__globals__
    monkeypatch.setitem(names, "ROOT", tmp_path)
    monkeypatch.setitem(names, "MODULES", {"m": ["test_m.py"]})
    module, tests = tmp_path / "src" / "m.py", tmp_path / "tests" / "test_m.py"
    for path, text in ((module, "a = 1"), (tests, "def test_a(): ...")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    mutant, is_valid = SCRIPT["Mutant"]("m", 1, 4, 5, "1", "2"), SCRIPT["is_valid"]
    caught = SCRIPT["record_of"](mutant, "caught", "test_m.py::test_a[3]", 1.0)
    survived = SCRIPT["record_of"](mutant, "survived", "", 1.0)
    assert is_valid(caught)
    assert is_valid(survived)
    tests.write_text("def test_b(): ...\ndef test_a(): ...")
    assert is_valid(caught)
    assert not is_valid(survived)
    for text in ("@mark\ndef test_a(): ...", "def test_a(): assert a", "def test_b(): ..."):
        tests.write_text(text)
        assert not is_valid(caught), text
    tests.write_text("def test_a(): ...")
    assert is_valid(survived)
    module.write_text("a = 2")
    assert not is_valid(caught)
    assert not is_valid(survived)


def test_the_score_on_the_page_is_that_of_the_results() -> None:
    found = json.loads((SCRIPT["ROOT"] / "results" / "mutants.json").read_text(encoding="utf-8"))
    page = " ".join((SCRIPT["ROOT"] / "CONTRIBUTING.md").read_text(encoding="utf-8").split())
    tried, survived, explained = (found["summary"].get(name, 0) for name in ("tried", "survived", "explained"))
    noticed = f"{tried - survived} are noticed ({found['summary']['noticed %']} %) and {explained} explained"
    assert f"Of {tried} drawn with seed {found['seed']}, {noticed}" in page
    assert f"blind draws had {found['summary']['noticed at first %']} %" in page
    again = SCRIPT["summary"](found["mutants"])  # explanations go with the lines that they explain
    assert found["summary"] | {"explained": 0} == again | {"explained": 0}


def test_of_wrong_changes_drawn_blind_85_of_100_are_noticed() -> None:
    found = json.loads((SCRIPT["ROOT"] / "results" / "mutants.json").read_text(encoding="utf-8"))
    assert found["summary"]["tried"] >= 120
    assert found["summary"]["noticed at first %"] >= 85
    assert found["summary"]["noticed %"] >= found["summary"]["noticed at first %"]
    assert {record["module"] for record in found["mutants"]} <= set(found["modules"])
