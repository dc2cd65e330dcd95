"""Plots of HopSupSup: the way to a mask, and how much the memory holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from supsup.hopfield.experiment import Experiment
from supsup.report.plots import new_figure


def recovery_plot(path: Path, title: str, experiment: Experiment, procedure: str) -> None:
    """As the paper's: distance of the string to every task's mask over the steps, a panel for each task of one seed."""
    traces = experiment.recovered[procedure].traces
    figure = Figure(figsize=(2.6 * len(traces) + 0.6, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(traces), sharey=True, squeeze=False)[0]
    for axes, name, trace in zip(panels, experiment.tasks, traces):
        for other, distances in zip(experiment.tasks, trace.T.tolist()):
            width = 2.6 if other == name else 1.2
            axes.plot(range(1, len(distances) + 1), distances, label=f"to the mask of {other}", linewidth=width)
        axes.set(title=f"images of {name}", xlabel="step", ylim=(-0.02, 0.62))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("share of units that differ")
    handles, labels = panels[0].get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    for line in legend.get_lines():
        line.set_linewidth(2)
    figure.suptitle(title)
    figure.savefig(path, dpi=150)


def capacity_plot(path: Path, title: str, curves: Mapping[str, Sequence[Mapping[str, Any]]], units: int) -> None:
    """Share of the stored masks that come back from flipped bits, against their number; a curve for each memory."""
    figure, axes = new_figure()
    for number, (label, rows) in enumerate(curves.items()):
        half = number >= len(curves) / 2  # one rule after the other, in the same colours
        style = f"{'--s' if half else '-o'}C{number % (len(curves) // 2)}"
        stored, percent = [row["stored"] for row in rows], [100 * row["recovered"] for row in rows]
        axes.plot(stored, percent, style, label=label, markersize=4)
    axes.set(title=title, xlabel=f"masks stored ({units} units)", ylabel="recovered (%)", xscale="log", ylim=(-2, 102))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3, which="both")
    figure.set_figheight(5.4)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
