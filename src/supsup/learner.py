"""`SupSup`: learn task after task on one frozen network, and answer without being told the task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Literal, Self, overload

import torch
from torch import Tensor, nn

from supsup import checks, progress
from supsup.allocation import Allocation
from supsup.bank import Bank
from supsup.checks import Array
from supsup.data import Part, Task
from supsup.devices import resolve
from supsup.errors import SupSupError
from supsup.file.format import now
from supsup.file.modelfile import AnyPath, ModelFile, write_new
from supsup.file.saving import everything, header_of, stored
from supsup.frozen import FrozenNet
from supsup.inference import Inference, infer
from supsup.observing import Observer
from supsup.prediction import Prediction
from supsup.scores import RunningMean, initial_scores, transferred
from supsup.switching import SwitchedNet
from supsup.training import Job, Recipe, Trained, train_masks


class SupSup:
    """Many tasks on one network with frozen random weights: one binary mask per task.

    net         any module with linear or convolutional layers; copied, its weights replaced by ±c from `seed`
    pretrained  keep the module's weights, biases and statistics as they are
    recipe      how a mask is trained
    inference   how a task is inferred when nobody says it
    allocation  when `observe` opens a new mask

    `notes` (JSON values) and `extras` (tensors, by task) are the user's own and are saved with the model.
    """

    def __init__(
        self,
        net: nn.Module,
        seed: int = 0,
        *,
        pretrained: bool = False,
        recipe: Recipe | None = None,
        inference: Inference | None = None,
        allocation: Allocation | None = None,
        device: str | torch.device = "auto",
    ) -> None:
        self.device = resolve(device)
        self.net = FrozenNet(net, seed, self.device, pretrained)
        self.bank = Bank(self.net.shapes, self.device, self.net.statistics)
        self.recipe = recipe or Recipe()
        self.inference = inference or Inference()
        self.allocation = allocation or Allocation()
        self._classes: dict[str, int] = {}  # by task, in the bank's order
        self._shape: tuple[int, ...] | None = None
        self._observer = Observer(self)
        self.notes: dict[str, Any] = {}
        self.extras: dict[str, dict[str, Tensor]] = {}
        self.created = now()
        self._learned_at: dict[str, str] = {}
        self._earlier = RunningMean()  # of the scores of all tasks learned, for transfer="scores"
        self._file: ModelFile | None = None  # where the model lives, if it was loaded with in_place=True
        self._unsaved: dict[str, None] = {}  # tasks whose masks are not in that file yet, in order

    @property
    def seed(self) -> int:
        return self.net.seed

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks learned, in order."""
        return list(self._classes)

    def classes(self, task: str) -> int:
        """How many classes a task has."""
        self._index(task)
        return self._classes[task]

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """The shape of the images learned, or None before the first."""
        return self._shape

    def learned_at(self, task: str) -> str:
        """When a task was learned (UTC)."""
        self._index(task)
        return self._learned_at[task]

    def mask(self, task: str) -> dict[str, Tensor]:
        """A task's mask: a boolean tensor for each masked weight."""
        index = self._index(task)
        self._observer.settle()
        return self.bank.mask(index)

    def subnetwork(self, task: str) -> dict[str, Tensor]:
        """A task's own network: its masked weights, and the statistics of its normalisation layers."""
        index = self._index(task)
        self._observer.settle()
        return self.net.masked(self.bank.subnetwork(index))

    def learn(self, data: Task | tuple[Array, Array], /, task: str | None = None) -> str:
        """Train one new mask on a `Task`, or on a pair (images, labels) with task="name"; returns the name."""
        checked = self._checked(data, task)
        self._learn([checked], show_progress=False)
        return checked.name

    def learn_many(
        self, stream: Sequence[Task], *, precision: torch.dtype | None = None, show_progress: bool | None = None
    ) -> list[str]:
        """Learn every task of a stream, many at once; nothing is learned if one of them is not in order.

        An interruption keeps every task finished by then. Matrix products are taken in `precision`: by default bfloat16
        on a GPU (for fully connected networks) and float32 elsewhere.
        """
        seen: set[tuple[int, ...]] = set()
        tasks = [self._checked(task, seen=seen) for task in stream]
        if not tasks:
            raise SupSupError("the stream has no tasks; make it with tasks=1 or more")
        names = [task.name for task in tasks]
        if len(set(names)) < len(names):
            twice = next(name for name, count in Counter(names).items() if count > 1)
            raise SupSupError(f"the stream names more than one task {twice!r}; names must differ")
        self._learn(tasks, show_progress, precision)
        return names

    def predict(
        self,
        x: Array,
        task: str | None = None,
        *,
        among: Sequence[str] | None = None,
        inference: Inference | None = None,
    ) -> Prediction:
        """A label for every image, with the task known or inferred for each image on its own.

        among      only these tasks come into question (all by default)
        inference  how to infer, in place of the model's own setting
        """
        images = self._images(x)
        if task is not None:
            confidence, labels = self._answers(images, self._index(task))
            return Prediction(labels, [task] * len(images), confidence)
        indices = self._infer(images[:, None], among, inference or self.inference)
        labels = torch.empty(len(images), dtype=torch.int64, device=self.device)
        confidence = torch.empty(len(images), device=self.device)
        for index in indices.unique().tolist():
            rows = (indices == index).nonzero().flatten()
            confidence[rows], labels[rows] = self._answers(images[rows], index)
        names = self.tasks
        return Prediction(labels, [names[i] for i in indices.tolist()], confidence)

    @overload
    def infer_task(self, x: Array, *, per: Literal["image"] = "image", **how: Any) -> list[str]: ...

    @overload
    def infer_task(self, x: Array, *, per: Literal["batch", "first"], **how: Any) -> str: ...

    def infer_task(
        self, x: Array, *, per: str = "image", among: Sequence[str] | None = None, **how: Any
    ) -> list[str] | str:
        """The name of the task that images belong to.

        per    "image": a list with a name for each image; "batch": one name from all of them together;
               "first": one name from the first image alone
        among  only these tasks come into question (all by default)
        how    fields of `Inference` (method, objective, layers, gamma, …) in place of the model's own setting
        """
        images = self._images(x)
        if per not in ("image", "batch", "first"):
            raise SupSupError(f"unknown per={per!r}; use 'image', 'batch' or 'first'")
        try:
            settings = replace(self.inference, **how)
        except TypeError as error:
            raise SupSupError(f"unknown inference setting: {error}") from error
        decisions = {"image": images[:, None], "batch": images[None], "first": images[None, :1]}[per]
        names = self.tasks
        inferred = [names[i] for i in self._infer(decisions, among, settings).tolist()]
        return inferred if per == "image" else inferred[0]

    def infer_batches(self, x: Tensor, *, among: Sequence[str] | None = None) -> list[str]:
        """The task of each of r batches [r, b, …], from all images of a batch together."""
        return [self.tasks[i] for i in self._infer(x.to(self.device), among, self.inference).tolist()]

    def observe(self, x: Array, y: Array) -> str | None:
        """Train on one batch when nobody says what task it is from; returns the name of the mask it went to.

        None where it fits no mask and the budget has no room for another: then nothing is learned.

        Every `allocation.every` batches the model decides whether to go on with a mask it knows or to open a new one.
        Scores and optimiser state stay with a mask, so a task that comes back is taken up where it was left.
        """
        images = self._images(x, learning=True)
        labels = checks.labels(y, len(images), self.device)
        checks.label_range(labels, self._outputs_for(images), "observed")
        if len(images) == 1:
            self.net.rehearse(images)  # before a mask is opened: normalisation needs more than one
        name = self._observer.prepare(images, batches=1)
        if name is not None:
            self._observer.bench.step(images, labels)
            self._classes[name] = max(self._classes[name], int(labels.max()) + 1)
        return name

    def observe_batches(self, part: Part, positions: Tensor) -> list[str | None]:
        """`observe` on the batches of a part at positions [n, b], in order and much faster on a GPU.

        Returns the name of the mask that each batch went to.
        """
        return [name for name, batches in self.observing(part, positions) for _ in range(batches)]

    def observing(self, part: Part, positions: Tensor) -> Iterator[tuple[str | None, int]]:
        """`observe_batches` from decision to decision: the name of a mask, and how many batches have gone to it.

        On a GPU those batches may still be under way.
        """
        part = part.on(self.device)
        positions = positions.to(self.device)
        checks.positions(positions, len(part))
        checks.label_range(part.labels, self._outputs_for(part.batch(positions[0, :1])[0]), "observed")
        classes = (part.labels[positions].amax(1) + 1).tolist()  # in one go: each question makes a GPU wait
        while len(positions):
            count = self._observer.until_check()
            batches, positions = positions.tensor_split([count])
            name = self._observer.prepare(part.batch(batches[0])[0], len(batches))
            if name is not None:
                self._classes[name] = max(self._classes[name], *classes[:count])
                self._observer.bench.run(part, batches)  # last: nothing here waits for it
            del classes[:count]
            yield name, len(batches)

    def forget(self, task: str) -> None:
        """Remove a task for good; every other answer stays as it is."""
        index = self._index(task)
        self._observer.settle()
        if self._file is not None and task in self._file.names:
            self._file.remove(task, header_of(self))
        self.bank.remove(index)
        del self._classes[task]
        self._observer.forget(task)
        for belongings in (self.extras, self._learned_at, self._unsaved):
            belongings.pop(task, None)

    def to(self, device: str | torch.device) -> SupSup:
        """A copy of this model on a device, with all its masks; what `observe` has half-trained stays behind."""
        self._observer.settle()
        copy = SupSup(
            self.net.module,
            self.seed,
            pretrained=self.net.pretrained,
            recipe=self.recipe,
            inference=self.inference,
            allocation=self.allocation,
            device=device,
        )
        copy.bank = self.bank.to(copy.device)
        copy._classes, copy._shape = dict(self._classes), self._shape
        copy.notes, copy.extras = dict(self.notes), {name: dict(tensors) for name, tensors in self.extras.items()}
        copy.created, copy._learned_at = self.created, dict(self._learned_at)
        return copy

    def save(self, path: AnyPath | None = None) -> None:
        """Write the model to a file, whole or not at all; an older model file there is replaced.

        Without a path: bring the file of a model loaded with in_place=True up to date, which `learn` and `forget` do by
        themselves. A mask that `observe` is training is written as it stands.
        """
        self._observer.settle()
        if path is not None and (self._file is None or not self._file.is_at(path)):
            write_new(path, header_of(self), everything(self))
        elif self._file is None:
            raise SupSupError('this model lives in no file; say where to save it: save("model.supsup")')
        else:
            self.commit()

    def close(self) -> None:
        """Let go of the file of a model loaded with in_place=True, up to date; the model itself stays usable."""
        if self._file is None:
            return
        try:
            self.save()
        finally:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _learn(self, tasks: list[Task], show_progress: bool | None, precision: torch.dtype | None = None) -> None:
        self._observer.settle()
        groups = [tasks] if self.recipe.transfer == "none" else [[task] for task in tasks]
        with progress.bar("learning", len(tasks), show=show_progress) as advance:
            for group in groups:
                transfers = self.recipe.transfer != "none"
                jobs = [Job(task, self.recipe, self.first_scores(task.name) if transfers else None) for task in group]
                for trained in train_masks(self.net, jobs, precision, advance):
                    self.take_in(trained)

    def take_in(self, trained: Trained) -> None:
        """Add tasks that were trained, and commit them to the file."""
        if self.recipe.transfer == "scores":
            assert trained.scores is not None
            self._earlier.add(trained.scores)
        classes = {task.name: task.classes for task in trained.tasks}
        self.put(classes, trained.packed, trained.statistics, trained.tasks[0].train.shape)
        self.commit()

    def first_scores(self, task: str) -> dict[str, Tensor]:
        """Where a task's scores start, given all that was learned before."""
        own = initial_scores(self.seed, task, self.net.shapes, self.device)
        if not len(self.bank) or self.recipe.transfer == "none":
            return own
        if self.recipe.transfer == "masks":
            return transferred(self.bank.mean(), own, centred=self.recipe.selection == "threshold")
        if self._earlier.count != len(self.bank):
            raise SupSupError(
                'transfer="scores" needs the scores of all earlier tasks, which are not saved with a model; '
                'learn all tasks in one go, or use transfer="masks"'
            )
        return self._earlier.mean()

    def put(
        self, classes: dict[str, int], packed: Tensor, statistics: dict[str, Tensor], shape: tuple[int, ...]
    ) -> None:
        """Take in masks, as bytes [bytes, tasks], with their names, numbers of classes and statistics [tasks, …]."""
        self.bank.add_packed(packed, statistics)
        self._classes |= classes
        self._shape = shape
        self._learned_at |= dict.fromkeys(classes, now())
        self._unsaved |= dict.fromkeys(classes)

    def replace_mask(self, task: str, mask: dict[str, Tensor]) -> None:
        """Put another mask in the place of a task's."""
        self.bank.replace(self._index(task), mask)
        self._unsaved[task] = None

    def commit(self) -> None:
        """Bring the file up to date; where that fails the tasks stay in memory and the next commit tries again."""
        if self._file is None:
            return
        self._file.put((stored(self, name) for name in self._unsaved), header_of(self))
        self._unsaved.clear()

    def _answers(self, images: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """The largest probability and its label for each image, under one mask."""
        self._observer.settle()
        run = partial(self.switched.run, self.bank, index)
        outputs = torch.cat([run(piece) for piece in self.net.pieces(images)])
        confidence, labels = outputs.softmax(-1).max(-1)
        return confidence, labels

    @cached_property
    def switched(self) -> SwitchedNet:
        """The network that answers, with the mask of the last answer still on."""
        return SwitchedNet(self.net, self.bank.spans)

    def _infer(self, decisions: Tensor, among: Sequence[str] | None, how: Inference) -> Tensor:
        self._observer.settle()
        if not self._classes:
            raise SupSupError("no task has been learned yet; call learn or observe first")
        if among is None:
            return infer(self.net, self.bank, decisions, None, max(self._classes.values()), how)
        if not among:
            raise SupSupError("among=[] leaves no task to choose from")
        places = {name: index for index, name in enumerate(self._classes)}
        members = [places[name] if name in places else self._index(name) for name in among]
        return infer(self.net, self.bank, decisions, members, max(self._classes[name] for name in among), how)

    def _index(self, task: str) -> int:
        if task not in self._classes:
            known = ", ".join(self.tasks[:5]) + (", …" if len(self._classes) > 5 else "")
            raise SupSupError(
                f"unknown task {task!r}; " + (f"known: {known}" if known else "none has been learned yet")
            )
        return self.tasks.index(task)

    def _checked(
        self, data: Task | tuple[Array, Array], name: str | None = None, seen: set[tuple[int, ...]] | None = None
    ) -> Task:
        """The task to learn, once everything about it has been looked at; images and labels already seen only once."""
        task = checks.task_to_learn(data, name, self._classes, self._shape, self.device)
        key = (id(task.train.images), id(task.train.labels), id(task.train.rows))
        if seen is None or key not in seen:
            checks.task_fits(task, self.net, self._shape)
        if seen is not None:
            seen.add(key)
        return task

    def _images(self, x: Array, learning: bool = False) -> Tensor:
        if not learning and not self._classes:
            raise SupSupError("no task has been learned yet; call learn or observe first")
        images = checks.images(x, self.device)
        checks.same_shape(tuple(images.shape[1:]), self._shape)
        return images

    def _outputs_for(self, images: Tensor) -> int:
        return checks.outputs_for(self.net, images, self._shape)
