"""What a worker does: it trains a group of tasks with the executors of any training and gives back a part file.

A mask depends on seed, name and data alone, so whoever trains a group that was lost gives the same bits.
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
from torch import Tensor, nn

from supsup.cluster.capacity import tasks_at_once
from supsup.cluster.groups import Group
from supsup.file.modelfile import model_from_bytes, model_to_bytes
from supsup.model.learning import Learning
from supsup.model.state import ModelState
from supsup.runtime.devices import resolve
from supsup.runtime.errors import SupSupError
from supsup.runtime.locks import new_lock

SharedTensors = str | Mapping[str, NDArray[Any]]  # the path of a safetensors file, or arrays by name
_OPENING = new_lock()
_opened: dict[str, tuple[ModelState, dict[str, Tensor]]] = {}  # the last run of this process, by its key


@dataclass(frozen=True)
class Run:
    """One call of `learn_many`, as all workers have to know it.

    model   the bytes of a model file without tasks
    module  the network, where that file does not say how to build it
    device  the kind that workers train on
    """

    key: str
    model: bytes = field(repr=False)
    module: nn.Module | None
    device: str
    precision: torch.dtype | None


@dataclass(frozen=True)
class Finished:
    """What comes back: a part file (the bytes of a model file with these tasks alone), or why there is none."""

    node: str
    part: bytes = field(default=b"", repr=False)
    error: str = ""


def learn_group(run: Run, shared: SharedTensors, group: Group) -> Finished:
    """Train every task of a group."""
    try:
        base, tensors = _known(run, shared)
        state = ModelState(base.net, base.settings)
        Learning(state).learn(group.opened(tensors), precision=run.precision, show_progress=False)
        return Finished(platform.node(), model_to_bytes(state.save))
    except SupSupError as error:
        return Finished(platform.node(), error=str(error))


def group_size(run: Run, shared: SharedTensors, group: Group) -> int:
    """How many tasks like these fill this worker's device."""
    base, tensors = _known(run, shared)
    return tasks_at_once(base.net, group.opened(tensors), base.settings.recipe, run.precision)


def _known(run: Run, shared: SharedTensors) -> tuple[ModelState, dict[str, Tensor]]:
    """The model without tasks and what tasks share, opened once for each run."""
    with _OPENING:
        if run.key not in _opened:
            _opened.clear()
            base = model_from_bytes(run.model, lambda path: ModelState.load(path, run.module, resolve(run.device)))
            _opened[run.key] = base, _tensors(shared)
        return _opened[run.key]


def _tensors(shared: SharedTensors) -> dict[str, Tensor]:
    """Without a copy of their own: a file is mapped, arrays lie in memory that processes of a node share."""
    if isinstance(shared, str):
        return load_file(shared)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they cannot be written to, and nobody will
        return {name: torch.from_numpy(array) for name, array in shared.items()}
