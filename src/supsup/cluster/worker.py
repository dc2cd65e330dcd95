"""What a worker does: it trains a group of tasks and returns a part, the bytes of a model file with these tasks alone.

A mask depends on seed, name and data alone, so a group that was lost gives the same bits wherever it is trained again.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from supsup.cluster.groups import TaskGroup
from supsup.model.learning import ModelBlueprint, PartTrainer
from supsup.runtime.errors import SupSupError
from supsup.runtime.locks import new_lock

SharedTensors = str | Mapping[str, NDArray[Any]]  # the path of a safetensors file, or arrays by name
_IN_A_ROW = 4  # tasks for each thread of a CPU, so that sending a group costs little
_OPENING = new_lock()
_opened: dict[str, tuple[PartTrainer, dict[str, Tensor]]] = {}  # the last run of this process, by its key


@dataclass(frozen=True)
class WorkerSetup:
    """One call of `learn_many`, as workers need it; `key` tells calls apart, `device` is the kind they train on."""

    key: str
    model: ModelBlueprint
    device: str
    precision: torch.dtype | None


@dataclass(frozen=True)
class GroupResult:
    """What a worker returns: a part, or the error that prevented it."""

    node: str
    part: bytes = field(default=b"", repr=False)
    error: str = ""


def learn_group(setup: WorkerSetup, shared: SharedTensors, group: TaskGroup) -> GroupResult:
    """Train every task of a group."""
    try:
        trainer, tensors = _open(setup, shared)
        return GroupResult(platform.node(), trainer.train(group.tasks(tensors), setup.precision))
    except SupSupError as error:
        return GroupResult(platform.node(), error=str(error))


def tasks_per_group(setup: WorkerSetup, shared: SharedTensors, group: TaskGroup) -> int:
    """How many tasks like the first of this group a group should have: more would only be lost together."""
    trainer, tensors = _open(setup, shared)
    at_once = trainer.tasks_at_once(group.tasks(tensors)[0], setup.precision)
    return at_once * (_IN_A_ROW if setup.device == "cpu" else 1)


def _open(setup: WorkerSetup, shared: SharedTensors) -> tuple[PartTrainer, dict[str, Tensor]]:
    """The model and the shared tensors, opened once for each run."""
    with _OPENING:
        if setup.key not in _opened:
            _opened.clear()
            _opened[setup.key] = setup.model.open(setup.device), _tensors(shared)
        return _opened[setup.key]


def _tensors(shared: SharedTensors) -> dict[str, Tensor]:
    """Without copying: a file is mapped, and processes of a node share the memory of arrays."""
    if isinstance(shared, str):
        return load_file(shared)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the arrays are read-only, and nothing here writes to them
        return {name: torch.from_numpy(array) for name, array in shared.items()}
