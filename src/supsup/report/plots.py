"""Plots of accuracy, in the manner of the paper's figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from supsup.evaluate import Evaluation

_STYLES = ("-o", "--s", ":^", "-v", "-.D")


def accuracy_plot(path: Path, title: str, evaluations: Mapping[str, Evaluation]) -> None:
    """Average accuracy over the tasks learned so far, against their number; single stages are drawn as points."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for (label, graded), style in zip(evaluations.items(), _STYLES):
        percent = [100 * value for value in graded.curve]
        axes.plot(graded.stages, percent, style, label=label, markersize=5, linewidth=1.6)
    axes.set(title=title, xlabel="tasks learned", ylabel="accuracy over all of them (%)", ylim=(0, 101))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left", frameon=False)
    figure.savefig(path, dpi=150)
