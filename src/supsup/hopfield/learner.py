"""`HopSupSup`: many tasks on one frozen network, with all masks in a Hopfield memory of constant size.

A mask selects hidden units. Once learned it is stored in Ψ and μ and discarded; from images of the task it is recovered
from the two. Many models with different seeds can do the same work at once: `learn_in_parallel`, `recover_in_parallel`.
In a model file the header lists the tasks, and the state is Ψ and μ of every layer.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from supsup.data import Task
from supsup.data.task import NO_INFO, TaskInfo
from supsup.file.header import build_header, check_network, check_notes, explain_unknown_settings, network_from_header
from supsup.file.modelfile import ModelFile, model_from_bytes, model_to_bytes, write_new
from supsup.file.paths import AnyPath
from supsup.file.sqlite import explain_errors
from supsup.file.task_record import LearnedTask, info_from_text, info_to_text, tensors_from_bytes, tensors_to_bytes
from supsup.hopfield.memory import RULES, overfull, running_mean
from supsup.hopfield.units import Recovered, Recovery, UnitRecipe, recover, train_units
from supsup.masks.frozen import FrozenNet
from supsup.model import checks
from supsup.model.checks import Array
from supsup.model.predictor import Images, Prediction, answer_among
from supsup.model.state import TasksOfModel, TaskTable
from supsup.nets.architecture import architecture_of
from supsup.nets.fully_connected import HopMLP, many_outputs
from supsup.runtime.clock import now
from supsup.runtime.devices import resolve
from supsup.runtime.errors import Damaged, SupSupError
from supsup.runtime.locks import ReadersWriter, new_lock
from supsup.runtime.validation import choice, flag, given, listed, plain_tensor, text, whole

KIND = "HopSupSup"


class MemoryFull(UserWarning):
    """More masks were stored than the Hopfield memory holds."""


class HopSupSup(TasksOfModel):
    """Many tasks on one frozen network, in a memory of constant size.

    net       nets.hop_mlp(outputs=…) or nets.HopMLP(widths); it needs an output for every class of every task
    rule      how a mask is stored: "storkey" or "hebb"
    recipe    how a mask is trained
    recovery  how a mask is recovered

    Each task gets the next free outputs for its classes, so an output stands for a task and a label. `notes` (JSON
    values) belong to the user and are saved with the model. Many threads may predict while one learns; threads that
    learn take turns.
    """

    one_task_per_call = True

    def __init__(
        self,
        net: HopMLP,
        seed: int = 0,
        *,
        rule: str = "storkey",
        recipe: UnitRecipe | None = None,
        recovery: Recovery | None = None,
        device: str | torch.device = "auto",
    ) -> None:
        if not isinstance(net, HopMLP):
            raise SupSupError(f"HopSupSup masks the units of a HopMLP, not of a {type(net).__name__}; use nets.hop_mlp")
        self.device = resolve(device)
        self.net = FrozenNet(net, seed, self.device)
        self.rule = choice(*RULES)(rule, "learning rule")
        self.recipe = UnitRecipe() if recipe is None else given(recipe, UnitRecipe, "recipe")
        self.recovery = Recovery() if recovery is None else given(recovery, Recovery, "recovery")
        self._widths, self.outputs = net.widths, net.widths[-1]
        self.psi = [torch.zeros(width, width, device=self.device) for width in net.widths[1:-1]]
        self.mean = [torch.zeros(width, device=self.device) for width in net.widths[1:-1]]
        self._notes: dict[str, Any] = {}
        self.created = now()
        self.image_shape: tuple[int, ...] | None = None  # of the images learned
        self._tasks = TaskTable()
        self._lock = ReadersWriter()  # answers read what `store` writes
        self.changing = new_lock()  # held by the thread that learns

    def __reduce__(self) -> tuple[Any, ...]:
        """As the bytes of its file, and the module where the file cannot name it."""
        with self._lock.reading():
            module = None if architecture_of(self.net.module) is not None else self.net.module
            load = partial(type(self).load, net=module, device=str(self.device))
            return model_from_bytes, (model_to_bytes(self.save), load)

    @property
    def notes(self) -> dict[str, Any]:
        """JSON values that the user keeps with the model."""
        return self._notes

    @notes.setter
    def notes(self, notes: dict[str, Any]) -> None:
        self._notes = check_notes(notes)

    @property
    def seed(self) -> int:
        return self.net.seed

    @property
    def memory_bytes(self) -> int:
        """The size of Ψ and μ, which depends on the widths of the network only."""
        return sum(tensor.nbytes for tensor in [*self.psi, *self.mean])

    def learn(
        self,
        data: Any,
        /,
        task: str | None = None,
        *,
        label: Any = None,
        layout: str | None = None,
        normalise: bool = True,
    ) -> str:
        """Train a mask on a `Task`, or on data of any form (docs/own-data.md) with task="name", and store it.

        A mask is recovered before its task is known, so all tasks use the normalisation of the first. Returns the name.
        """
        about = self._input_requirements()
        made = checks.make_task(data, task, about, label=label, layout=layout, normalise=flag(normalise, "normalise"))
        made = made if task is None else replace(made, name=task)
        learn_in_parallel([self], made)
        return made.name

    def recover(self, x: Array, *, history: bool = False, procedure: str | None = None) -> Recovered:
        """The mask of the task that all these images come from.

        history    also return the units after every step
        procedure  "paper" or "best-of" instead of the model's setting
        """
        with self._lock.reading():
            return recover_in_parallel([self], self._images(x), history=flag(history, "history"), procedure=procedure)

    def predict(
        self,
        x: Array,
        task: str | None = None,
        *,
        among: Sequence[str] | None = None,
        units: Sequence[Tensor] | None = None,
    ) -> Prediction:
        """A label and a task for every image; all images must come from one task, which may be unknown.

        task   the task, if known: only its outputs are used. The mask is recovered from the images in any case
        among  if the task is unknown: use only the outputs of these tasks (default: all)
        units  a mask that was recovered before (`recover(...).units`), to be used as it is
        """
        with self._lock.reading():
            images = self._images(x)
            columns, classes = self._outputs_of(task, among)
            found = recover_in_parallel([self], images).units if units is None else self._units(units)
            mask = [part.view(1, -1) for part in found]
            info = {name: self._tasks[name].info for name in classes}
        outputs = outputs_in_parallel([self], images, mask)[0]
        return answer_among(outputs[:, columns], classes, info)

    def store(
        self, task: str, classes: int, units: Sequence[Tensor], shape: tuple[int, ...], info: TaskInfo = NO_INFO
    ) -> None:
        """Add a mask, booleans [width] for each hidden layer, to Ψ and μ; warns when they hold too many."""
        classes = whole(1)(classes, "classes")
        units = self._units(units)
        change = self._tasks.prepare_add([LearnedTask(text(task, "task"), classes, info=info)])
        self._check_outputs(task, classes)
        self._check_shape(shape)
        count = len(self._tasks) + 1
        patterns = [mask.flatten().float() * 2 - 1 for mask in units]
        psi = [RULES[self.rule](old, z) for old, z in zip(self.psi, patterns)]
        mean = [running_mean(old, z, count) for old, z in zip(self.mean, patterns)]
        with self._lock.writing():
            self.psi, self.mean, self.image_shape = psi, mean, shape
            change()
        if any(overfull(self.rule, *layer, count) for layer in zip(psi, mean, patterns)):
            warnings.warn(
                f"the memory is full: with task {task!r} it holds {count} masks, and some may no longer be recovered; "
                "use a wider network, rule='storkey' or another model for further tasks",
                MemoryFull,
                stacklevel=3,
            )

    def save(self, path: AnyPath) -> None:
        """Write the model to a file, complete or not at all; an older model file is replaced."""
        with self._lock.reading():
            if not all(bool(tensor.isfinite().all()) for tensor in self._memory.values()):
                raise SupSupError(
                    "the memory holds numbers that are not finite, so something went wrong before; load it again"
                )
            tasks = [[task.name, task.classes, task.learned_at] for task in self._tasks]
            details = {"rule": self.rule, "recovery": asdict(self.recovery), "tasks": tasks}
            info = {each.name: line for each in self._tasks if (line := info_to_text(each.info, each.classes))}
            details |= {"facts": info} if info else {}  # the key of earlier versions
            about: dict[str, Any] = {"notes": self.notes, "created": self.created, "kind": KIND, "details": details}
            about |= {"recipe": asdict(self.recipe), "inference": {}, "allocation": {}, "image_shape": self.image_shape}
            write_new(path, build_header(self.net, **about), state=tensors_to_bytes(self._memory))

    @classmethod
    def load(cls, path: AnyPath, net: nn.Module | None = None, *, device: str | torch.device = "auto") -> Self:
        """The HopSupSup model in a file, checked; `net`: your module, if it was not built from `supsup.nets`."""
        with ModelFile(path) as file, explain_errors(file.path):
            header, (settings, tasks) = file.header, read_hop_contents(file)
            state, widths = file.state(), [shape[0] for shape in header.shapes.values()][:-1]
            if 4 * sum(width * width + width for width in widths) > len(state):  # before memory is allocated
                raise Damaged(f"the memory of a network of widths {widths} is not in the file")
            with explain_unknown_settings():
                module: Any = net if net is not None else network_from_header(header)
                model = cls(module, header.seed, **settings, device=device)
            check_network(model.net, header)
            stored = tensors_from_bytes(state, "the model's state")
        for name, tensor in model._memory.items():
            found = stored.get(name)
            fits = found is not None and (found.shape, found.dtype) == (tensor.shape, tensor.dtype)
            if found is None or not fits or not bool(found.isfinite().all()):
                raise Damaged(
                    f"{path}: {name} of the memory is missing or holds anything but finite {tensor.dtype} "
                    f"{list(tensor.shape)}; restore the file from a backup"
                )
            tensor.copy_(found)
        model._tasks, model.image_shape = tasks, header.learned_shape
        model.notes, model.created = dict(header.notes), header.created
        return model

    @property
    def _memory(self) -> dict[str, Tensor]:
        """Ψ and μ of each hidden layer, by the names they have in a file."""
        layers = {"psi": self.psi, "mean": self.mean}.items()
        return {f"{name}.{number}": tensor for name, tensors in layers for number, tensor in enumerate(tensors)}

    @property
    def _outputs_used(self) -> int:
        return sum(task.classes for task in self._tasks)

    def _outputs_of(self, task: Any, among: Sequence[str] | None) -> tuple[list[int], dict[str, int]]:
        """The outputs to use, task by task, and how many each task has."""
        if task is not None and not isinstance(task, str):
            raise SupSupError("task is the name of a task; give a recovered mask as predict(x, units=…)")
        chosen = [self._tasks.index(task)] if task is not None else self._tasks.indices(among)
        indices = range(len(self._tasks)) if chosen is None else set(chosen)
        columns: list[int] = []
        classes: dict[str, int] = {}
        start = 0
        for index, learned in enumerate(self._tasks):
            if index in indices:
                columns += range(start, start + learned.classes)
                classes[learned.name] = learned.classes
            start += learned.classes
        return columns, classes

    def _units(self, units: Sequence[Tensor]) -> list[Tensor]:
        """A mask as booleans [width] for each hidden layer, or an error if it does not fit the network."""
        widths = list(self._widths[1:-1])
        masks = [plain_tensor(part, "units").to(self.device) for part in listed(units, "units", "tensors")]
        if any(mask.dtype != torch.bool for mask in masks) or [mask.numel() for mask in masks] != widths:
            raise SupSupError(
                f"units must be booleans for the hidden layers of widths {widths}, as recover(...).units are"
            )
        return masks

    def __repr__(self) -> str:
        widths = " → ".join(map(str, self._widths))
        used = f"{self._outputs_used} of {self.outputs} outputs used; {self.memory_bytes:,} bytes of memory"
        return f"HopSupSup({widths}, seed {self.seed}; {len(self._tasks):,} tasks, {used}; on {self.device})"

    def _input_requirements(self) -> checks.InputRequirements:
        """What raw data must fit to become a task of this model."""
        return checks.InputRequirements.of(self.net, self.image_shape, self._tasks, one_normalisation=True)

    def _checked(self, data: Task) -> Task:
        suited = checks.fit_to_model(given(data, Task, "the task"), self._input_requirements())
        task = checks.check_new_task(suited, None, self._tasks)
        if task.inputs is None and len(self._tasks) and self._tasks.at(0).info.inputs is not None:
            raise SupSupError(f"this model takes raw inputs; make task {task.name!r} from raw data, with data.task")
        if len(task.train) < 2:
            raise SupSupError(f"task {task.name!r} has {len(task.train)} training images; give at least 2")
        checks.check_finite(task, self.device)
        checks.check_label_range(task.train.labels, task.classes, task.name)
        self._check_outputs(task.name, task.classes)
        self._check_shape(task.train.shape)
        return task

    def _check_outputs(self, task: str, classes: int) -> None:
        """An error unless the network has enough free outputs."""
        needed = self._outputs_used + classes
        if needed > self.outputs:
            raise SupSupError(
                f"task {task!r} has {classes} classes, but only {self.outputs - needed + classes} of the network's "
                f"{self.outputs} outputs are free; build it with outputs={needed} or more"
            )

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        checks.check_shape(shape, self.image_shape)
        features = torch.Size(shape).numel()
        if features != self._widths[0]:
            raise SupSupError(
                f"images of shape {shape} have {features} pixels, but the network takes {self._widths[0]}; "
                f"build it with inputs={features}"
            )

    def _images(self, x: Array) -> Tensor:
        if not len(self._tasks):
            raise SupSupError("no task has been learned yet; call learn first")
        inputs, views = self._tasks.at(0).info.inputs, self._tasks.input_groups([0])
        images = Images(x, views, self.image_shape, self.net).preprocessed(inputs)
        self._check_shape(tuple(images.shape[1:]))
        if len(images) < 2:
            raise SupSupError("HopSupSup normalises over the batch, so it needs several images of one task; got 1")
        return images


def learn_in_parallel(models: Sequence[HopSupSup], task: Task) -> list[Tensor]:
    """Every model learns the task, all in the same matrix products.

    The models must share widths, recipe and the tasks so far; their seeds differ. Returns the masks, booleans
    [n, width] for each hidden layer; the models do not keep them.
    """
    first = models[0]
    with ExitStack() as held:
        for model in sorted(models, key=id):
            held.enter_context(model.changing)
        for model in models:
            task = model._checked(task)
        seeds = [model.seed for model in models]
        units = train_units(_weights(models), seeds, task.name, task.train, first._outputs_used, first.recipe)
        info = TaskInfo.of(task)
        for index, model in enumerate(models):
            model.store(task.name, task.classes, [mask[index] for mask in units], task.train.shape, info)
    return units


def recover_in_parallel(
    models: Sequence[HopSupSup], x: Tensor, *, history: bool = False, procedure: str | None = None
) -> Recovered:
    """`recover` by every model at once, for the same images [m, …], with the settings of the first model."""
    how = models[0].recovery if procedure is None else replace(models[0].recovery, procedure=procedure)  # type: ignore[arg-type]
    psi = [torch.stack(layer) for layer in zip(*(model.psi for model in models))]
    mean = [torch.stack(layer) for layer in zip(*(model.mean for model in models))]
    return recover(_weights(models), psi, mean, x.flatten(1), how, history)


@torch.no_grad()
def outputs_in_parallel(models: Sequence[HopSupSup], x: Tensor, units: Sequence[Tensor]) -> Tensor:
    """The outputs [n, m, s] of each model for the same images [m, …] with its mask [n, width] for each layer.

    The images are split evenly into batches of at most `recovery.batch_size`.
    """
    weights, masks = _weights(models), [mask[:, None].float() for mask in units]
    pieces = x.flatten(1).tensor_split(-(-len(x) // models[0].recovery.batch_size))
    return torch.cat([many_outputs(weights, piece[None, None], masks)[:, 0] for piece in pieces], dim=1)


def read_hop_contents(file: ModelFile) -> tuple[dict[str, Any], TaskTable]:
    """The settings (rule, recipe, recovery) and tasks of the model in a file; an error if it is of another kind."""
    header = file.header
    if header.kind != KIND:
        raise SupSupError("holds a SupSup model, not a HopSupSup one: open it with supsup.load(path)")
    with explain_unknown_settings():
        texts = header.details.get("facts", {})
        recipe, recovery = UnitRecipe(**header.recipe), Recovery(**header.details["recovery"])
        tasks = TaskTable(
            LearnedTask(name, count, when, info=info_from_text(texts.get(name), count, header.image_shape))
            for name, count, when in header.details["tasks"]
        )
        return {"rule": header.details["rule"], "recipe": recipe, "recovery": recovery}, tasks


def _weights(models: Sequence[HopSupSup]) -> list[Tensor]:
    """[n, out, in] for each layer."""
    if len(models) == 1:
        return [weight[None] for weight in models[0].net.weights.values()]
    return [torch.stack(layer) for layer in zip(*(model.net.weights.values() for model in models))]
