"""`SupSup`: learn task after task on one frozen network, and answer without being told the task."""

from __future__ import annotations

import copy
from collections.abc import Iterator, MutableMapping, Sequence
from concurrent.futures import Executor
from typing import Any, Literal, Self, overload

import torch
from torch import Tensor, nn

from supsup.data import Part, Task
from supsup.data.task import TaskInfo
from supsup.data.user_data import Normalise
from supsup.file.header import check_notes
from supsup.file.paths import AnyPath
from supsup.inference.new_task import NewTaskRule
from supsup.inference.settings import AUTO, Inference
from supsup.masks.frozen import FrozenNet
from supsup.model import checks
from supsup.model.checks import Array
from supsup.model.learning import Learning, gradients_kept, train_together
from supsup.model.observer import Observer
from supsup.model.prediction import Outputs, Prediction, check_outputs
from supsup.model.predictor import Predictor, check_rejected_share, image_by_image
from supsup.model.state import ModelSettings, ModelState, Setting, state_of
from supsup.model.task_table import Extras
from supsup.runtime import progress
from supsup.runtime.devices import resolve
from supsup.runtime.errors import SupSupError
from supsup.runtime.interrupts import uninterrupted
from supsup.runtime.locks import Lock
from supsup.runtime.progress import Callback
from supsup.runtime.validation import choice, given, plain_tensor
from supsup.training import AutoRecipe, Recipe

_PARTS = ("_state", "_learning", "_observer", "_predictor")  # attributes of every model; others are a subclass's


class SupSup:
    """Many tasks on one network with frozen random weights: one binary mask per task.

    net         any module with linear or convolutional layers; copied, its weights replaced by ±c from `seed`
    pretrained  keep the module's weights, biases and statistics as they are, and start each task with every weight
                kept; None: if it was built so (`nets.mobilenet_v2(pretrained=True)`)
    own_head    each task trains a last linear layer of its own, which is not masked; None: if the network is pretrained
    recipe      how a mask is trained; by default it is chosen for each task (`AutoRecipe`)
    inference   how a task is inferred when nobody says it
    new_task_rule  when `observe` opens a new mask

    `notes` (JSON values) and `extras` (tensors, by task) are the user's own and are saved with the model.

    Many threads may ask while one learns, observes or forgets: an answer is that of one state of the model, whole.
    Threads that learn, observe or forget take turns. An interruption leaves each task learned or not, never half.

    A copy (`copy`, `pickle`, a process that is spawned) has all masks; it lives in no file, and what `observe` has
    half-trained stays behind.
    """

    recipe = Setting[Recipe | AutoRecipe](Recipe, AutoRecipe)
    inference = Setting[Inference](Inference)
    new_task_rule = Setting[NewTaskRule](NewTaskRule)

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
        device: str | torch.device = "auto",
    ) -> None:
        settings = ModelSettings(
            AutoRecipe() if recipe is None else given(recipe, Recipe, "recipe", AutoRecipe),
            AUTO if inference is None else given(inference, Inference, "inference"),
            checks.setting(new_task_rule, NewTaskRule, "new_task_rule"),
        )
        frozen = FrozenNet(net, seed, resolve(device), pretrained, own_head=own_head)
        self._take_state(ModelState(frozen, settings))

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """A model that consists of this."""
        model = cls.__new__(cls)
        model._take_state(state)
        return model

    def _take_state(self, state: ModelState) -> None:
        self._state, self._learning = state, Learning(state)
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

    def __copy__(self) -> Self:
        return copy.deepcopy(self)

    def recipe_of(self, task: str) -> Recipe | AutoRecipe:
        """The recipe that was chosen for a task; the model's where nothing was chosen."""
        chosen: Any = self._state.tasks[task].info.recipe
        return self.recipe if chosen is None else Recipe.from_dict(chosen)

    @property
    def notes(self) -> dict[str, Any]:
        """JSON values that the user keeps with the model."""
        return self._state.settings.notes

    @notes.setter
    def notes(self, notes: dict[str, Any]) -> None:
        check_notes(notes)
        self._state.settings.notes = notes

    @property
    def extras(self) -> MutableMapping[str, dict[str, Tensor]]:
        """Tensors that the user keeps with a task, by task."""
        return Extras(self._state.tasks)

    @property
    def created(self) -> str:
        """When the model was made (UTC)."""
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
    def tasks(self) -> list[str]:
        """Names of the tasks learned, in order."""
        return self._state.tasks.names

    @property
    def version(self) -> object:
        """Another object after every task learned or forgotten: a key for caches."""
        return self._state.tasks.version

    def __contains__(self, task: object) -> bool:
        """Whether a task of this name was learned."""
        return task in self._state.tasks

    def classes(self, task: str) -> int:
        """How many classes a task has."""
        return self._state.tasks[task].classes

    def task_info(self, task: str) -> TaskInfo:
        """Details of a task: the names of its classes, how its raw inputs are normalised, the recipe chosen for it."""
        return self._state.tasks[task].info

    def __repr__(self) -> str:
        return self._state.summary(type(self).__name__)

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """The shape of the images learned, or None before the first."""
        return self._state.image_shape

    def learned_at(self, task: str) -> str:
        """When a task was learned (UTC)."""
        return self._state.tasks[task].learned_at

    def mask(self, task: str) -> dict[str, Tensor]:
        """A task's mask: a boolean tensor for each masked weight."""
        with self.reading():
            return self._state.bank.mask(self._state.tasks.index(task))

    def subnetwork(self, task: str) -> dict[str, Tensor]:
        """The network of one task: its masked weights, and the statistics of its normalisation layers."""
        with self.reading():
            found = self._state.bank.subnetwork(self._state.tasks.index(task))
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

        label      the column or key of the labels, where the data has names
        layout     "NCHW" or "NHWC", where the shape leaves doubt
        normalise  True: by the data's mean and deviation, or those of the first task where they suit; "own"; False
        callback   hears of the training between steps; what it raises stops it, and nothing is learned
        """
        with self._state.changing, gradients_kept():
            made = checks.task_of(
                data, task, self._learning.expectations(), label=label, layout=layout, normalise=normalise
            )
            checked = checks.task_to_learn(made, task, self._state.tasks)
            checks.task_fits(checked, self._state.net, self.image_shape, self.recipe.self_labels is not None)
            self._observer.write_back()
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
        """Learn every task of a stream, many at once; nothing is learned if one of them is not in order.

        An interruption keeps every task finished by then. Matrix products are taken in `precision`: by default bfloat16
        on a GPU (for fully connected networks) and float32 elsewhere. `cluster` says who trains (docs/cluster.md).
        """
        with self._state.changing, gradients_kept():
            tasks = checks.stream_to_learn(stream, self._state.tasks, self._state.net, self._learning.expectations())
            self._observer.write_back()
            if cluster is None:
                self._learning.learn(tasks, precision=precision, show_progress=show_progress)
            else:
                from supsup.cluster.driver import learn_on  # a layer above this one

                learn_on(cluster, self._learning, tasks, precision=precision, show_progress=show_progress)
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
        """A label for every image, with the task known or inferred for each image on its own.

        x          inputs as they were learned: raw where a task was made of raw data, else as the network sees them
        among      where the task is not known: only these come into question (all by default)
        inference  how to infer, in place of the model's own setting
        outputs    "all": also those that stand for no class may answer, as the paper grades
        unknown    True: images may be of no task, with label −1 and None for names; about 5 % of images of known tasks
                   are refused that way, or the share that is given
        """
        how = self.inference if inference is None else given(inference, Inference, "inference")
        check_outputs(outputs, "outputs")
        rejected = check_rejected_share(unknown)
        with self._predictor.waiting(), self.reading():
            return self._predictor.predict(x, task, among, how, outputs, rejected)

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
        choice("image", "batch", "first")(per, "per")
        try:
            settings = self.inference.replaced(**how)
        except TypeError as error:
            raise SupSupError(f"unknown inference setting: {error}") from error
        decisions = {"image": image_by_image, "batch": lambda x: x[None], "first": lambda x: x[None, :1]}[per]
        with self._predictor.waiting(), self.reading():
            inferred = self._predictor.infer(x, among, settings, decisions)
        return inferred if per == "image" else inferred[0]

    def infer_batches(self, x: Array, *, among: Sequence[str] | None = None) -> list[str]:
        """The task of each of r batches [r, b, …], from all images of a batch together."""
        with self._predictor.waiting(), self.reading():
            return self._predictor.infer(x, among, self.inference, lambda batches: batches, leading=2)

    def task_scores(
        self, x: Array, *, among: Sequence[str] | None = None, inference: Inference | None = None
    ) -> Tensor:
        """How well each candidate fits each image, by the first pass of the method: [images, candidates].

        Columns are in the order of `among`, or of `tasks`; the higher the better. Gradient methods give −∂Obj/∂α,
        exhaustive minus the objective under each mask, features and auto log p(features | task).
        """
        how = self.inference if inference is None else given(inference, Inference, "inference")
        with self._predictor.waiting(), self.reading():
            return self._predictor.scores(x, among, how)

    def observe(self, x: Array, y: Array) -> str | None:
        """Train on one batch when nobody says what task it is from; returns the name of the mask it went to.

        None where it fits no mask and the budget does not allow another: then nothing is learned.

        Every `new_task_rule.every` batches the model decides whether to go on with a mask it knows or to open a new one.
        Scores and optimiser state stay with a mask, so a task that comes back is taken up where it was left.
        """
        with self._state.changing:
            images = checks.images(x, self.device)
            checks.same_shape(tuple(images.shape[1:]), self.image_shape)
            labels = checks.labels(y, len(images), self.device)
            checks.label_range(labels, checks.outputs_for(self._state.net, images, self.image_shape), "observed")
            if len(images) == 1:
                self._state.net.rehearse(images)  # before a mask is opened: normalisation needs more than one
            return self._observer.step(images, labels)

    def forget(self, task: str) -> None:
        """Remove a task for good; every other answer stays as it is."""
        with self._state.changing, self._observer.lock:
            self._state.tasks.index(task)  # an error for an unknown one
            self._observer.write_back()
            with uninterrupted():
                self._state.remove(task)
                self._observer.forget(task)

    def to(self, device: str | torch.device) -> SupSup:
        """A copy of this model on a device, with all its masks; what `observe` has half-trained stays behind."""
        with self.reading():
            return self.from_state(self._state.to(resolve(device)))

    def save(self, path: AnyPath | None = None) -> None:
        """Write the model to a file, whole or not at all; an older model file there is replaced.

        Without a path: bring the file of a model loaded with in_place=True up to date, which `learn` and `forget` do by
        themselves. A mask that `observe` is training is written as it stands.
        """
        if not self._state.lives_at(path):
            with self.reading():
                self._state.save(path)
            return
        with self._state.changing:
            self._observer.write_back()
            self._state.save(path)

    def close(self) -> None:
        """Let go of the file of a model loaded with in_place=True, up to date; the model itself stays usable."""
        with self._state.changing:
            if self._state.file is None:
                return
            try:
                if not self._state.is_foreign:
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
        if self._observer.changed and not lock.held:
            self._observer.write_back()
        return lock.reading()


def learn_with_models(models: Sequence[SupSup], task: Task, advance: progress.Advance = lambda _: None) -> None:
    """Learn a task with several models on one frozen network, each with its own recipe; together where possible."""
    for model in models:
        state = state_of(model)
        checks.stream_to_learn([task], state.tasks, state.net, model._learning.expectations())
    train_together([model._learning for model in models], task, advance)


def observe_batches(model: SupSup, part: Part, positions: Tensor) -> Iterator[tuple[str | None, int]]:
    """`observe` on the batches of a part at positions [n, b], in order and much faster on a GPU.

    Yields once for each decision: the name of a mask, and how many batches went to it. On a GPU those batches may
    still be running.
    """
    state = state_of(model)
    part = given(part, Part, "part").on(model.device)
    positions = plain_tensor(positions, "positions").to(model.device)
    checks.positions(positions, len(part))
    first, _ = part.batch(positions[0, :1])
    checks.label_range(part.labels, checks.outputs_for(state.net, first, model.image_shape), "observed")
    return model._observer.run(part, positions)
