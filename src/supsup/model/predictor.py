"""What a model answers: which task images belong to, and which class under that task's mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from supsup.data.rotations import mean_over_rotations
from supsup.inference.methods import Decision, Inference, TaskView, decide
from supsup.kernels.graphs import WAITING
from supsup.model import checks
from supsup.model.auto_inference import AutoInference
from supsup.model.images import Images, images_for
from supsup.model.prediction import Outputs, Prediction
from supsup.model.state import ModelState
from supsup.model.task_table import InputGroups
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import real

_REFUSED = 0.05
Decisions = Callable[[Tensor], Tensor]  # from images [n, …] to the batches [r, b, …] that decide


def image_by_image(images: Tensor) -> Tensor:
    """Every image decides for itself."""
    return images[:, None]


def check_refused(unknown: Any) -> float | None:
    """The share of images of known tasks that may be refused; None where no image may be of an unknown one."""
    if isinstance(unknown, bool):
        return _REFUSED if unknown else None
    return real(0, below=1)(unknown, "unknown")


class Predictor:
    """Answers from a model's state, which the caller holds for reading."""

    def __init__(self, state: ModelState) -> None:
        self.state, self._by_traces = state, AutoInference(state)

    def predict(
        self,
        x: Any,
        task: str | None,
        among: Sequence[str] | None,
        how: Inference,
        outputs: Outputs,
        refused: float | None = None,
    ) -> Prediction:
        """The answer to each image, with the task known or inferred for each on its own.

        refused  the share of images of known tasks that may be taken for images of none; None: none is
        """
        if task is not None:
            self.check_learned()
            index = self.state.tasks.index(task)
            own = self.state.tasks.at(index).info
            images = self.images(x, [(own.inputs, [index])])
            probabilities = self._probabilities(images, index, None, outputs)
            given = Prediction.of(probabilities, [task] * len(images), {task: own}, method_used="given")
            if refused is None:
                return given
            indices = torch.full((len(images),), index, device=self.state.net.device)
            return given.without(self._by_traces.unfamiliar(images, indices, refused))
        members, views = self._candidates(among)
        images = self.images(x, views)
        decided = self._decide(images, members, views, how, image_by_image)
        indices = decided.chosen
        present = indices.unique().tolist()
        info = {learned.name: learned.info for learned in map(self.state.tasks.at, present)}
        if len(present) == 1:
            probabilities = self._probabilities(images, present[0], None, outputs)
        else:
            probabilities = self._of_several(images, indices, present, outputs)
        answer = Prediction.of(probabilities, self.names(indices), info, decided.margin, decided.method_used)
        return answer if refused is None else answer.without(self._by_traces.unfamiliar(images, indices, refused))

    def infer(
        self, x: Any, among: Sequence[str] | None, how: Inference, decisions: Decisions, leading: int = 1
    ) -> list[str]:
        """The name of the task that each decision falls on."""
        members, views = self._candidates(among)
        return self.names(self._decide(self.images(x, views, leading), members, views, how, decisions).chosen)

    def likelihoods(self, images: Images, views: InputGroups, members: list[int] | None) -> Tensor | None:
        """log p(features | task) [n, tasks] of images, NaN for others; None where one of them has left no trace."""
        candidates = list(range(len(self.state.tasks)) if members is None else dict.fromkeys(members))
        shown = [TaskView(image_by_image(images.seen(inputs)), indices) for inputs, indices in views]
        levels = self._by_traces.likelihoods(shown, candidates)
        if levels is None:
            return None
        found = torch.full((len(images), len(self.state.tasks)), torch.nan, device=self.state.net.device)
        found[:, candidates] = levels
        return found

    def waiting(self) -> AbstractContextManager[object]:
        """While it lasts, answers may wait for a GPU."""
        if self.state.net.device.type != "cuda":
            return nullcontext()
        if torch.cuda._is_in_bad_fork():
            raise SupSupError("a GPU cannot be used in a forked process; start it with multiprocessing's 'spawn'")
        return WAITING.reading()

    def images(self, x: Any, views: InputGroups, leading: int = 1) -> Images:
        """What was handed in, for tasks of these kinds."""
        return images_for(x, views, self.state.image_shape, self.state.net.device, leading)

    def names(self, indices: Tensor) -> list[str]:
        """The names of tasks with these indices."""
        return [self.state.tasks.at(index).name for index in indices.tolist()]

    def check_learned(self) -> None:
        """An error if there is nothing to answer from."""
        if not len(self.state.tasks):
            raise SupSupError("no task has been learned yet; call learn or observe first")

    def _candidates(self, among: Sequence[str] | None) -> tuple[list[int] | None, InputGroups]:
        """The indices of the tasks that come into question (None: all), and how they see images."""
        self.check_learned()
        asked = checks.among_tasks(among)
        members = None if asked is None else self.state.tasks.indices(asked)
        return members, self.state.tasks.views(members)

    def _decide(
        self, images: Images, members: list[int] | None, views: InputGroups, how: Inference, decisions: Decisions
    ) -> Decision:
        state = self.state
        tasks = list(state.tasks) if members is None else [state.tasks.at(i) for i in members]
        by_outputs = how.method == "exhaustive"  # a gradient is that of the images as they are, not turned
        classes = max(task.classes if by_outputs else task.used_outputs for task in tasks)
        rotated = [task for task in tasks if by_outputs and task.info.rotated]
        answered = {
            state.tasks.index(task.name): partial(mean_over_rotations, classes=task.classes) for task in rotated
        }
        shown = [TaskView(decisions(images.seen(inputs)), indices) for inputs, indices in views]
        if how.needs_profiles:
            return self._by_traces.decide(shown, members, classes, how)
        return decide(state.net, state.bank, shown, members, classes, how, answered)._replace(method_used=how.method)

    def _of_several(self, images: Images, indices: Tensor, present: Sequence[int], outputs: Outputs) -> Tensor:
        """Probabilities of images of several tasks; a class that a task does not have is at 0."""
        found: list[tuple[Tensor, Tensor]] = []
        for index in present:
            rows = (indices == index).nonzero().flatten()
            found.append((rows, self._probabilities(images, index, rows, outputs)))
        most = max(probabilities.shape[1] for _, probabilities in found)
        out = torch.empty(len(images), most, device=indices.device)
        for rows, probabilities in found:
            out[rows] = pad(probabilities, (0, most - probabilities.shape[1]))
        return out

    def _probabilities(self, images: Images, index: int, rows: Tensor | None, outputs: Outputs) -> Tensor:
        """Of each class [n, classes], for some of the images under one mask."""
        learned = self.state.tasks.at(index)
        seen = images.seen(learned.info.inputs)
        run: Callable[[Tensor], Tensor] = partial(self.state.switched.run, self.state.bank, index)
        if learned.info.rotated:
            run = partial(mean_over_rotations, run, classes=learned.classes)
        pieces = self.state.net.pieces(seen if rows is None else seen[rows])
        answers = run(pieces[0]) if len(pieces) == 1 else torch.cat([run(piece) for piece in pieces])
        if learned.info.rotated or (outputs == "classes" and learned.classes):
            answers = answers[:, : learned.classes]
        return answers.softmax(-1)


def predictor_of(model: Any) -> Predictor:
    """The predictor of a `SupSup` model, for extensions; use it under `state_of(model).lock.reading()`."""
    predictor: Predictor = model._predictor
    return predictor
