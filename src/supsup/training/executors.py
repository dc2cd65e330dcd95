"""Who trains: executors in the order in which they are asked. The first that takes a job trains it.

An executor takes what it can do exactly as the plain one would, up to rounding, and nothing else: it looks at what the
modules are and hold, at the recipe, the images and the precision asked for. `plain` defines what is right.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

import torch

from supsup.kernels import available
from supsup.masks.frozen import FrozenNet
from supsup.runtime.errors import SupSupError
from supsup.runtime.progress import Advance
from supsup.training.fast.batched import BatchedOnCPU, BatchedOnGPU
from supsup.training.fast.captured import Captured
from supsup.training.fast.side_by_side import SideBySide
from supsup.training.jobs import Job, Trained
from supsup.training.plain import Plain

if available.TRITON:
    from supsup.training.fast.residual import Residual


class Executor(Protocol):
    """One way to train masks."""

    name: str

    def takes(self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None) -> bool:
        """Whether it can train all these jobs as they are asked for, on the network's device."""

    def train(
        self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None, advance: Advance
    ) -> Generator[Trained, None, None]:
        """Tasks as they are finished, in the order of the jobs; `advance` hears of finished tasks, also of parts."""


EXECUTORS: tuple[Executor, ...] = (
    *((Residual(),) if available.TRITON else ()),
    BatchedOnGPU(),
    BatchedOnCPU(),
    SideBySide(),
    Captured(),
    Plain(),
)


def executor_for(net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None = None) -> Executor:
    """The first executor that takes all these jobs."""
    for executor in EXECUTORS:
        if executor.takes(net, jobs, precision):
            return executor
    raise SupSupError(
        f"precision={precision} is not known for this network, recipe and data on {net.device.type}; leave it out, or "
        "use torch.float32"
    )


def train_masks(
    net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None = None, advance: Advance = lambda _: None
) -> Generator[Trained, None, None]:
    """Tasks as they are finished, with their masks. A mask depends on its own job and the seed, not on the others.

    precision  of the matrix products: by default bfloat16 on a GPU and float32 on a CPU
    """
    return executor_for(net, jobs, precision).train(net, jobs, precision, advance)
