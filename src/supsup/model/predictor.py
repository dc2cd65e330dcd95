"""The answers of a model: which task images belong to, and which class under that task's mask.

`Images` holds the images of one call: as they were given, and preprocessed for the tasks that may answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from supsup.data.inputs import Inputs, inputs_key, to_learned_shape
from supsup.data.user_data import input_tensor
from supsup.inference.auto import unfamiliar
from supsup.inference.candidates import Candidates, TaskNetworks, TaskView
from supsup.inference.methods import METHODS, Inference, choose_tasks
from supsup.kernels.graphs import WAITING
from supsup.model import checks
from supsup.model.prediction import Outputs, Prediction
from supsup.model.state import InputGroups, ModelState
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import real

_REJECTED = 0.05
Decisions = Callable[[Tensor], Tensor]  # from images [n, …] to the batches [r, b, …] that decide


def image_by_image(images: Tensor) -> Tensor:
    """Every image decides for itself."""
    return images[:, None]


def check_rejected_share(unknown: Any) -> float | None:
    """The share of known images that may be rejected as unknown; None: no image is."""
    if isinstance(unknown, bool):
        return _REJECTED if unknown else None
    return real(0, below=1)(unknown, "unknown")


class Predictor:
    """Answers from a model's state; the caller holds its read lock."""

    def __init__(self, state: ModelState) -> None:
        self.state = state
        self._networks = TaskNetworks(state.net, state.bank, state.tasks, state.switched)

    def predict(
        self,
        x: Any,
        task: str | None,
        among: Sequence[str] | None,
        how: Inference,
        outputs: Outputs,
        rejected: float | None = None,
    ) -> Prediction:
        """The answer to each image, with the task given or inferred for each on its own.

        rejected  the share of known images that may be rejected as unknown; None: no image is
        """
        if task is not None:
            self.check_learned()
            index = self.state.tasks.index(task)
            info = self.state.tasks.at(index).info
            images = self.images(x, [(info.inputs, [index])])
            probabilities = self._probabilities(images, index, None, outputs)
            answer = Prediction.of(probabilities, [task] * len(images), {task: info}, method_used="given")
            if rejected is None:
                return answer
            indices = torch.full((len(images),), index, device=self.state.net.device)
            return answer.without(self._unfamiliar(images, indices, rejected))
        images, candidates = self._candidates(x, among, how, image_by_image)
        decided = choose_tasks(candidates)
        indices = decided.chosen
        present = indices.unique().tolist()
        if len(present) == 1:
            probabilities = self._probabilities(images, present[0], None, outputs)
        else:
            probabilities = self._of_several(images, indices, present, outputs)
        known = {learned.name: learned.info for learned in map(self.state.tasks.at, present)}
        answer = Prediction.of(probabilities, self.names(indices), known, decided.margin, decided.method_used)
        return answer if rejected is None else answer.without(self._unfamiliar(images, indices, rejected))

    def infer(
        self, x: Any, among: Sequence[str] | None, how: Inference, decisions: Decisions, leading: int = 1
    ) -> list[str]:
        """The name of the task that each decision falls on."""
        return self.names(choose_tasks(self._candidates(x, among, how, decisions, leading)[1]).chosen)

    def scores(self, x: Any, among: Sequence[str] | None, how: Inference) -> Tensor:
        """What the first pass of a method gives each candidate, for every image: [n, candidates]."""
        _, candidates = self._candidates(x, among, how, image_by_image)
        found = METHODS[how.method].scores(candidates)
        if candidates.members is None:
            return found
        columns = {index: column for column, index in enumerate(candidates.indices)}
        return found[:, [columns[index] for index in candidates.members]]

    def waiting(self) -> AbstractContextManager[object]:
        """While it lasts, answers may wait for a GPU."""
        if self.state.net.device.type != "cuda":
            return nullcontext()
        if torch.cuda._is_in_bad_fork():
            raise SupSupError("a GPU cannot be used in a forked process; start it with multiprocessing's 'spawn'")
        return WAITING.reading()

    def images(self, x: Any, groups: InputGroups, leading: int = 1) -> Images:
        """The images of a call, for the tasks of these groups."""
        return images_for(x, groups, self.state.image_shape, self.state.net.device, leading)

    def names(self, indices: Tensor) -> list[str]:
        """The names of tasks with these indices."""
        return [self.state.tasks.at(index).name for index in indices.tolist()]

    def check_learned(self) -> None:
        """An error if no task was learned."""
        if not len(self.state.tasks):
            raise SupSupError("no task has been learned yet; call learn or observe first")

    def _candidates(
        self, x: Any, among: Sequence[str] | None, how: Inference, decisions: Decisions, leading: int = 1
    ) -> tuple[Images, Candidates]:
        """The images, and the tasks that they may belong to."""
        self.check_learned()
        asked, tasks = checks.check_among_names(among), self.state.tasks
        members = None if asked is None else tasks.indices(asked)
        groups = tasks.input_groups(members)
        images = self.images(x, groups, leading)
        views = [TaskView(decisions(images.preprocessed(inputs)), indices) for inputs, indices in groups]
        return images, Candidates(self._networks, views, how, members)

    def _unfamiliar(self, images: Images, indices: Tensor, share: float) -> Tensor:
        """Which images [n] are less familiar to the tasks with these indices [n] than this share of known images."""
        found = torch.zeros(len(images), dtype=torch.bool, device=indices.device)
        for index in indices.unique().tolist():
            rows = (indices == index).nonzero().flatten()
            x = images.preprocessed(self.state.tasks.at(index).info.inputs)[rows]
            found[rows] = unfamiliar(self._networks, index, x, share)
        return found

    def _of_several(self, images: Images, indices: Tensor, present: Sequence[int], outputs: Outputs) -> Tensor:
        """Probabilities of images of several tasks; 0 for a class that a task does not have."""
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
        x = images.preprocessed(learned.info.inputs)
        answers = self._networks.outputs(index, x if rows is None else x[rows])
        if learned.info.rotated or (outputs == "classes" and learned.classes):
            answers = answers[:, : learned.classes]
        return answers.softmax(-1)


class Images:
    """Images [n, …], or batches of them [r, b, …]; preprocessed once for all tasks that do it alike, when needed.

    ready  the network takes them as they are
    """

    def __init__(self, raw: Tensor, leading: int, ready: bool) -> None:
        self._raw, self._leading, self._ready = raw, leading, ready
        self._preprocessed: dict[object, Tensor] = {}

    def __len__(self) -> int:
        return len(self._raw)

    def preprocessed(self, inputs: Inputs | None) -> Tensor:
        """As the network takes them, for a task with these inputs."""
        if self._ready:
            return self._raw
        key = inputs_key(inputs)
        if key not in self._preprocessed:
            self._preprocessed[key] = (
                self._raw.float() if inputs is None else inputs.preprocess(self._raw, self._leading)
            )
        return self._preprocessed[key]


def images_for(
    x: Any, groups: InputGroups, shape: tuple[int, ...] | None, device: torch.device, leading: int = 1
) -> Images:
    """Images for the tasks of these groups, or an error if no task takes them.

    Tasks without preprocessing are strict: floating point, and the shape that was learned.
    """
    kinds: Sequence[Inputs] = [inputs for inputs, _ in groups if inputs is not None]
    if not kinds:
        images = (checks.check_images if leading == 1 else checks.check_batches)(x, device)
        checks.check_shape(tuple(images.shape[leading:]), shape)
        return Images(images, leading, True)
    raw = input_tensor(x) if leading == 1 else checks.check_raw_batches(x)
    if shape is not None:
        raw = to_learned_shape(raw, shape, kinds[0].channels_last, leading)
    return Images(raw.to(device), leading, False)
