"""`SupSup`: learn one task after another on one frozen network, and predict with or without the task."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from typing import Any, Literal, Self, overload

import torch
from torch import Tensor, nn

from supsup.data import Part, Task
from supsup.data.user_data import Normalise
from supsup.file.header import check_notes
from supsup.file.paths import AnyPath
from supsup.inference.methods import AUTO, Inference
from supsup.inference.new_task import NewTaskRule
from supsup.inference.profiles.features import SIZES
from supsup.masks.frozen import FrozenNet
from supsup.model import checks
from supsup.model.checks import Array
from supsup.model.learning import Learning
from supsup.model.observer import Observer
from supsup.model.predictor import Outputs, Prediction, Predictor
from supsup.model.state import Extras, ModelSettings, ModelState, OtherKind, Setting, TasksOfModel, state_of
from supsup.runtime.devices import resolve
from supsup.runtime.errors import SupSupError
from supsup.runtime.interrupts import uninterrupted
from supsup.runtime.locks import Lock
from supsup.runtime.progress import Callback
from supsup.runtime.validation import choice, given, plain_tensor
from supsup.training import AutoRecipe, Recipe

_PARTS = ("_state", "_tasks", "_learning", "_observer", "_predictor")  # of every model; others are a subclass's


class SupSup(TasksOfModel):
    """Many tasks on one network with frozen random weights: one binary mask per task.

    net         any module with linear or convolutional layers; copied, its weights replaced by ±c from `seed`
    pretrained  keep the module's weights, biases and statistics as they are, and start each task with every weight
                kept; None: if it was built so (`nets.mobilenet_v2(pretrained=True)`)
    own_head    each task trains a last linear layer of its own, which is not masked; None: if the network is pretrained
    recipe      how a mask is trained; by default it is chosen for each task (`AutoRecipe`)
    inference   how the task is inferred when it is not given
    new_task_rule  when `observe` opens a new mask
    profile_size  "small", "default" or "large": how many bytes each task leaves beside its mask, to be recognised by

    `notes` (JSON values) and `extras` (tensors, by task) belong to the user and are saved with the model.

    Many threads may predict while one learns, observes or forgets; each answer sees one consistent state of the model,
    and `reading()` keeps it unchanged for several calls. Threads that learn, observe or forget take turns. An
    interruption leaves each task learned or not, never half. `supsup.model.state.state_of(model)` is for extensions.

    A copy (`copy`, `pickle`, a spawned process) has all masks, but no file and no half-trained masks of `observe`.
    """

    recipe = Setting[Recipe | AutoRecipe](lambda value: given(value, Recipe, "recipe", AutoRecipe))
    inference = Setting[Inference](lambda value: given(value, Inference, "inference"))
    new_task_rule = Setting[NewTaskRule](lambda value: given(value, NewTaskRule, "new_task_rule"))
    notes = Setting[dict[str, Any]](check_notes)

    def __init__(
        self,
        net: nn.Module,
        seed: int = 0,
        *,
        pretrained: bool | None = None,
        own_head: bool | None = None,
        recipe: Recipe | AutoRecipe | None = None,
        inference: Inference | None = None,
        new_task_rule: NewTaskRule | None = None,
        profile_size: Literal["small", "default", "large"] = "default",
        device: str | torch.device = "auto",
    ) -> None:
        settings = ModelSettings(
            AutoRecipe() if recipe is None else given(recipe, Recipe, "recipe", AutoRecipe),
            AUTO if inference is None else given(inference, Inference, "inference"),
            NewTaskRule() if new_task_rule is None else given(new_task_rule, NewTaskRule, "new_task_rule"),
        )
        choice(*SIZES)(profile_size, "profile_size")
        frozen = FrozenNet(net, seed, resolve(device), pretrained, own_head=own_head, profile_size=profile_size)
        self._take_state(ModelState(frozen, settings))

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """A model with this state."""
        model = cls.__new__(cls)
        model._take_state(state)
        return model

    def _take_state(self, state: ModelState) -> None:
        self._state, self._tasks, self._learning = state, state.tasks, Learning(state)
        self._observer, self._predictor = Observer(state), Predictor(state)

    @classmethod
    def load(
        cls,
        path: AnyPath,
        net: nn.Module | None = None,
        *,
        in_place: bool = False,
        masks: Literal["memory", "disk"] = "memory",
        device: str | torch.device = "auto",
    ) -> Self:
        """The SupSup model in a file, as `supsup.load` loads it; an error if the file holds another kind of model."""
        return cls.from_state(ModelState.load(path, net, device, in_place=in_place, masks=masks))

    def __reduce__(self) -> tuple[Any, ...]:
        added = {name: value for name, value in vars(self).items() if name not in _PARTS}
        with self.reading():
            return type(self).from_state, (self._state,), added

    def recipe_of(self, task: str) -> Recipe | AutoRecipe:
        """The recipe that was chosen for a task, or else the model's."""
        chosen: Any = self._tasks[task].info.recipe
        return self.recipe if chosen is None else Recipe(**chosen)

    @property
    def extras(self) -> MutableMapping[str, dict[str, Tensor]]:
        """Tensors of the user, by task, saved with the model."""
        return Extras(self._tasks)

    @property
    def created(self) -> str:
        """When the model was created (UTC)."""
        return self._state.created

    @property
    def module(self) -> nn.Module:
        """The network with its frozen weights, on the model's device; not to be changed."""
        return self._state.net.module

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self._state.net.device

    @property
    def seed(self) -> int:
        """The seed of the frozen weights."""
        return self._state.net.seed

    @property
    def version(self) -> object:
        """Another object after every task learned or forgotten: a key for caches."""
        return self._tasks.version

    def __contains__(self, task: object) -> bool:
        """Whether a task of this name was learned."""
        return task in self._tasks

    def __repr__(self) -> str:
        return self._state.summary(type(self).__name__)

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """The shape of the images learned, or None before the first."""
        return self._state.image_shape

    def mask(self, task: str) -> dict[str, Tensor]:
        """A task's mask: a boolean tensor for each masked weight."""
        with self.reading():
            return self._state.bank.mask(self._tasks.index(task))

    def subnetwork(self, task: str) -> dict[str, Tensor]:
        """The tensors of one task's network: its masked weights, and the statistics of its normalisation layers."""
        with self.reading():
            found = self._state.bank.subnetwork(self._tasks.index(task))
            return {name: value.clone() for name, value in self._state.net.masked(found).items()}

    def learn(
        self,
        data: Any,
        /,
        task: str | None = None,
        *,
        label: Any = None,
        layout: str | None = None,
        normalise: Normalise = True,
        callback: Callback | None = None,
        show_progress: bool | None = None,
    ) -> str:
        """Train one new mask on a `Task`, or on data of any form (docs/own-data.md) with task="name"; returns the name.

        label      the column or key of the labels, if the data has names
        layout     "NCHW" or "NHWC", if the shape is ambiguous
        normalise  True: by the data's mean and deviation, or those of the first task if they suit; "own"; False
        callback   called with a `Step` between training steps; an exception in it stops training: nothing is learned
        """
        with self._state.changing, _gradients_restored():
            required = self._learning.input_requirements()
            made = checks.make_task(data, task, required, label=label, layout=layout, normalise=normalise)
            checked = checks.check_new_task(made, task, self._tasks)
            checks.check_task_fits(checked, required)
            self._write_back()
            self._learning.learn([checked], show_progress=show_progress, callback=callback)
            return checked.name

    def learn_many(
        self,
        stream: Sequence[Task],
        *,
        cluster: str | Executor | None = None,
        precision: torch.dtype | None = None,
        show_progress: bool | None = None,
    ) -> list[str]:
        """Learn every task of a stream, many at once; if one of them is invalid, nothing is learned.

        An interruption keeps the tasks finished by then. `precision` of matrix products: by default bfloat16 on a GPU
        (for fully connected networks), else float32. `cluster`: the machines that train (docs/cluster.md).
        """
        with self._state.changing, _gradients_restored():
            tasks = checks.check_stream(stream, self._tasks, self._learning.input_requirements())
            self._write_back()
            if cluster is None:
                self._learning.learn(tasks, precision=precision, show_progress=show_progress)
            else:
                from supsup.cluster.driver import learn_on  # a layer above this one

                learn_on(cluster, self._learning, tasks, precision, show_progress)
            return [task.name for task in tasks]

    def predict(
        self,
        x: Array,
        task: str | None = None,
        *,
        among: Sequence[str] | None = None,
        inference: Inference | None = None,
        outputs: Outputs = "classes",
        unknown: bool | float = False,
    ) -> Prediction:
        """A label for every image, with the task given, or inferred for each image by itself.

        x          inputs in the form that was learned: raw if the task was made from raw data, else as network inputs
        among      the candidate tasks if the task is not given (all by default)
        inference  replaces the model's setting for this call
        outputs    "all": outputs that no class of the task uses may answer, too, as in the paper
        unknown    reject images that belong to no learned task: label −1, task and name None. True also rejects about
                   5 % of the images of known tasks; a number sets that share
        """
        how = self.inference if inference is None else given(inference, Inference, "inference")
        with self._predictor.waiting(), self.reading():
            return self._predictor.predict(x, task, among, how, outputs, unknown)

    @overload
    def infer_task(self, x: Array, *, per: Literal["image"] = "image", **how: Any) -> list[str]: ...

    @overload
    def infer_task(self, x: Array, *, per: Literal["batch", "first"], **how: Any) -> str: ...

    def infer_task(
        self, x: Array, *, per: str = "image", among: Sequence[str] | None = None, **how: Any
    ) -> list[str] | str:
        """The name of the task that the images belong to.

        per    "image": a list with a name for each image; "batch": one name from all of them together;
               "first": one name from the first image alone
        among  the candidate tasks (all by default)
        how    fields of `Inference` (method, objective, layers, gamma, …) that replace those of the model
        """
        choice("image", "batch", "first")(per, "per")
        try:
            settings = self.inference.replaced(**how)
        except TypeError as error:
            raise SupSupError(f"unknown inference setting: {error}") from error
        with self._predictor.waiting(), self.reading():
            inferred = self._predictor.infer(x, among, settings, per)
        return inferred if per == "image" else inferred[0]

    def infer_batches(self, x: Array, *, among: Sequence[str] | None = None) -> list[str]:
        """The task of each of r batches [r, b, …], from all images of a batch together."""
        with self._predictor.waiting(), self.reading():
            return self._predictor.infer(x, among, self.inference, "batches")

    def task_scores(
        self, x: Array, *, among: Sequence[str] | None = None, inference: Inference | None = None
    ) -> Tensor:
        """How well each candidate fits each image, by the first pass of the method: [images, candidates].

        Columns are in the order of `among`, or of `tasks`; the higher the better. `Method.scores` says what they are.
        """
        how = self.inference if inference is None else given(inference, Inference, "inference")
        with self._predictor.waiting(), self.reading():
            return self._predictor.scores(x, among, how)

    def observe(self, x: Array, y: Array) -> str | None:
        """Train on one batch of an unknown task; returns the name of the mask that was trained.

        None if the batch fits no mask and the budget allows no new one: then nothing is learned.

        Every `new_task_rule.every` batches the model decides whether to continue a mask or to open a new one. Each mask
        keeps its scores and optimiser state, so a task that returns continues where it stopped.
        """
        with self._state.changing:
            images, net = checks.check_images(x, self.device), self._state.net
            outputs = checks.count_frozen_outputs(net, images, self.image_shape)
            labels = checks.check_labels(y, len(images), self.device)
            checks.check_label_range(labels, outputs, "observed")
            if len(images) == 1:  # normalisation needs more than one image: an error before a mask is opened
                net.rehearse(images)
            return self._observer.step(images, labels)

    def forget(self, task: str) -> None:
        """Delete a task permanently; answers for other tasks do not change."""
        with self._state.changing, self._observer.lock:
            self._tasks.index(task)  # an error for an unknown task
            self._write_back()
            with uninterrupted():
                self._state.remove(task)
                self._observer.forget(task)

    def to(self, device: str | torch.device) -> SupSup:
        """A copy on a device, with all masks but without the half-trained masks of `observe`."""
        with self.reading():
            return self.from_state(self._state.to(resolve(device)))

    def save(self, path: AnyPath | None = None) -> None:
        """Write the model to a file, completely or not at all; an existing model file is replaced.

        Without a path: update the file of a model loaded with in_place=True, as `learn` and `forget` do by themselves.
        A mask that `observe` is training is written in its present state.
        """
        if not self._state.lives_at(path):
            with self.reading():
                self._state.save(path)
            return
        with self._state.changing:
            self._write_back()
            self._state.save(path)

    def close(self) -> None:
        """Update and close the file of a model loaded with in_place=True; the model stays usable."""
        with self._state.changing:
            file = self._state.file
            if file is None:
                return
            try:
                if not file.is_foreign:
                    self.save()
            finally:
                self._state.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reading(self) -> Lock:
        """For `with`: all calls inside see one state of the model; changes by other threads wait."""
        lock = self._state.lock
        if not lock.held:
            self._write_back()
        return lock.reading()

    def _write_back(self) -> None:
        """Bring the bank up to date with the mask that `observe` trains."""
        if self._observer.changed:
            self._observer.write_back()


def load(
    path: AnyPath,
    net: nn.Module | None = None,
    *,
    in_place: bool = False,
    masks: Literal["memory", "disk"] = "memory",
    device: str | torch.device = "auto",
) -> SupSup | Any:
    """The model in a file (`SupSup` or `HopSupSup`), every mask checked.

    net       your module, where the model was not built from `supsup.nets`
    in_place  commit each task to the file as soon as it is learned or forgotten; use `with` or call `close`
    masks     "disk": masks stay on disk, and a search reads them through the page cache (docs/model-file.md)

    `in_place` and `masks="disk"` are for `SupSup` only: a `HopSupSup` file is one memory, which `save` writes whole.
    """
    try:
        return SupSup.load(path, net, in_place=in_place, masks=masks, device=device)
    except OtherKind:
        if in_place or masks != "memory":
            option = "in_place=True" if in_place else f"masks={masks!r}"
            raise SupSupError(
                f"{path} holds a HopSupSup model, for which there is no {option}: "
                "load it without that option, and save() it when it has changed"
            ) from None
        from supsup.hopfield.learner import HopSupSup  # a layer above this one, and most programs never use it

        return HopSupSup.load(path, net, device=device)


def observe_batches(model: SupSup, part: Part, positions: Tensor) -> Iterator[tuple[str | None, int]]:
    """`observe` on the batches of a part at positions [n, b], in order and much faster on a GPU.

    Yields once for each decision: the name of a mask, and how many batches went to it. On a GPU those batches may
    still be running.
    """
    state = state_of(model)
    part = given(part, Part, "part").on(model.device)
    positions = plain_tensor(positions, "positions").to(model.device)
    checks.check_positions(positions, len(part))
    first, _ = part.batch(positions[0, :1])
    checks.check_label_range(part.labels, checks.count_frozen_outputs(state.net, first, model.image_shape), "observed")
    return model._observer.run(part, positions)


def _gradients_restored() -> AbstractContextManager[None]:
    """At its end torch records gradients as before, also after an interruption while they are off."""
    return torch.set_grad_enabled(torch.is_grad_enabled())
