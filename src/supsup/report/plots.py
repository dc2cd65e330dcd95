"""Plots: accuracy in the manner of the paper's figures, and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from supsup.evaluate import Evaluation

_STYLES = ("-o", "--s", ":^", "-v", "-.D")


def accuracy_plot(path: Path, title: str, evaluations: Mapping[str, Evaluation]) -> None:
    """Average accuracy over the tasks learned so far, against their number; single stages are drawn as points."""
    figure, axes = new_figure()
    for (label, graded), style in zip(evaluations.items(), _STYLES):
        percent = [100 * value for value in graded.curve]
        axes.plot(graded.stages, percent, style, label=label, markersize=5, linewidth=1.6)
    axes.set(title=title, xlabel="tasks learned", ylabel="accuracy over all of them (%)", ylim=(0, 101))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left", frameon=False)
    figure.savefig(path, dpi=150)


def time_plot(path: Path, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Seconds of training against the number of tasks: ours, one at a time by autograd, and the floor."""
    figure, axes = new_figure()
    counts = [row["tasks"] for row in rows]

    def total(key: str) -> list[float]:
        return [1e-6 * row[key] * row["tasks"] * row["steps"] for row in rows]

    axes.loglog(counts, total("plain µs per task-step"), "--s", label="one task at a time, autograd")
    axes.loglog(counts, [row["seconds"] for row in rows], "-o", label="learn_many, data included")
    axes.loglog(counts, total("floor µs"), ":", label="floor (bytes and operations)")
    axes.set(title=title, xlabel="tasks", ylabel="seconds")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def new_figure() -> tuple[Figure, Axes]:
    """A canvas for one plot."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()
