"""Bad calls over the whole public face: for each callable and parameter values that a user may give by mistake.

Every one must end in a `SupSupError` that says something, and change nothing. A value that is fine after all (an int
for a float) is no bad call and stands in no list.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import supsup
from supsup import HopSupSup, Inference, NewTaskRule, Recipe, Recovery, SupSup, SupSupError, UnitRecipe, data
from supsup import nets as networks
from supsup.data import Augmentation, Part, Source, Stream, Task
from supsup.evaluation import learn_and_evaluate
from supsup.model.supsup import observe_batches
from supsup_paper import baselines

NAN, INF = float("nan"), float("inf")


class Hostile:
    """An object whose every conversion raises something of its own."""

    def _raise(self, *_: object) -> Any:
        raise ZeroDivisionError("hostile")

    __len__ = __iter__ = __index__ = __float__ = __int__ = __repr__ = __fspath__ = __array__ = __getitem__ = _raise


def endless() -> Iterator[int]:
    """A generator that has none of what was asked for, in any number."""
    yield from range(3)


NOTHING: list[Any] = [object(), Hostile(), {}, {"a": 1}, set, lambda: None, 1j, b"3", datetime.date(2020, 1, 1)]
WHOLE: list[Any] = [
    *NOTHING,
    *(None, "3", "", 2.5, 1.0, NAN, INF, True, False, [], [3], (1, 2), np.float32(2), np.bool_(True)),
    *(np.array([1, 2]), np.array([3]), torch.tensor([1, 2]), torch.tensor(1.5), torch.tensor(True), decimal.Decimal(3)),
]
POSITIVE: list[Any] = [*WHOLE, 0, -1, -(10**30), np.int64(-5)]
REAL: list[Any] = [
    *NOTHING,
    *(None, "0.1", "", NAN, INF, -INF, True, False, [], [0.1], np.float32("nan"), 10**400),
    *(np.array([0.1, 0.2]), torch.tensor([0.1]), torch.tensor(0.1), np.bool_(True)),
]
WORD: list[Any] = [
    *NOTHING,
    *(
        None,
        "",
        "nonsense",
        "\x1b[2J",
        "a" * 10_000,
        "\ud800",
        3,
        2.5,
        True,
        NAN,
        [],
        ["H"],
        ("H",),
        np.array(["a", "b"]),
    ),
    torch.tensor(1),
]
FLAG: list[Any] = [*NOTHING, None, "yes", "", 0, 1, 2.5, NAN, [], np.array([True, False]), torch.tensor(True)]
NAME: list[Any] = [*NOTHING, 3, 2.5, True, NAN, [], ["a"], ("a",), np.array(["a"]), "", "\ud800", None]
TASK: list[Any] = [value for value in NAME if value is not None] + ["nobody", "permutation", "\x1b[31m", "a" * 10_000]
AMONG: list[Any] = [
    *(3, 2.5, True, NAN, object(), Hostile(), "permutation-0", b"permutation-0", {"permutation-0": 1}),
    *([], (), [3], [None], ["nobody"], ["permutation-0", "nobody"], [["permutation-0"]], [b"permutation-0"], endless()),
    *(np.array([1, 2]), torch.tensor([0, 1]), lambda: None, ["permutation-0", ""], [Hostile()], np.array(3)),
]
DEVICE: list[Any] = [
    None,
    "",
    "gpu",
    "cpu:x",
    "meta",
    "tpu",
    3.5,
    True,
    [],
    {},
    object(),
    Hostile(),
    b"cpu",
    "cuda:999",
]
OBJECT: list[Any] = [3, 0, 2.5, True, NAN, "x", "", [], {}, object(), Hostile(), torch.nn.Linear, lambda: None, b"x"]
SEQUENCE: list[Any] = [
    None,
    3,
    2.5,
    True,
    "ab",
    b"ab",
    {},
    {"a": 1},
    object(),
    Hostile(),
    [None],
    ["a"],
    [[1]],
    endless,
]
DIRECTORY: list[Any] = [
    3,
    2.5,
    True,
    b"data",
    "",
    "a\0b",
    "x" * 5000,
    "/nowhere/at/all",
    object(),
    Hostile(),
    [],
    {},
    "\ud800",
]


def images(shape: tuple[int, ...]) -> list[Any]:
    """What is no batch of float images of this shape [n, …]."""
    good = torch.zeros(shape)
    nan, infinite, huge = good.clone(), good.clone(), good.double()
    nan.flatten()[0], infinite.flatten()[1], huge.flatten()[2] = NAN, -INF, 1e300
    flat = good.flatten(1)
    with warnings.catch_warnings():  # torch warns of its own that these kinds of tensors are young or old
        warnings.simplefilter("ignore")
        odd = [
            *(flat.to_sparse(), flat.to_sparse_csr(), torch.nested.as_nested_tensor([flat[0], flat[0, :2]])),
            torch.quantize_per_tensor(good, 0.1, 0, torch.quint8),
        ]
    return [
        *odd,
        *(None, 3, 2.5, NAN, "pixels", b"pixels", [], {}, {"a": 1}, object(), Hostile(), endless(), lambda: None),
        *([["a"]], [[1.0], [1.0, 2.0]], [None], [good, "x"], torch.nn.Linear, datetime.date(2020, 1, 1)),
        *(good[0, 0, 0, 0], good[0, 0, 0], good[:0], good[:, :0], flat[:, :3], good[:, :, 1:], good[None]),
        *(good.byte(), good.long(), good.bool(), good.to(torch.complex64), good.to("meta"), good.int().numpy()),
        *(nan, infinite, huge, nan.numpy(), infinite.half(), huge.numpy(), np.full(shape, "1.0")),
        *(np.full(shape, None), np.full(shape, 1.0, object), np.ma.masked_array(good.numpy(), good.numpy() == 0)),
        *(
            np.zeros(shape, complex),
            np.zeros(shape, "datetime64[s]"),
            np.zeros(shape, bool),
            np.zeros(shape, np.uint16),
        ),
        np.zeros(shape, [("a", float)]),
    ]


def labels(count: int) -> list[Any]:
    """What is no label for each of so many images."""
    good = torch.zeros(count, dtype=torch.int64)
    return [
        *(None, 3, 2.5, NAN, "labels", b"labels", [], {}, {"a": 1}, object(), Hostile(), endless(), lambda: None),
        *(
            ["a"] * count,
            [None] * count,
            [0.5] * count,
            [[0]] * count,
        ),
        *(good[1:], good[:, None], good[:0], good[0], good.float(), good.bool(), good.to(torch.complex64)),
        *(good.to("meta"), good.to_sparse(), good - 1, good + 10**9, good.numpy() * 1.0, good.numpy() * 1j),
        *(np.full(count, "0"), np.full(count, None), np.full(count, 0, object), np.zeros(count, "datetime64[s]")),
        np.ma.masked_array(good.numpy(), good.numpy() == 0),
    ]


SHAPE = (6, 1, 4, 4)


def no_inputs() -> list[Any]:
    """What cannot be learned from: numbers of any kind can."""
    whole = (torch.uint8, torch.int64, torch.bool, np.dtype(np.int32), np.dtype(bool), np.dtype(np.uint16))
    return [value for value in images(SHAPE) if getattr(value, "dtype", None) not in whole]


def no_classes(y: Tensor) -> list[Any]:
    """What is no label for each image, or one class alone."""
    return [*labels(len(y)), y[1:], y[:, None], y.float(), [*range(5), None]]


@dataclass
class World:
    """Small models that have learned two tasks each, and good arguments for every call."""

    folder: Path
    source: Source
    stream: Stream
    model: SupSup
    hop: HopSupSup
    rivals: Sequence[baselines.Baseline]
    x: Tensor
    y: Tensor
    path: Path

    def marks(self) -> list[str]:
        """What must not change: the state of every model, and the model file."""
        file = hashlib.md5(self.path.read_bytes()).hexdigest()
        return [file, state_of(self.model), state_of(self.hop), *map(state_of, self.rivals)]


def state_of(model: SupSup | HopSupSup | baselines.Baseline) -> str:
    """A digest of all that a model knows."""
    digest = hashlib.md5(repr((model.tasks, model.recipe, getattr(model, "inference", None))).encode())
    if isinstance(model, SupSup):
        tensors = [value for task in model.tasks for value in model.mask(task).values()]
        digest.update(repr((model.notes, model.image_shape, [model.classes(task) for task in model.tasks])).encode())
    elif isinstance(model, HopSupSup):
        tensors = [*model.psi, *model.mean]
    else:
        tensors = [*model.shared.values(), *(value for own in model.own.values() for value in own.values())]
    for tensor in tensors:
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("calls")
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    y = torch.arange(len(x)) % 3
    source = data.arrays(x, y, x, y)
    stream = data.permuted(source, 4)
    brief = Recipe(steps=2, batch_size=4)
    model = SupSup(networks.FullyConnected((16, 8, 6)), recipe=brief, device="cpu")
    model.learn_many(stream[:2])
    hop = HopSupSup(networks.HopMLP((16, 8, 8, 9)), recipe=UnitRecipe(batch_size=4), device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for task in stream[:2]:
            hop.learn(task)
    rivals: list[baselines.Baseline] = []
    for kind in RIVALS:
        rivals.append(kind(networks.FullyConnected((16, 8, 6)), recipe=brief, device="cpu"))
        rivals[-1].learn_many(stream[:2])
    path = folder / "model.supsup"
    model.save(path)
    return World(folder, source, stream, model, hop, rivals, x, y, path)


RIVALS = (
    *(baselines.BatchE, baselines.LowerBound, baselines.UpperBound, baselines.OnlineEWC, baselines.PSP),
    *(baselines.SeparateHeads, baselines.SI),
)


@dataclass
class Calls:
    """A callable with good arguments, and bad values for each of its parameters."""

    call: Callable[..., object]
    good: dict[str, Any] = field(default_factory=dict)
    bad: dict[str, list[Any]] = field(default_factory=dict)

    def cases(self) -> Iterator[dict[str, Any]]:
        """Each bad value by itself; then several at a time, by a fixed seed."""
        for name, values in self.bad.items():
            for value in values:
                yield self.good | {name: value}
        draw = random.Random(0)
        for _ in range(min(20, 2 * sum(map(len, self.bad.values()))) if len(self.bad) > 1 else 0):
            names = draw.sample(sorted(self.bad), draw.randint(2, len(self.bad)))
            yield self.good | {name: draw.choice(self.bad[name]) for name in names}


def settings_calls(w: World) -> dict[str, Calls]:
    """The dataclasses of settings."""
    below_one = [*REAL, 1.0, 1.5, -0.1]
    above_zero = [*REAL, 0.0, -1.0]
    none = [value for value in REAL if value is not None]
    maybe_whole = [value for value in POSITIVE if value is not None]
    return {
        "Recipe": Calls(
            Recipe,
            {},
            {
                **dict.fromkeys(("optimiser", "schedule", "selection", "transfer"), WORD),
                **{key: [*POSITIVE, 10**20] for key in ("steps", "batch_size")},
                **dict.fromkeys(("learning_rate", "epsilon"), above_zero),
                **dict.fromkeys(("momentum", "warm_up", "first_decay"), below_one),
                "weight_decay": [*REAL, -0.1],
                "epochs": maybe_whole,
                "second_decay": [*none, 1.0, -0.1],
                "crops": [*none, 1.5, -0.1],
                **{key: [*none, 0.0, -1.0, 0.5] for key in ("budget", "density")},  # without edge-popup
            },
        ),
        "Recipe of edge-popup": Calls(
            partial(Recipe, selection="edge-popup"),
            {},
            {"density": [*REAL, 0.0, 1.5, -1.0], "budget": [*REAL, 0.0, -1.0]},
        ),
        "Inference": Calls(
            Inference,
            {},
            {
                **dict.fromkeys(("method", "objective"), WORD),
                "layers": [3, None, True, NAN, object(), Hostile(), "", [3], [None], {}, [""]],
                "gamma": [*REAL, 0.0, 1.0, -1.0],
                "steps": [*POSITIVE, 10**15],
                "step_size": above_zero,
                "coordinates": maybe_whole,
            },
        ),
        "Allocation": Calls(
            NewTaskRule,
            {},
            {
                "every": POSITIVE,
                "epsilon": above_zero,
                "floor": [*POSITIVE, 1, 10**12],
                "budget": POSITIVE,
                "deviations": [*REAL, -1.0],
            },
        ),
        "UnitRecipe": Calls(
            UnitRecipe,
            {},
            {
                "learning_rate": above_zero,
                "momentum": below_one,
                "weight_decay": [*REAL, -1.0],
                "epochs": POSITIVE,
                "batch_size": [*POSITIVE, 1],
            },
        ),
        "Recovery": Calls(
            Recovery,
            {},
            {
                "procedure": WORD,
                "starts": [*POSITIVE, 10**9],
                "learning_rate": above_zero,
                "momentum": below_one,
                "weight_decay": [*REAL, -1.0],
                "energy_weight": REAL,
                "batch_size": [*POSITIVE, 1],
                "least_steps": [*POSITIVE, 10**15],
            },
        ),
        "TaskInference": Calls(baselines.TaskInference, {}, {"method": WORD, "objective": WORD, "images": maybe_whole}),
        "Augmentation": Calls(Augmentation, {}, {"padding": [*WHOLE, -1, 10**12], "flip": FLAG}),
    }


def data_calls(w: World) -> dict[str, Calls]:
    """Sources, streams, parts and tasks."""
    part, x, y = w.stream[0].train, w.x, w.y
    no_tensor = [3, "x", [], {}, object(), Hostile(), x.numpy(), b"x"]
    no_index = [*no_tensor, y.float(), y[:, None], y.int(), y.bool(), y - 5, y + 10**6]
    no_scale = [*no_tensor, x.double()[0, 0, 0, 0], torch.zeros(3), torch.tensor(1), None]
    pair = {"train_x": x, "train_y": y, "test_x": x, "test_y": y}
    tensors = {
        "train_images": x,
        "train_labels": y,
        "test_images": x,
        "test_labels": y,
        "gain": torch.tensor(1.0),
        "offset": torch.tensor(0.0),
    }
    no_images = [None, *no_tensor, x.double(), x.long(), x[0, 0, 0], x[:3]]
    fine = (
        torch.uint8,
        torch.int64,
        torch.bool,
        torch.float32,
        np.dtype(np.int32),
        np.dtype(bool),
        np.dtype(np.uint16),
    )
    arrays_of_images = [*(v for v in images(SHAPE) if getattr(v, "dtype", None) not in fine), x[0, 0, 0], x[:0], x[:3]]
    of_one_class = (torch.int64, torch.bool, np.dtype(object), np.dtype("<U1"))  # names that the other half may add to
    arrays_of_labels = [
        v
        for v in labels(len(y))
        if getattr(v, "dtype", None) not in of_one_class and not (isinstance(v, list) and v[:1] == ["a"])
    ]
    folder = {"path": w.folder}
    return {
        "data.arrays": Calls(
            data.arrays,
            pair,
            {
                **dict.fromkeys(("train_x", "test_x"), arrays_of_images),
                **{key: [*arrays_of_labels, y[1:], y[:, None]] for key in ("train_y", "test_y")},
                "name": NAME,
                "normalise": FLAG,
            },
        ),
        "data.Source": Calls(
            Source,
            {"name": "s", **tensors, "classes": 3},
            {
                "name": NAME,
                **dict.fromkeys(("train_images", "test_images"), no_images),
                **{key: [None, *no_index] for key in ("train_labels", "test_labels")},
                **dict.fromkeys(("gain", "offset"), no_scale),
                "classes": [*POSITIVE, 2],
                "augmentation": [3, "crop", {}, object(), Augmentation],
            },
        ),
        "data.permuted": Calls(
            data.permuted,
            {"source": w.source, "tasks": 2},
            {"source": [None, *OBJECT], "tasks": [*WHOLE, -1, 10**30], "seed": WHOLE},
        ),
        "data.rotated": Calls(
            data.rotated, {"source": w.source}, {"source": [None, *OBJECT], "tasks": [*WHOLE, -1], "step": [*REAL, 0]}
        ),
        "data.split": Calls(
            data.split,
            {"source": w.source, "classes_per_task": 1},
            {
                "source": [None, *OBJECT],
                "classes_per_task": [*POSITIVE, 2, 4],
                "seed": [v for v in WHOLE if v is not None],
                "tasks": [*(v for v in WHOLE if v is not None), -1, 5],
            },
        ),
        "data.named": Calls(data.named, {"name": "mnist", "data_dir": w.folder}, {"name": WORD, "data_dir": DIRECTORY}),
        "data.mnist": Calls(data.mnist, {}, {"data_dir": [*DIRECTORY, w.folder, w.path]}),
        "data.fashion_mnist": Calls(data.fashion_mnist, {}, {"data_dir": [*DIRECTORY, w.folder, w.path]}),
        "data.cifar100": Calls(data.cifar100, {}, {"data_dir": [*DIRECTORY, w.folder, w.path]}),
        "data.image_folder": Calls(
            data.image_folder,
            folder,
            {
                "path": [None, *DIRECTORY, w.path],
                "size": [*(v for v in POSITIVE if v is not None), 10**9],
                "test_share": [*REAL, 0, 1, -1],
                "seed": WHOLE,
                "augment": FLAG,
                "flip": FLAG,
                "normalisation": WORD,
                "stream": [v for v in FLAG if v is not None],
                "workers": [v for v in POSITIVE if v is not None],
                "name": [v for v in NAME if v is not None],
            },
        ),
        "Part": Calls(
            Part,
            {"images": x, "labels": y},
            {
                "images": [v for v in no_images if getattr(v, "dtype", None) != torch.int64],
                "labels": [None, *[v for v in no_index if not _negative(v)]],
                **dict.fromkeys(("gain", "offset"), no_scale),
                "rows": no_index,
                "pixels": no_index,
                "augmentation": [3, "crop", {}, object(), Augmentation],
            },
        ),
        "Part.batch": Calls(
            part.batch,
            {"positions": y},
            {"positions": [None, *no_index[:-4], *no_index[-3:]], "device": [v for v in DEVICE if v is not None]},
        ),
        "Part.batches": Calls(
            part.batches, {"size": 2}, {"size": POSITIVE, "device": [v for v in DEVICE if v is not None]}
        ),
        "Part.tensors": Calls(part.tensors, {}, {"device": [v for v in DEVICE if v is not None]}),
        "Part.on": Calls(part.on, {}, {"device": DEVICE}),
        "Task": Calls(
            Task,
            {"name": "t", "train": part, "test": part, "classes": 3},
            {"name": NAME, "train": [None, *OBJECT], "test": [None, *OBJECT], "classes": POSITIVE},
        ),
    }


def network_calls(w: World) -> dict[str, Calls]:
    widths = [*SEQUENCE, [], [3], [3, 0], [3, -1], [3, 2.5], [3, True], [3, "4"], [10**9, 10**9], [NAN, 3], [3, None]]
    stages = [value for value in widths if value != [3]]
    counts = {"outputs": [*POSITIVE, 10**15], "inputs": [*POSITIVE, 10**15]}
    return {
        "nets.FullyConnected": Calls(networks.FullyConnected, {}, {"widths": widths}),
        "nets.HopMLP": Calls(networks.HopMLP, {}, {"widths": [*widths, [3, 3]]}),
        "nets.ResNet": Calls(
            networks.ResNet,
            {"outputs": 3, "blocks": [1], "widths": [4]},
            {
                "outputs": [*POSITIVE, 10**15],
                "blocks": [*stages, [1, 1], [10**9]],
                "widths": [*stages, [1, 1]],
                "bottleneck": FLAG,
                "large_images": FLAG,
                "channels": [*POSITIVE, 10**15],
            },
        ),
        "nets.lenet_300_100": Calls(networks.lenet_300_100, {}, counts),
        "nets.fc_1024": Calls(networks.fc_1024, {}, counts),
        "nets.hop_mlp": Calls(networks.hop_mlp, {}, counts),
        "nets.gem_resnet18": Calls(networks.gem_resnet18, {}, {"outputs": [*POSITIVE, 10**15]}),
        "nets.resnet50": Calls(networks.resnet50, {}, {"outputs": [*POSITIVE, 10**15]}),
    }


def model_calls(w: World) -> dict[str, Calls]:
    """`SupSup`, `load`, `export`, `evaluate`, `learn_and_evaluate`."""
    m, x, y = w.model, w.x, w.y
    net = networks.FullyConnected((16, 8, 6))
    no_net = [None, *OBJECT, nn.ReLU(), nn.Linear(3, 3, device="meta")]
    no_task = [None, *OBJECT, (x,), (x, y, y), w.stream, w.stream[0].train]
    no_stream = [*SEQUENCE, [], [w.stream[0]], [w.stream[2], w.stream[2]], [w.stream[2], 3], w.source]
    wrong_settings = [*OBJECT, UnitRecipe(), Recipe]
    bad_images = [v for v in images(SHAPE) if not one_batch(v)]
    batches = [*bad_images, x, x[:, None, 0], torch.zeros(2, 0, 1, 4, 4), torch.zeros(0, 2, 1, 4, 4)]
    positions = [None, 3, "x", object(), y, y.float()[None], y[None] - 5, y[None] + 10**6, y[None, None], y[:0, None]]
    graded = {"model": m, "stream": w.stream[:2]}
    grading = {
        "model": [None, *OBJECT, w.source],
        "stream": [*SEQUENCE, [], w.source],
        "scenario": WORD,
        "protocol": WORD,
        "batch_size": POSITIVE,
        "stages": [*(v for v in SEQUENCE if v is not None), [], [0], [99], [1.5], [True], ["1"], 1],
    }
    return {
        "SupSup": Calls(
            partial(SupSup, device="cpu"),
            {"net": net},
            {
                "net": no_net,
                "seed": WHOLE,
                "pretrained": [value for value in FLAG if value is not None],
                "own_head": [value for value in FLAG if value is not None],
                "recipe": wrong_settings,
                "inference": wrong_settings,
                "new_task_rule": wrong_settings,
            },
        ),
        "SupSup on a device": Calls(SupSup, {"net": net}, {"device": DEVICE}),
        "SupSup.recipe": Calls(partial(setattr, m, "recipe"), {}, {}),
        "SupSup.learn": Calls(
            lambda data, task=None: m.learn(data, task), {"data": w.stream[2]}, {"data": no_task, "task": NAME[:-1]}
        ),
        "SupSup.learn images": Calls(
            lambda x, y: m.learn((x, y), task="new"),
            {"x": x, "y": y},
            {"x": [*no_inputs(), x[:, :, :2]], "y": no_classes(y)},
        ),
        "SupSup.learn forms": Calls(
            lambda **how: m.learn((x, y), task="new", **how),
            {},
            {
                "layout": ["", "CHWN", 3, object(), Hostile(), ["NCHW"]],
                "normalise": [None, "yes", "", 1, 0.5, object(), Hostile(), []],
            },
        ),
        "data.task": Calls(
            lambda **how: data.task(**({"data": (x, y), "name": "t"} | how)),
            {},
            {
                "data": [value for value in no_task if not isinstance(value, str)],
                "name": NAME,
                "test": [*OBJECT, (x[:, :, 1:], y), (x, y + 1), (x[:2], y)],
                "layout": ["", "CHWN", 3],
                "normalise": [None, "yes", 1],
                "tokens": [*FLAG, True],
            },
        ),
        "SupSup.learn_many": Calls(
            m.learn_many,
            {"stream": w.stream[2:]},
            {"stream": no_stream, "precision": ["x", 3, torch.int64, object(), []]},
        ),
        "SupSup.predict": Calls(
            m.predict, {"x": x}, {"x": images(SHAPE), "task": TASK, "among": AMONG, "inference": wrong_settings}
        ),
        "SupSup.infer_task": Calls(
            m.infer_task,
            {"x": x},
            {
                "x": images(SHAPE),
                "per": WORD,
                "among": AMONG,
                "method": WORD,
                "objective": WORD,
                "gamma": [*REAL, 1],
                "steps": POSITIVE,
                "coordinates": [0, "x", 2.5],
                "layers": ["middle", ["no.weight"], [], 3],
                "nonsense": [1],
            },
        ),
        "SupSup.infer_batches": Calls(m.infer_batches, {"x": x[None]}, {"x": batches, "among": AMONG}),
        "SupSup.observe": Calls(m.observe, {"x": x, "y": y}, {"x": images(SHAPE), "y": labels(len(y))}),
        "observe_batches": Calls(
            partial(observe_batches, m),
            {"part": w.stream[0].train, "positions": y[None]},
            {"part": [None, *OBJECT], "positions": positions},
        ),
        **{
            f"SupSup.{name}": Calls(getattr(m, name), {}, {"task": [None, *TASK]})
            for name in ("forget", "classes", "mask", "subnetwork", "learned_at")
        },
        "SupSup.to": Calls(m.to, {}, {"device": DEVICE}),
        "load": Calls(
            partial(supsup.load, device="cpu"),
            {"path": w.path},
            {"net": [*OBJECT, nn.Linear(3, 3)], "path": ["/nowhere/at/all", w.folder]},
        ),
        "load on a device": Calls(supsup.load, {"path": w.path}, {"device": DEVICE}),
        "export": Calls(
            supsup.export,
            {"model": m, "task": "permutation-0", "path": w.folder / "out.safetensors"},
            {"task": [None, *TASK], "path": ["out.pt", "/nowhere/at/all.onnx"]},
        ),
        "evaluate": Calls(supsup.evaluate, graded, {**grading, "cache": OBJECT}),
        "learn_and_evaluate": Calls(learn_and_evaluate, {"model": m, "stream": w.stream[2:3]}, grading),
    }


def hop_calls(w: World) -> dict[str, Calls]:
    h, x, y = w.hop, w.x, w.y
    net = networks.HopMLP((16, 8, 8, 9))
    settings = [*OBJECT, Recipe(), UnitRecipe]
    units = [
        3,
        "x",
        object(),
        [],
        [y],
        [torch.zeros(8), torch.zeros(8)],
        [torch.zeros(3, dtype=torch.bool)] * 2,
        [None, None],
    ]
    mask = [torch.ones(8, dtype=torch.bool)] * 2
    stored = {"task": "new", "classes": 2, "units": mask, "shape": SHAPE[1:]}
    return {
        "HopSupSup": Calls(
            partial(HopSupSup, device="cpu"),
            {"net": net},
            {
                "net": [None, *OBJECT, nn.Linear(3, 3)],
                "seed": WHOLE,
                "rule": WORD,
                "recipe": settings,
                "recovery": settings,
            },
        ),
        "HopSupSup on a device": Calls(HopSupSup, {"net": net}, {"device": DEVICE}),
        "HopSupSup.learn": Calls(
            lambda data, task=None: h.learn(data, task),
            {"data": w.stream[2]},
            {"data": [None, *OBJECT], "task": NAME[:-1]},
        ),
        "HopSupSup.learn images": Calls(
            lambda x, y: h.learn((x, y), task="new"),
            {"x": x, "y": y},
            {"x": [*no_inputs(), x[:1]], "y": no_classes(y)},
        ),
        "HopSupSup.predict": Calls(
            h.predict, {"x": x}, {"x": [*images(SHAPE), x[:1]], "task": TASK, "among": AMONG, "units": units}
        ),
        "HopSupSup.recover": Calls(
            h.recover,
            {"x": x},
            {"x": [*images(SHAPE), x[:1]], "history": FLAG, "procedure": [v for v in WORD if v is not None]},
        ),
        "HopSupSup.store": Calls(
            h.store,
            stored,
            {"task": [*NAME, "permutation-0"], "classes": [*POSITIVE, 99], "units": units, "shape": [(3,), (1, 2, 3)]},
        ),
        **{
            f"HopSupSup.{name}": Calls(getattr(h, name), {}, {"task": [None, *TASK]})
            for name in ("classes", "learned_at")
        },
        "HopSupSup.load": Calls(
            partial(HopSupSup.load, device="cpu"), {}, {"path": [w.path, "/nowhere/at/all", w.folder]}
        ),
    }


def rival_calls(w: World) -> dict[str, Calls]:
    x, y = w.x, w.y
    net = networks.FullyConnected((16, 8, 6))
    own: dict[type[baselines.Baseline], dict[str, list[Any]]] = {
        baselines.BatchE: {"base": WORD, "last": WORD, "inference": OBJECT},
        baselines.LowerBound: {"heads": WORD},
        baselines.OnlineEWC: {
            "strength": [*REAL, -1],
            "decay": [*REAL, -1, 2],
            "images": [v for v in POSITIVE if v is not None],
            "labels": WORD,
        },
        baselines.PSP: {"contexts": WORD},
        baselines.SeparateHeads: {"trunk": WORD},
        baselines.SI: {"strength": [*REAL, -1], "damping": [*REAL, 0, -1], "labels": WORD},
    }
    found: dict[str, Calls] = {}
    for rival in w.rivals:
        kind, name = type(rival), type(rival).__name__
        bad = {
            "net": [None, *OBJECT, nn.ReLU()],
            "seed": WHOLE,
            "recipe": OBJECT,
            "first": OBJECT,
            "filling": [v for v in WORD if v is not None],
            **own.get(kind, {}),
        }
        found[name] = Calls(partial(kind, device="cpu"), {"net": net}, bad)
        found[f"{name} on a device"] = Calls(kind, {"net": net}, {"device": DEVICE})
        no_task = [None, *OBJECT, (x, y), w.stream[0], data.split(data.arrays(x[:, :, :2], y, x[:, :, :2], y), 1)[0]]
        found[f"{name}.learn"] = Calls(lambda data, rival=rival: rival.learn(data), {}, {"data": no_task})
        found[f"{name}.learn_many"] = Calls(
            rival.learn_many, {}, {"stream": [*SEQUENCE, [w.stream[2], 3], w.stream[:1]]}
        )
        given = {} if not rival.needs_task else {"task": "permutation-0"}
        found[f"{name}.predict"] = Calls(rival.predict, {"x": x, **given}, {"x": images(SHAPE), "task": TASK})
        found[f"{name}.predict among"] = Calls(rival.predict, {"x": x}, {"among": AMONG})
        if isinstance(rival, baselines.BatchE):
            how = {"method": WORD, "objective": WORD, "images": [0, "x", 2.5], "among": AMONG}
            found[f"{name}.infer_task"] = Calls(rival.infer_task, {"x": x}, {"x": images(SHAPE), "per": WORD, **how})
            bad_batches = [v for v in images(SHAPE) if not one_batch(v)]
            found[f"{name}.infer_batches"] = Calls(rival.infer_batches, {"x": x[None]}, {"x": bad_batches, **how})
    found["learn_side_by_side"] = Calls(
        baselines.learn_side_by_side,
        {"baselines": w.rivals[:1], "tasks": [w.stream[2]]},
        {"baselines": [*SEQUENCE, [], w.rivals[:2]], "tasks": [*SEQUENCE, [], [w.stream[0]], [w.stream[2]] * 2]},
    )
    return found


def one_batch(value: Any) -> bool:
    """Images of a batch too many are a batch where batches are asked for."""
    return isinstance(value, Tensor) and not value.is_nested and value.shape == (1, *SHAPE)


def _negative(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.int64 and value.ndim == 1


FACES = (settings_calls, data_calls, network_calls, model_calls, hop_calls, rival_calls)


@pytest.mark.parametrize("face", FACES)
def test_a_bad_call_is_refused_in_words_and_changes_nothing(
    face: Callable[[World], dict[str, Calls]], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 foreign errors: what a user can cause is one exception type, raised before anything has happened."""
    monkeypatch.delenv("SUPSUP_DATA", raising=False)
    before, faults = world.marks(), []
    for name, calls in face(world).items():
        for arguments in calls.cases():
            fault = fault_of(calls.call, arguments)
            if fault is None and world.marks() != before:
                fault, before = "changed a model", world.marks()
            if fault is not None:
                bad = {key: value for key, value in arguments.items() if value is not calls.good.get(key)}
                faults.append(f"{name}({', '.join(f'{k}={shown(v)}' for k, v in bad.items())}): {fault}")
    assert not faults, f"{len(faults)} faults\n" + "\n".join(faults)


def test_there_are_a_thousand_of_them(world: World) -> None:
    assert sum(1 for face in FACES for calls in face(world).values() for _ in calls.cases()) >= 1000


def fault_of(call: Callable[..., object], arguments: dict[str, Any]) -> str | None:
    """What is wrong with how a bad call ended, None if nothing is."""
    try:
        call(**arguments)
    except SupSupError as error:
        return None if len(str(error)) >= 20 and " " in str(error) else f"said no more than {error}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    return "was taken"


def shown(value: Any) -> str:
    try:
        return repr(value)[:60].replace("\n", " ")
    except ZeroDivisionError:
        return type(value).__name__
