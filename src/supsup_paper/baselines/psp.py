"""Parameter superposition (Cheung et al., 2019): one set of weights, always trained, and a random context per task.

A context is a random orthogonal transformation of a layer's inputs, made from the seed:

rotation  any orthogonal matrix with equal probability (in × in numbers to compute, none to store)
complex   neighbouring inputs as complex numbers, each multiplied by a random number of size 1
binary    every input times +1 or −1
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from supsup.data import Task
from supsup.masks import philox
from supsup.runtime.validation import choice
from supsup.training.plain import State
from supsup_paper.baselines import storage
from supsup_paper.baselines.baseline import Baseline
from supsup_paper.baselines.initial import normal

Kind = Literal["rotation", "complex", "binary"]


def context(kind: Kind, seed: int, label: str, width: int, device: torch.device) -> Tensor:
    """What `turn` needs: [width, width], [width // 2] or [width], a function of the seed and the label alone."""
    if kind == "binary":
        return philox.signs(seed, label, width).to(device)
    if kind == "complex":
        return philox.uniform(seed, [label], width // 2, math.pi, device)[0]
    gaussian = normal(seed, [label], width * width, device).view(width, width)
    q, r = torch.linalg.qr(gaussian)
    rotation: Tensor = q * r.diagonal().sign()  # without the signs some rotations would be likelier than others
    return rotation


def turn(kind: Kind, by: Tensor, rows: Tensor, back: bool = False) -> Tensor:
    """Rows [..., width] turned by their context, or back; contexts [n, …] turn rows [n, b, width] one by one."""
    if kind == "rotation":
        return rows @ (by if back else by.mT)
    if rows.ndim == 3 and by.ndim == 2:
        by = by[:, None]
    if kind == "binary":
        return rows * by
    width = 2 * by.shape[-1]
    cosine, sine = by.cos(), -by.sin() if back else by.sin()
    even, odd = rows[..., 0:width:2], rows[..., 1:width:2]
    turned = torch.stack([cosine * even - sine * odd, sine * even + cosine * odd], -1).flatten(-2)
    return torch.cat([turned, rows[..., width:]], -1)


def folded(kind: Kind, by: Tensor, weight: Tensor) -> Tensor:
    """The weight [out, in, …] that gives for plain inputs what `weight` gives for turned ones."""
    return turn(kind, by, weight.movedim(1, -1), back=True).movedim(-1, 1)


_KEPT = {"cuda": 8 << 30, "cpu": 1 << 28}  # bytes of contexts held ready; the others are made again from the seed


class PSP(Baseline):
    """Each layer's inputs are turned by the task's context before they meet the weights.

    contexts  "rotation" (the paper's), "complex" or "binary"; all come from the seed, so none is stored
    """

    filling = "xavier_normal"

    def __init__(self, net: nn.Module, seed: int = 0, *, contexts: Kind = "rotation", **settings: Any) -> None:
        choice(*get_args(Kind))(contexts, "contexts")
        super().__init__(net, seed, **settings)
        self.contexts: Kind = contexts
        self._ready: dict[str, State] = {}

    def begin(self, task: Task) -> State:
        return self.shared | self.context_of(task.name)

    def trains(self, name: str, first: bool) -> bool:
        return name in self.shared and super().trains(name, first)

    def state_of(self, task: str | None) -> State:
        return self.shared | (self.context_of(task) if task is not None else {})

    def effective(self, state: Mapping[str, Tensor]) -> State:
        """W turned back, which gives for plain inputs what W gives for turned ones."""
        weights = super().effective(state)
        return weights | {name: folded(self.contexts, state[_key(name)], weights[name]) for name in self.layers}

    def run_side_by_side(self, state: State, x: Tensor) -> Tensor:
        for name in self.layers:
            x = turn(self.contexts, state[_key(name)], x) @ state[name].mT
            x = x if name == self.head else x.relu_()
        return x

    @torch.no_grad()
    def context_of(self, task: str) -> State:
        """The turn of each layer's inputs for a task, learned or not."""
        ready = self._ready.get(task)
        if ready is None:
            ready = {
                _key(name): context(
                    self.contexts, self.seed, f"context/{task}/{name}", self.shared[name].shape[1], self.device
                )
                for name in self.layers
            }
            size = storage.weight_bytes(ready)
            if (len(self._ready) + 1) * size > _KEPT[self.device.type]:
                self._ready.clear()
            self._ready[task] = ready
        return ready

    @property
    def bytes(self) -> int:
        return storage.weight_bytes(self.shared, self.statistics) + storage.statistics_bytes(self.net)


def _key(name: str) -> str:
    return f"context/{name}"
