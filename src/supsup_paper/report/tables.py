"""Tables of one run for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from supsup.evaluation.evaluator import Evaluation
from supsup_paper.hopfield import HopfieldResult


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
