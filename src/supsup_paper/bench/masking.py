"""What a mask costs when answering: a forward pass of a selected task against one without masks, and changing tasks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from supsup.file.task_record import LearnedTask
from supsup.inference.methods import Inference
from supsup.masks.bank import Bank, pack_columns
from supsup.masks.frozen import SwitchedNet
from supsup.model.state import state_of
from supsup.model.supsup import SupSup
from supsup_paper.bench.measurement import Machine, once

_REPEATS = {"cuda": 50, "cpu": 5}
_PAPER = 0.01  # of a forward pass, the paper's estimate of what applying a mask costs


@dataclass(frozen=True)
class MaskingMeasurement:
    """Times of passes and of switches, medians unless they are called the fastest."""

    tasks: int
    weights: int
    batch: int
    image: str
    density: float
    precision: str
    plain_ms: Annotated[float, "plain forward ms"]
    selected_ms: Annotated[float, "selected task forward ms"]
    selected_by_plain: Annotated[float, "selected / plain"]
    fastest_plain_ms: Annotated[float, "fastest plain forward ms"]
    fastest_selected_ms: Annotated[float, "fastest selected task forward ms"]
    predict_same_task_ms: Annotated[float, "predict, same task ms"]
    predict_other_task_ms: Annotated[float, "predict, another task each time ms"]
    switch_us: Annotated[float, "switching µs"]
    switch_by_plain: Annotated[float, "switching / plain forward"]
    paper_estimate: Annotated[float, "paper's estimate"]
    bytes_moved: Annotated[int, "bytes moved by a switch"]
    floor_us: Annotated[float, "floor of a switch µs"]
    times_the_floor: Annotated[float, "times the floor"]
    weight_by_weight_us: Annotated[float, "masking weight by weight µs"]


def bench_masking(
    net: nn.Module,
    image: tuple[int, ...],
    batch: int,
    tasks: int,
    machine: Machine,
    device: torch.device,
    density: float = 0.5,
    precision: str = "float32",
) -> MaskingMeasurement:
    """Times of passes and switches with random masks of a given density.

    The plain pass is the module itself with its frozen weights; that of a selected task is what `predict` runs for one,
    without its checks and softmax, which "predict" has too. Passes that are compared take turns; times are medians.
    """
    model = with_random_masks(net, image, tasks, density, device)
    names, bank = model.tasks, state_of(model).bank
    switched = SwitchedNet(state_of(model).net)
    x = torch.randn(batch, *image, device=device, generator=torch.Generator(device).manual_seed(0))
    repeats = _REPEATS[device.type]
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        passes: dict[str, Callable[[int], object]] = {
            "plain": lambda _: state_of(model).net.module(x),
            "selected": lambda _: state_of(model).switched.run(bank, 0, x),
            "predict": lambda _: model.predict(x, task=names[0]),
        }
        changes: dict[str, Callable[[int], object]] = {
            "switch": lambda turn: switched.switch(bank, turn % tasks),
            "one by one": lambda turn: state_of(model).net.masked(bank.subnetwork(turn % tasks)),
            "other task": lambda turn: model.predict(x, task=names[turn % tasks]),
        }
        times = in_turn(passes, device, repeats) | in_turn(changes, device, repeats)
    taken = {name: statistics.median(values) for name, values in times.items()}
    moved = bytes_moved(switched, bank)
    floor = moved / machine.bytes_per_second
    return MaskingMeasurement(
        tasks=tasks,
        weights=sum(shape.numel() for shape in state_of(model).net.shapes.values()),
        batch=batch,
        image="×".join(str(side) for side in image),
        density=density,
        precision=_in_words(precision, device),
        plain_ms=1e3 * taken["plain"],
        selected_ms=1e3 * taken["selected"],
        selected_by_plain=taken["selected"] / taken["plain"],
        fastest_plain_ms=1e3 * min(times["plain"]),
        fastest_selected_ms=1e3 * min(times["selected"]),
        predict_same_task_ms=1e3 * taken["predict"],
        predict_other_task_ms=1e3 * taken["other task"],
        switch_us=1e6 * taken["switch"],
        switch_by_plain=taken["switch"] / taken["plain"],
        paper_estimate=_PAPER,
        bytes_moved=moved,
        floor_us=1e6 * floor,
        times_the_floor=taken["switch"] / floor,
        weight_by_weight_us=1e6 * taken["one by one"],
    )


def with_random_masks(
    net: nn.Module, image: tuple[int, ...], tasks: int, density: float, device: torch.device
) -> SupSup:
    """A model with masks that were drawn, not learned."""
    model = SupSup(net, inference=Inference("one-shot"), device=device)
    generator = torch.Generator(device).manual_seed(0)

    def mask(shape: torch.Size) -> Tensor:
        return torch.rand(1, *shape, device=device, generator=generator) < density

    shapes = state_of(model).net.shapes
    columns = [pack_columns({name: mask(shape) for name, shape in shapes.items()}) for _ in range(tasks)]
    state_of(model).add([LearnedTask(f"random-{i}", 1) for i in range(tasks)], torch.cat(columns, 1), {}, image)
    return model


def in_turn(works: Mapping[str, Callable[[int], object]], device: torch.device, repeats: int) -> dict[str, list[float]]:
    """The times of each work, warmed up and done in turn, so that a slower moment of the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(-1, repeats):
        for name, work in works.items():
            times[name].append(once(lambda work=work, turn=turn: work(turn), device))  # type: ignore[misc]
    return {name: values[1:] for name, values in times.items()}


def bytes_moved(switched: SwitchedNet, bank: Bank) -> int:
    """The fewest bytes that a switch moves: weights are read and written, their bits read, and statistics copied."""
    written = switched.masked.numel() * switched.masked.element_size() + 4 * switched.statistics.numel()
    return 2 * written + len(bank.column(0))


def _in_words(precision: str, device: torch.device) -> str:
    if precision == "bfloat16":
        return "bfloat16 by autocast"
    tensor_cores = device.type == "cuda" and torch.backends.cudnn.allow_tf32
    return "float32, convolutions in TF32" if tensor_cores else "float32"
