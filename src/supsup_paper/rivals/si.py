"""Synaptic Intelligence (Zenke et al., 2017): importance is how much a weight's movement has lowered the loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from supsup.data import Task
from supsup.runtime.validation import real
from supsup.training.trainee import State
from supsup_paper.rivals.consolidation import Consolidation, anchor


class SI(Consolidation):
    """Each weight's path is followed: Σ −gradient · movement, over the square of how far it went.

    strength  c of c · Ω · (w − w*)²; on permutations van de Ven and Tolias use 0.1 with unshared labels, 5 with shared
    damping   ξ, which keeps Ω finite where a weight did not move
    """

    def __init__(
        self, net: nn.Module, seed: int = 0, *, strength: float = 5.0, damping: float = 0.1, **settings: Any
    ) -> None:
        super().__init__(net, seed, strength=strength, **settings)
        self.damping = real(above=0)(damping, "damping")

    def begin(self, task: Task) -> State:
        state = super().begin(task)
        for name in self.weights:
            state[f"path/{name}"] = torch.zeros_like(self.shared[name])
            state[f"before/{name}"] = self.shared[name].clone()
        return state

    @torch.no_grad()
    def before_update(self, state: State) -> None:
        for name in self.weights:
            state[f"before/{name}"].copy_(state[name])

    @torch.no_grad()
    def after_update(self, state: State) -> None:
        for name in self.weights:
            gradient = state[name].grad
            assert gradient is not None
            state[f"path/{name}"].addcmul_(gradient, state[f"before/{name}"] - state[name])

    def importances(self, task: Task, state: State) -> State:
        return {
            name: state[f"path/{name}"] / ((state[name] - state[anchor(name)]) ** 2 + self.damping)
            for name in self.weights
        }
