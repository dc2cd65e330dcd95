"""From an evaluation to the figures of a row."""

from __future__ import annotations

from statistics import fmean

from supsup.evaluation.evaluator import Evaluation
from supsup_paper.catalogue.experiments import Experiment
from supsup_paper.records import PlannedRow


def axis_positions(wanted: PlannedRow[Experiment], stages: list[int]) -> list[str]:
    """Where figures stand on the entry's axis: at the numbers of tasks learned, or nowhere for a single number."""
    return [str(stage) for stage in stages] if wanted.axis else [""] * len(stages)


def accuracy_figures(wanted: PlannedRow[Experiment], graded: Evaluation) -> dict[str, dict[str, float]]:
    """Accuracy at each stage and, where tasks are inferred, how often that was right; in %."""
    where = axis_positions(wanted, graded.stages)
    figures = {"accuracy %": {place: 100 * value for place, value in zip(where, graded.curve)}}
    if graded.scenario != "GG":
        right = [100 * fmean(grade.inferred for grade in stage.values()) for stage in graded.grades]
        figures["task right %"] = dict(zip(where, right))
    return figures


def per_task(graded: Evaluation) -> dict[str, float]:
    """Accuracy of each task after the last, in %."""
    return {name: 100 * value for name, value in graded.per_task.items()}
