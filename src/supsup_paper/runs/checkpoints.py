"""A model that lives in a file while a trial learns, so that an interrupted trial goes on at the task where it was."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from supsup.data import Stream, Task
from supsup.evaluation.evaluator import Evaluation, learn_and_evaluate_steps
from supsup.model.supsup import SupSup
from supsup.runtime.errors import SupSupError


@contextmanager
def living_in(file: Path, model: SupSup) -> Iterator[SupSup]:
    """The new model or, where a trial with the same seed, training and recipe left it there, the one in the file."""
    if not _holds(file, model):
        file.parent.mkdir(parents=True, exist_ok=True)
        model.save(file)
    with SupSup.load(file, in_place=True, device=model.device) as kept:
        yield kept


def not_learned(model: SupSup, stream: Stream) -> list[Task]:
    """The tasks that are still to be learned."""
    known = set(model.tasks)
    return [task for task in stream if task.name not in known]


class SoFar:
    """How far a model has come with tasks that nobody announces: in its notes and, where it is kept, in its file.

    Masks of a task that was interrupted are given up when the model is taken up again: it begins that task anew.
    """

    def __init__(self, model: SupSup, kept: bool) -> None:
        self.model, self.kept = model, kept
        found = model.notes.get("so far", {})
        self.tasks: int = found.get("tasks", 0)  # that it has learned
        self.figures: dict[str, dict[str, dict[str, float]]] = found.get("figures", {})  # by tasks learned
        self.masks: int = found.get("masks", 0)
        self.opened: dict[str, int] = found.get("opened", {})  # by task, where that was not one mask
        for name in model.tasks[self.masks :]:
            model.forget(name)

    def learn_and_evaluate(self, stream: Stream) -> Generator[int, None, Evaluation]:
        """Learn what is left of the stream, and be graded on all of it."""
        way = learn_and_evaluate_steps(
            self.model, stream, "NNs", stages=[len(stream)], learned=self.tasks, outputs="all"
        )
        while True:
            try:
                finished = next(way)
            except StopIteration as end:
                graded: Evaluation = end.value
                return graded
            if finished:
                opened = len(self.model.tasks) - self.masks
                if opened != 1:
                    self.opened[stream[self.tasks].name] = opened
                self.tasks, self.masks = self.tasks + 1, self.masks + opened
                self._note()
            yield finished

    def graded(self, stage: int, figures: dict[str, dict[str, float]]) -> None:
        """Keep the figures of a stage."""
        self.figures[str(stage)] = figures
        self._note()

    def _note(self) -> None:
        so_far = {"tasks": self.tasks, "masks": self.masks, "figures": self.figures, "opened": self.opened}
        self.model.notes = self.model.notes | {"so far": so_far}
        if self.kept:
            self.model.save()


def _holds(file: Path, model: SupSup) -> bool:
    if not file.exists():
        return False
    try:
        there = SupSup.load(file, device="cpu")
    except SupSupError:
        return False
    same = (there.seed, there.recipe) == (model.seed, model.recipe)
    return same and there.notes.get("training") == model.notes.get("training")
