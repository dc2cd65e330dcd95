"""The code keeps to docs/architecture.md: its packages, their order, short walks, one meaning for each public name."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIBRARY, PAPER = ROOT / "src" / "supsup", ROOT / "src" / "supsup_paper"
PAGE = ROOT / "docs" / "architecture.md"
FACES = ("cluster", "serve", "sklearn", "cli")
MOST_LINES = 22_000
MOST_PACKAGES, MOST_LINES_OF_A_MODULE, MOST_LINES_OF_THE_PAGE = 15, 600, 120


def packages() -> set[str]:
    return {path.name for path in LIBRARY.iterdir() if (path / "__init__.py").exists()}


def page_order() -> list[str]:
    """Packages in the order of the page's table, the lowest first."""
    return re.findall(r"^\| `(\w+)/` \|", PAGE.read_text(), flags=re.MULTILINE)


def imported_modules(path: Path) -> Iterator[tuple[str, int]]:
    """What a file imports of ours, with the line: inside functions and under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively; imports are absolute here"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from ((name, node.lineno) for name in names if name.split(".")[0].startswith("supsup"))


def edges() -> dict[tuple[str, str], list[str]]:
    """(package, package that it imports) → the places that do so."""
    known, found = packages(), defaultdict(list)
    for path in sorted(LIBRARY.rglob("*.py")):
        place = path.relative_to(LIBRARY).as_posix()
        package = place.partition("/")[0]
        for name, line in imported_modules(path):
            parts = name.split(".")
            other = parts[1] if parts[0] == "supsup" and len(parts) > 1 else parts[0]
            if package in known and other in known and other != package:
                found[package, other].append(f"{place}:{line}")
    return dict(found)


def test_the_page_lists_every_package() -> None:
    """A newcomer finds each package on the page, and none that is gone."""
    assert sorted(page_order()) == sorted(packages())
    assert len(packages()) <= MOST_PACKAGES
    assert {path.name for path in LIBRARY.glob("*.py")} == {"__init__.py", "__main__.py"}
    assert len(PAGE.read_text().splitlines()) <= MOST_LINES_OF_THE_PAGE, "the page should fit two screens"


def test_imports_go_down() -> None:
    """So there is an order to read packages in; each exception is on the page with its reason."""
    order = page_order()
    upwards = {edge: places for edge, places in edges().items() if order.index(edge[1]) > order.index(edge[0])}
    allowed = set(re.findall(r"^- `(\w+)` → `(\w+)`: ", PAGE.read_text(), flags=re.MULTILINE))
    wrong = [f"{a} imports {b}: {', '.join(places)}" for (a, b), places in upwards.items() if (a, b) not in allowed]
    assert not wrong, "\n".join(wrong)
    assert allowed <= set(upwards), f"nothing uses these exceptions any more: {allowed - set(upwards)}"


def test_the_library_does_not_import_the_reproduction() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in LIBRARY.rglob("*.py")
        for name, line in imported_modules(path)
        if name.startswith("supsup_paper")
    ]
    assert not found, found


@pytest.mark.parametrize("face", FACES)
def test_faces_use_public_names_only(face: str) -> None:
    """A face can be rewritten without the library, and the library without its faces."""
    private = []
    for path in sorted((LIBRARY / face).rglob("*.py")):
        tree, place = ast.parse(path.read_text()), path.relative_to(LIBRARY).as_posix()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("supsup."):
                private += [f"{place}:{node.lineno} {a.name}" for a in node.names if a.name.startswith("_")]
            elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
                owner = node.value.id if isinstance(node.value, ast.Name) else ast.unparse(node.value)
                if "model" in owner.split(".")[-1]:
                    private.append(f"{place}:{node.lineno} {owner}.{node.attr}")
    assert not private, "\n".join(private)


def test_no_public_name_is_defined_twice() -> None:
    """A name has one meaning in the whole tree."""
    places = defaultdict(list)
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(ROOT / "src").as_posix())
    twice = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert not twice, "\n".join(f"{name}: {', '.join(paths)}" for name, paths in twice.items())


def test_the_library_stays_small() -> None:
    lines = {path: path.read_text().count("\n") for path in LIBRARY.rglob("*.py")}
    assert sum(lines.values()) <= MOST_LINES
    long = {path.relative_to(LIBRARY).as_posix(): count for path, count in lines.items()}
    assert not {path: count for path, count in long.items() if count > MOST_LINES_OF_A_MODULE}


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_files_named_on_a_page_are_there(name: str) -> None:
    """A file that moved would lead a reader nowhere."""
    named = re.findall(r"`([\w-]+(?:/[\w-]+)*(?:/|\.py))`", (ROOT / name).read_text())
    places = (LIBRARY, PAPER, ROOT, ROOT / "src")
    assert not [path for path in named if not any((place / path).exists() for place in places)]
