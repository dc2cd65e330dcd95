"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from supsup.evaluate import Evaluation


def closing_table(title: str, evaluations: Mapping[str, tuple[Evaluation, float]]) -> Table:
    """One line for each way of answering, from its evaluation and its seconds of learning."""
    table = Table(title=title, title_justify="left")
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
