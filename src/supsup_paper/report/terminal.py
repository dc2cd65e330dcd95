"""Tables for the terminal: of one run, and of a reproduction beside the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from supsup.evaluation.evaluator import Evaluation
from supsup_paper.report.summary import EntrySummary, Summary
from supsup_paper.report.verdicts import OverSeeds
from supsup_paper.runs.hopfield import HopfieldResult


def closing_table(title: str, evaluations: Mapping[str, tuple[Evaluation, float]]) -> Table:
    """One line for each way of answering, from its evaluation and its seconds of learning."""
    table = Table(title=title)
    table.add_column("", no_wrap=True)
    for heading in ("accuracy %", "task right %", "forgetting", "learning s"):
        table.add_column(heading, justify="right")
    for label, (graded, seconds) in evaluations.items():
        inferred = "given" if graded.scenario == "GG" else f"{100 * graded.task_accuracy:.2f}"
        if graded.scenario == "GNs":
            inferred = "–"
        forgetting = f"{100 * graded.forgetting:.2f}" if graded.forgetting == graded.forgetting else "–"
        table.add_row(label, f"{100 * graded.average_accuracy:.2f}", inferred, forgetting, f"{seconds:.1f}")
    return table


def recovery_table(title: str, experiment: HopfieldResult) -> Table:
    """HopSupSup, a line for each task: accuracy of the first seed with the learned mask and with recovered ones."""
    table = Table(title=title)
    table.add_column("accuracy %", no_wrap=True)
    for heading in ("mask as learned", *(f"recovered, {name}" for name in experiment.recovered)):
        table.add_column(heading, justify="right")
    for index, task in enumerate(experiment.tasks):
        cells = [f"{100 * experiment.own.accuracy[0, index]:.2f}"]
        for outcome in experiment.recovered.values():
            verdict = "right mask" if outcome.right[0, index] else f"{100 * outcome.distance[0, index]:.0f} % off"
            cells.append(f"{100 * outcome.accuracy[0, index]:.2f} ({verdict})")
        table.add_row(task, *cells)
    means = [experiment.own, *experiment.recovered.values()]
    table.add_row("mean", *(f"{100 * outcome.accuracy[0].mean():.2f}" for outcome in means), end_section=True)
    return table


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
