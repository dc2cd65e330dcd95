"""The rooms of the package are those of docs/architecture.md, and no room imports what that page does not allow.

`python tests/test_architecture.py` prints what each room imports now, in the page's own form.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "supsup"
PAGE = ROOT / "docs" / "architecture.md"
MOST_TOP_MODULES = 26
MOST_LINES = 400


def rooms() -> set[str]:
    """Folders and top-level modules, by their names."""
    return {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}


def room_of(module: str) -> str:
    """The room that an absolute import of a module or of a name in it leads to."""
    _, *parts = module.split(".")
    return parts[0] if parts and parts[0] in rooms() else "__init__"  # a name such as supsup.SupSup or __version__


def imported(tree: ast.AST) -> list[tuple[str, int]]:
    """Rooms that a file imports, with the lines; inside functions and under TYPE_CHECKING too.

    A type is a dependency as well: who changes it has to look at its users.
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [(room_of(name), node.lineno) for name in names if name.split(".")[0] == "supsup"]
    return found


def imports() -> dict[str, dict[str, list[str]]]:
    """By room, the other rooms it imports, with the files and lines that do so."""
    found: dict[str, dict[str, list[str]]] = {room: {} for room in sorted(rooms())}
    for path in sorted(SOURCE.rglob("*.py")):
        shown = path.relative_to(SOURCE).as_posix()
        room = shown.partition("/")[0].removesuffix(".py")
        for other, line in imported(ast.parse(path.read_text())):
            if other != room:
                found[room].setdefault(other, []).append(f"{shown}:{line}")
    return found


def page() -> tuple[dict[str, set[str]], set[str]]:
    """What the page allows: by room the rooms it may import, and those that every room may."""
    text = PAGE.read_text()
    rows = re.findall(r"^\| `([\w]+)(?:/|\.py)` \|.*\| (.*) \|$", text, flags=re.MULTILINE)
    for_all = re.findall(r"^Every room may import (.*)\.$", text, flags=re.MULTILINE)
    assert len(rows) == len(dict(rows)), "a room stands in the table twice"
    return {room: _names(allowed) for room, allowed in rows}, _names(for_all[0])


def _names(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def test_every_room_is_in_the_table() -> None:
    """A newcomer finds each folder and module of the package on the page, and none that is gone."""
    allowed, _ = page()
    assert set(allowed) == rooms()


def test_no_room_imports_what_the_table_does_not_allow() -> None:
    allowed, for_all = page()
    forbidden = [
        f"{room} imports {other}: {', '.join(places)}"
        for room, others in imports().items()
        for other, places in others.items()
        if other not in allowed.get(room, set()) | for_all
    ]
    assert not forbidden, "\n".join(forbidden)


def test_no_permission_is_left_over() -> None:
    """A permission that nothing uses would let a dependency come back unseen."""
    allowed, for_all = page()
    found = imports()
    unused = [f"{room}: {other}" for room, others in allowed.items() for other in sorted(others - set(found[room]))]
    assert not unused, f"nothing uses these permissions of {PAGE.name}: {', '.join(unused)}"
    twice = [f"{room}: {other}" for room, others in allowed.items() for other in sorted(others & for_all)]
    assert not twice, f"every room may import these: {', '.join(twice)}"


def test_rooms_import_those_above_them() -> None:
    """So there is an order to read them in; each exception stands on the page with its reason."""
    order = list(page()[0])
    below = {
        (room, other)
        for room, others in imports().items()
        for other in others
        if order.index(other) > order.index(room)
    }
    assert below == set(re.findall(r"^- `(\w+)` → `(\w+)`: ", PAGE.read_text(), flags=re.MULTILINE))


def test_the_package_stays_small_at_the_top() -> None:
    """About two dozen ideas: more would want a room of their own."""
    assert len(list(SOURCE.glob("*.py"))) <= MOST_TOP_MODULES


def test_no_module_is_too_long() -> None:
    """One that grows past a few hundred lines has two ideas."""
    lengths = {path.relative_to(SOURCE).as_posix(): path.read_text().count("\n") for path in SOURCE.rglob("*.py")}
    assert not {path: lines for path, lines in lengths.items() if lines > MOST_LINES}


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_files_named_on_a_page_are_there(name: str) -> None:
    """The ways through the code name files; a file that moved would lead a reader nowhere."""
    named = re.findall(r"`([\w-]+(?:/[\w-]+)*(?:/|\.py))`", (ROOT / name).read_text())
    assert len(named) > 10
    assert not [path for path in named if not (SOURCE / path).exists() and not (ROOT / path).exists()]


if __name__ == "__main__":
    _, for_all = page()
    for room, others in imports().items():
        kind = "/" if (SOURCE / room).is_dir() else ".py"
        print(f"| `{room}{kind}` | … | {', '.join(f'`{other}`' for other in sorted(set(others) - for_all)) or '–'} |")
