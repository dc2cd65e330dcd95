"""How many tasks fill the device of a worker: what a group should have, since more would only be lost together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from supsup.data import Task
from supsup.kernels import available
from supsup.masks.frozen import FrozenNet
from supsup.training import AutoRecipe, Job, Recipe
from supsup.training.auto_recipe import first_round
from supsup.training.executors import executor_for
from supsup.training.fast import batched
from supsup.training.jobs import fitting, free_memory

_PER_THREAD = 4  # tasks in a row on each thread of a CPU, so that sending them out costs little
_IN_STEP = 2500  # tasks on a GPU at most, where all of them take a step together; with convolutions fewer do
_CONVOLUTIONS = 120


def tasks_at_once(
    net: FrozenNet, tasks: Sequence[Task], recipe: Recipe | AutoRecipe, precision: torch.dtype | None
) -> int:
    """How many tasks like these an executor trains at once on the network's device."""
    if net.device.type == "cpu":
        return _PER_THREAD * torch.get_num_threads()
    task = tasks[0]
    job = Job(task, first_round(len(task.train)) if isinstance(recipe, AutoRecipe) else recipe)
    kind = executor_for(net, [job], precision).name
    sizes = _sizes()
    if kind not in sizes:
        return 1
    bytes_each, most = sizes[kind]
    return fitting(bytes_each(net, job), free_memory(net.device), most)


def _sizes() -> dict[str, tuple[Callable[[FrozenNet, Job], int], int]]:
    """By the name of an executor that trains tasks in step: what one of them takes, and how many go at most."""
    found: dict[str, tuple[Callable[[FrozenNet, Job], int], int]] = {}
    found[batched.BatchedOnGPU.name] = (batched.bytes_per_task, _IN_STEP)
    if available.TRITON:
        from supsup.training.fast.residual import executor

        found[executor.Residual.name] = (executor.bytes_per_task, _CONVOLUTIONS)
    return found
