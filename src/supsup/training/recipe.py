"""How a mask is trained: optimiser, length and batch size. The defaults are the paper's for MNIST."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from supsup.errors import SupSupError

Optimiser = Literal["rmsprop", "adam", "sgd"]


@dataclass(frozen=True)
class Recipe:
    """`steps` batches of `batch_size` images; momentum is for "sgd" only."""

    optimiser: Optimiser = "rmsprop"
    learning_rate: float = 1e-4
    steps: int = 1000
    batch_size: int = 128
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.optimiser not in get_args(Optimiser):
            raise SupSupError(f"unknown optimiser {self.optimiser!r}; known: {', '.join(get_args(Optimiser))}")
        if self.steps < 1 or self.batch_size < 1:
            raise SupSupError(f"steps and batch_size must be at least 1; got {self.steps} and {self.batch_size}")
        if not self.learning_rate > 0 or self.weight_decay < 0 or not 0 <= self.momentum < 1:
            raise SupSupError("learning_rate must be positive, weight_decay at least 0, momentum in [0, 1)")
        if self.momentum and self.optimiser != "sgd":
            raise SupSupError(f"momentum goes with optimiser 'sgd', not {self.optimiser!r}")

    def build(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """The torch optimiser over these tensors."""
        if self.optimiser == "rmsprop":
            return torch.optim.RMSprop(
                parameters, lr=self.learning_rate, alpha=0.99, eps=1e-8, weight_decay=self.weight_decay
            )
        if self.optimiser == "adam":
            return torch.optim.Adam(parameters, lr=self.learning_rate, weight_decay=self.weight_decay)
        return torch.optim.SGD(
            parameters, lr=self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay
        )
