"""Which images a batch holds: shuffled epochs laid end to end and cut into full batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from supsup import philox


def epoch_label(task: str, epoch: int) -> str:
    """The random stream that shuffles one epoch of one task."""
    return f"order/{task}/{epoch}"


def batch_positions(seed: int, task: str, images: int, batch_size: int, steps: int) -> Iterator[Tensor]:
    """Positions [batch_size] of the images of each step: a function of the seed, the task's name and its size alone."""
    waiting = torch.empty(0, dtype=torch.int64)
    epoch = 0
    for _ in range(steps):
        while len(waiting) < batch_size:
            waiting = torch.cat([waiting, philox.permutations(seed, [epoch_label(task, epoch)], images)[0]])
            epoch += 1
        yield waiting[:batch_size]
        waiting = waiting[batch_size:]


def many_positions(seed: int, names: Sequence[str], size: int, drawn: int, device: torch.device) -> Tensor:
    """The first `drawn` positions of each task's epochs laid end to end: [tasks, drawn]."""
    epochs = [
        philox.permutations(seed, [epoch_label(name, epoch) for name in names], size, device)
        for epoch in range(math.ceil(drawn / size))
    ]
    return torch.cat(epochs, 1)[:, :drawn]
