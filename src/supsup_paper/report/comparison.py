"""Tables for the terminal that set a reproduction beside the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from supsup_paper.report.summary import EntrySummary, Summary
from supsup_paper.report.verdicts import OverSeeds


def comparison_table(found: EntrySummary, scale: str) -> Table:
    """What was found for an entry: verdicts, ours, the published figure and the difference, and what else there is."""
    entry, names = found.entry, list(dict.fromkeys(name for row in found.rows for name in row.figures))
    spreads = [spread for row in found.rows for positions in row.figures.values() for spread in positions.values()]
    seeds = sorted({spread.seeds for spread in spreads})
    of = ""
    if seeds:
        of = f", {'–'.join(map(str, dict.fromkeys([seeds[0], seeds[-1]])))} seed{'s' * (seeds[-1] > 1)}, {names[0]}"
    table = _new_table(f"{entry.name}: {entry.title} ({scale} scale{of})")
    table.add_column("row")
    axis = [entry.axis] if entry.axis else []
    for heading in (*axis, "ours", "published", "difference", *names[1:]):
        table.add_column(heading.replace(" ", "\n", 1), justify="right")  # narrow, so that 80 columns are enough
    for row in found.rows:
        label = (f"{row.row.label} (beyond)" if row.row.beyond else row.row.label) + f"\n  {row.status}"
        positions = list(dict.fromkeys(position for values in row.figures.values() for position in values))
        for number, position in enumerate(positions):
            ours = [row.figures.get(name, {}).get(position) for name in names]
            published = row.row.published.get(names[0], {}).get(position)
            main = [_shown(ours[0]), "–" if published is None else f"{published:,.2f}", "–"]
            if ours[0] is not None and published is not None:
                main[2] = f"{ours[0].mean - published:+,.2f}"
            table.add_row("" if number else label, *([position] if axis else []), *main, *map(_shown, ours[1:]))
        if not positions:
            table.add_row(label, *([""] if axis else []), "–")
    return table


def _new_table(title: str) -> Table:
    return Table(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def _shown(value: OverSeeds | None) -> str:
    return "–" if value is None else f"{value.mean:,.2f}"


def entries_table(found: Summary, groups: Mapping[str, Sequence[str]]) -> Table:
    """What can be reproduced, and the verdicts on what has been."""
    table = _new_table("Tables and figures of the paper")
    for heading in ("name", "what", "in the paper", "rows"):
        table.add_column(heading, no_wrap=heading == "rows")
    for summary in found.entries:
        entry, counts = summary.entry, [f"{count} {status}" for status, count in summary.counts.items() if count]
        again = [f"{summary.repeats} repeated"] if summary.repeats else []
        table.add_row(entry.name, entry.title, entry.where, "\n".join([*counts, *again]))
    for name, members in groups.items():
        table.add_row(name, f"{len(members)} of them in one call", "", "")
    return table
