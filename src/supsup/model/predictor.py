"""The answers of a model: which task images belong to, and which class under that task's mask.

`Prediction` is an answer, `Predictor` finds it. `Images` holds the images of one call: as they were given, and
preprocessed for the tasks that may answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from supsup.data.inputs import Inputs, inputs_key, to_learned_shape
from supsup.data.task import Label, TaskInfo
from supsup.data.user_data import input_tensor
from supsup.inference.auto import unfamiliar, with_profile
from supsup.inference.candidates import Candidates, Margin, NoMargin, TaskNetworks, TaskView
from supsup.inference.methods import METHODS, Inference, choose_tasks
from supsup.kernels.graphs import WAITING
from supsup.masks.frozen import FrozenNet
from supsup.model import checks
from supsup.model.state import InputGroups, ModelState
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import choice, real

Outputs = Literal["classes", "all"]  # outputs that may answer: those of the task's classes or, as in the paper, all
check_outputs = choice(*get_args(Outputs))
_REJECTED = 0.05  # share of the images of known tasks that unknown=True may reject
# Where a task was found: that share · 0.8 / task_confidence^0.5. On held-back photographs (CIFAR-100, Tiny-ImageNet)
# powers of 0, 0.5 and 1 gave areas under the curve of 75.9, 77.1 and 77.6 %. Without the factor they rejected 4, 6 and
# 8 % of the known ones.
_USUAL, _DOUBTED = 0.8, 0.5
# The batches [r, b, …] that decide together, from images [n, …]; "batches" are such already.
_DECIDING: dict[str, Callable[[Tensor], Tensor]] = {
    "image": lambda x: x[:, None],
    "batch": lambda x: x[None],
    "first": lambda x: x[None, :1],
    "batches": lambda x: x,
}


@dataclass(frozen=True)
class Prediction:
    """One answer per image: the label, the task whose mask gave it, and the probability of the label under it.

    labels         0 … classes − 1 of the task; `names` has the user's own labels
    probabilities  [images, classes]: of each class of the image's task; empty if the learner gives none.
                   Only the first `model.classes(task)` columns of a row are its task's; the rest are zeros
    margin         how far the inferred task is ahead, or why there is no margin; a tensor is the confidence itself
    info           metadata of the tasks in `tasks`, by name
    method_used    how the task was found: "given", "the only task", or by which method
    unknown        [images]: which images were rejected; their label is −1, their task and name are None. None unless
                   `predict` was called with `unknown`
    """

    labels: Tensor
    tasks: list[str]
    confidence: Tensor
    probabilities: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    margin: Margin | NoMargin | Tensor = NoMargin.CERTAIN
    info: Mapping[str, TaskInfo] = field(default_factory=dict)
    method_used: str = ""
    unknown: Tensor | None = None

    @classmethod
    def of(
        cls,
        probabilities: Tensor,
        tasks: list[str],
        info: Mapping[str, TaskInfo],
        margin: Margin | NoMargin | Tensor = NoMargin.CERTAIN,
        method_used: str = "",
    ) -> Prediction:
        """The most probable class of each image."""
        confidence, labels = probabilities.max(-1)
        return cls(labels, tasks, confidence, probabilities, margin, info, method_used)

    def without(self, unknown: Tensor) -> Prediction:
        """The same, but that these images [images] are of no task that is known."""
        named: list[Any] = [None if none else task for task, none in zip(self.tasks, unknown.tolist())]
        return replace(self, labels=self.labels.masked_fill(unknown, -1), tasks=named, unknown=unknown)

    @cached_property
    def names(self) -> list[Label]:
        """What the user calls the class of each image; None where it is of no known task."""
        called: list[Any] = []
        for task, label in zip(self.tasks, self.labels.tolist()):
            known = self.info[task].class_name(label) if task in self.info else label
            called.append(None if task is None else known)
        return called

    @cached_property
    def task_confidence(self) -> Tensor:
        """How sure the task of each image is, 0 to 1: 1 where it was given (docs/inference.md)."""
        if isinstance(self.margin, Tensor):
            return self.margin
        if isinstance(self.margin, NoMargin):
            return torch.full_like(self.confidence, self.margin.value)
        return self.margin.confidence()

    def describe(self, digits: int) -> list[dict[str, Any]]:
        """Each answer as plain values, rounded to so many digits, for `supsup predict` and POST /predict."""
        columns = {
            "task": self.tasks,
            "label": self.labels.tolist(),
            "name": self.names,
            "confidence": [round(value, digits) for value in self.confidence.tolist()],
            "task_confidence": [round(value, digits) for value in self.task_confidence.tolist()],
        }
        return [dict(zip(columns, row)) for row in zip(*columns.values(), strict=True)]


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
        unknown: bool | float,
    ) -> Prediction:
        """The answer to each image, with the task given or inferred for each on its own."""
        check_outputs(outputs, "outputs")
        share = _REJECTED if isinstance(unknown, bool) else real(0, below=1)(unknown, "unknown")
        if task is None:
            images, candidates = self._candidates(x, among, how)
            indices, margin, method_used = choose_tasks(candidates)
            chosen: Tensor | int = indices
            present, tasks = indices.unique().tolist(), self._names(indices)
        else:
            self._check_learned()
            index = self.state.tasks.index(task)
            images = Images(x, self.state.tasks.input_groups([index]), self.state.image_shape, self.state.net)
            chosen, margin, method_used = index, NoMargin.CERTAIN, "given"
            present, tasks = [index], [task] * len(images)
        probabilities = self._probabilities(images, chosen, present, outputs)
        info = {learned.name: learned.info for learned in map(self.state.tasks.at, present)}
        answer = Prediction.of(probabilities, tasks, info, margin, method_used)
        if unknown is False:
            return answer
        shares = torch.full((len(images),), share, device=self.state.net.device)
        if isinstance(margin, Tensor) and METHODS[how.method].needs_profiles:  # between tasks it is likelier of none
            shares *= _USUAL / margin.to(shares) ** _DOUBTED
        return answer.without(self._unfamiliar(images, chosen, present, shares))

    def infer(self, x: Any, among: Sequence[str] | None, how: Inference, per: str) -> list[str]:
        """The name of the task that each decision falls on: per "image", "batch", "first" image, or of "batches"."""
        return self._names(choose_tasks(self._candidates(x, among, how, per)[1]).chosen)

    def scores(self, x: Any, among: Sequence[str] | None, how: Inference) -> Tensor:
        """What the first pass of a method gives each candidate, for every image: [n, candidates]."""
        _, candidates = self._candidates(x, among, how)
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

    def _names(self, indices: Tensor) -> list[str]:
        return [self.state.tasks.at(index).name for index in indices.tolist()]

    def _check_learned(self) -> None:
        if not len(self.state.tasks):
            raise SupSupError("no task has been learned yet; call learn or observe first")

    def _candidates(
        self, x: Any, among: Sequence[str] | None, how: Inference, per: str = "image"
    ) -> tuple[Images, Candidates]:
        """The images, and the tasks that they may belong to."""
        self._check_learned()
        members = self.state.tasks.indices(among)
        groups = self.state.tasks.input_groups(members)
        images = Images(x, groups, self.state.image_shape, self.state.net, 2 if per == "batches" else 1)
        views = [TaskView(_DECIDING[per](images.preprocessed(inputs)), indices) for inputs, indices in groups]
        return images, Candidates(self._networks, views, how, members)

    def _unfamiliar(self, images: Images, chosen: Tensor | int, present: Sequence[int], shares: Tensor) -> Tensor:
        """Which images [n] are less familiar to their tasks than these shares of known images; see `_probabilities`."""
        found = torch.zeros(len(images), dtype=torch.bool, device=self.state.net.device)
        for index in present:
            x = images.preprocessed(self.state.tasks.at(index).info.inputs)
            rows = torch.as_tensor(chosen == index, device=found.device).expand(len(x))
            found[rows] = unfamiliar(self._networks, index, x[rows], shares[rows])
        return found

    def _probabilities(self, images: Images, chosen: Tensor | int, present: Sequence[int], outputs: Outputs) -> Tensor:
        """Of each class [n, classes] under the masks that were chosen; 0 for a class that a task lacks.

        chosen   the index of each image's task [n], or of the task of all images
        present  the indices that occur
        """
        found: list[tuple[Tensor | None, Tensor]] = []
        for index in present:
            learned = self.state.tasks.at(index)
            rows, x = None, images.preprocessed(learned.info.inputs)
            if len(present) > 1:
                rows = torch.as_tensor(chosen == index).nonzero().flatten()
                x = x[rows]
            answers = self._networks.outputs(index, x)
            if learned.info.rotated or (outputs == "classes" and learned.classes):
                answers = answers[:, : learned.classes]
            if outputs == "classes":
                answers = with_profile(self._networks, index, x, answers)
            found.append((rows, answers.softmax(-1)))
        if len(found) == 1:
            return found[0][1]
        most = max(probabilities.shape[1] for _, probabilities in found)
        out = torch.empty(len(images), most, device=found[0][1].device)
        for rows, probabilities in found:
            out[rows] = pad(probabilities, (0, most - probabilities.shape[1]))
        return out


class Images:
    """Images [n, …], or batches of them [r, b, …]; preprocessed once for all tasks that do it alike, when needed.

    An error if no task of these groups takes them. Tasks without preprocessing are strict: floating point, and the
    shape that was learned.
    """

    def __init__(
        self, x: Any, groups: InputGroups, shape: tuple[int, ...] | None, net: FrozenNet, leading: int = 1
    ) -> None:
        self._leading, self._net = leading, net
        self._preprocessed: dict[object, Tensor] = {}
        kinds = [inputs for inputs, _ in groups if inputs is not None]
        self._ready = not kinds  # the network takes them as they are
        if self._ready:
            self._raw = checks.check_images(x, net.device, leading)
            checks.check_shape(tuple(self._raw.shape[leading:]), shape)
            self._raw = self._described(self._raw)
            return
        raw = input_tensor(x)
        if leading == 2 and raw.ndim < 3:
            raise SupSupError(f"images must be batches [r, b, …] of at least one image; got shape {list(raw.shape)}")
        if shape is not None:
            raw = to_learned_shape(raw, shape, kinds[0].channels_last, leading)
        self._raw = raw.to(net.device)

    def __len__(self) -> int:
        return self._raw.shape[0]

    def preprocessed(self, inputs: Inputs | None) -> Tensor:
        """As the network takes them, for a task with these inputs."""
        if self._ready:
            return self._raw
        key = inputs_key(inputs)
        if key not in self._preprocessed:
            raw = self._raw
            found = raw.float() if inputs is None else inputs.preprocess(raw, self._leading)
            self._preprocessed[key] = self._described(found)
        return self._preprocessed[key]

    def _described(self, x: Tensor) -> Tensor:
        """What the network takes in place of images, where it does."""
        if not self._net.described:
            return x
        found: Tensor = self._net.describe(x.flatten(0, self._leading - 1)).unflatten(0, x.shape[: self._leading])
        return found


def answer_among(outputs: Tensor, classes: Mapping[str, int], info: Mapping[str, TaskInfo]) -> Prediction:
    """Task and label at once, where tasks have outputs of their own: [images, all classes], block after block.

    The largest output says both. Probabilities are those of the classes given the task.
    """
    names, sizes, device = list(classes), list(classes.values()), outputs.device
    joint, every, most = outputs.softmax(-1), torch.arange(len(outputs), device=device), max(sizes)
    task_of = torch.arange(len(sizes), device=device).repeat_interleave(torch.tensor(sizes, device=device))
    owner = task_of[joint.argmax(-1)]
    padded = [pad(block, (0, most - block.shape[1]), value=-torch.inf) for block in outputs.split(sizes, -1)]
    probabilities = torch.stack(padded, 1)[every, owner].softmax(-1)  # [images, most classes]
    shares = torch.stack([block.sum(-1) for block in joint.split(sizes, -1)], 1)
    return Prediction.of(probabilities, [names[i] for i in owner.tolist()], info, shares[every, owner])
