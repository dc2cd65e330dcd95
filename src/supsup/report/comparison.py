"""Tables for the terminal that set a reproduction beside the paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from supsup.paper.catalogue import Entry
from supsup.paper.reproduction import Figure, figures_of, wanted_rows


def comparison_table(entry: Entry, folder: Path, scale: str) -> Table:
    """What lies in the folder for an entry: ours, the published figure and the difference, then what else was found."""
    found = [(row, figures_of(row, wanted)) for row, wanted in zip(entry.rows, wanted_rows(entry, folder, scale))]
    names = list(dict.fromkeys(figure.name for _, figures in found for figure in figures))
    seeds = sorted({figure.seeds for _, figures in found for figure in figures})
    of = f", {'–'.join(map(str, dict.fromkeys([seeds[0], seeds[-1]])))} seeds, {names[0]}" if seeds else ""
    table = _new_table(f"{entry.name}: {entry.title} ({scale} scale{of})")
    table.add_column("row", min_width=18, max_width=34)
    axis = [entry.axis] if entry.axis else []
    for heading in (*axis, "ours", "published", "difference", *names[1:]):
        table.add_column(heading, justify="right")
    for row, figures in found:
        label = f"{row.label} (beyond)" if row.beyond else row.label
        by_place: dict[str, dict[str, Figure]] = {}
        for figure in figures:
            by_place.setdefault(figure.place, {})[figure.name] = figure
        for number, (place, at) in enumerate(by_place.items()):
            main, others = at.get(names[0]), [at.get(name) for name in names[1:]]
            cells = ["–"] * 3
            if main is not None:
                cells = [_shown(main.ours), _shown(main.published), _shown(main.difference, "+")]
            cells += ["–" if other is None else _shown(other.ours) for other in others]
            table.add_row("" if number else label, *([place] if axis else []), *cells)
        if not figures:
            table.add_row(label, *([""] if axis else []), "not run")
    return table


def _new_table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def _shown(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{value:{sign},.2f}"


def entries_table(entries: Iterable[Entry], groups: Mapping[str, Sequence[str]]) -> Table:
    """What can be reproduced."""
    table = _new_table("Tables and figures of the paper")
    for heading in ("name", "what", "in the paper", "rows"):
        table.add_column(heading, justify="right" if heading == "rows" else "left")
    for entry in entries:
        table.add_row(entry.name, entry.title, entry.where, str(len(entry.rows)))
    for name, members in groups.items():
        table.add_row(name, f"{len(members)} of them in one call", "", "")
    return table
