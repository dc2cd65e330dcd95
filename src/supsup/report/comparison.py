"""Tables for the terminal that set a reproduction beside the paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.table import Table

from supsup.paper.catalogue import Entry
from supsup.paper.reproduce import figures_of, wanted_rows


def comparison_table(entry: Entry, folder: Path, scale: str) -> Table:
    """Every number that lies in the folder for an entry: ours, the published one, and the difference."""
    table = Table(title=f"{entry.name}: {entry.title} ({scale} scale)", title_justify="left")
    table.add_column("row")
    for heading in ("figure", entry.axis or "", "ours", "published", "difference", "seeds"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    for row, wanted in zip(entry.rows, wanted_rows(entry, folder, scale)):
        figures = figures_of(row, wanted)
        label = f"{row.label} (ours)" if row.beyond else row.label
        for number, figure in enumerate(figures):
            table.add_row(
                label if number == 0 else "",
                figure.name,
                figure.place,
                f"{figure.ours:,.2f}",
                "–" if figure.published is None else f"{figure.published:,.2f}",
                "–" if figure.difference is None else f"{figure.difference:+,.2f}",
                str(figure.seeds),
                end_section=number == len(figures) - 1,
            )
        if not figures:
            table.add_row(label, "not run", "", "", "", "", "", end_section=True)
    return table


def entries_table(entries: Iterable[Entry], groups: Mapping[str, Sequence[str]]) -> Table:
    """What can be reproduced."""
    table = Table(title="Tables and figures of the paper", title_justify="left")
    for heading in ("name", "what", "in the paper", "rows"):
        table.add_column(heading, justify="right" if heading == "rows" else "left")
    for entry in entries:
        table.add_row(entry.name, entry.title, entry.where, str(len(entry.rows)))
    for name, members in groups.items():
        table.add_row(name, f"{len(members)} of them in one call", "", "")
    return table
