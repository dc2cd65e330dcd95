"""Online EWC (Schwarz et al., 2018, after Kirkpatrick et al., 2017): importance is the Fisher information."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from supsup.data import Task
from supsup.masks import philox
from supsup.runtime.validation import optional, real, whole
from supsup.training.trainee import State
from supsup_paper.rivals.consolidation import Consolidation, importance

_IMAGES = {"cpu": 256, "cuda": 4096}  # images in one pass by hand
_BY_AUTOGRAD = 16  # images in one pass with a gradient of every weight for each


class OnlineEWC(Consolidation):
    """One spring per weight, its strength the sum of all tasks' Fisher information.

    strength  λ of λ/2 · F · (w − w*)²; van de Ven and Tolias use 5 on permutations with unshared labels, else 1000
    decay     γ: how much of the earlier tasks' information is kept at each new one
    images    so many training images to estimate it from (None: all)
    """

    def __init__(
        self,
        net: nn.Module,
        seed: int = 0,
        *,
        strength: float = 100.0,
        decay: float = 1.0,
        images: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(net, seed, strength=real(0)(strength, "strength") / 2, **settings)
        self.decay, self.images = real(0, 1)(decay, "decay"), optional(whole(1))(images, "images")

    def importances(self, task: Task, state: State) -> State:
        part = task.train.on(self.device)
        order = philox.permutations(self.seed, [f"fisher/{task.name}"], len(part))[0][: self.images].to(self.device)
        pieces = order.split(_IMAGES[self.device.type] if self.stackable else _BY_AUTOGRAD)
        total = {name: torch.zeros_like(state[name]) for name in self.weights}
        for positions in pieces:
            squares = (self.by_hand if self.stackable else self.by_autograd)(state, part.batch(positions)[0])
            for name, value in squares.items():
                total[name] += value
        fading = {name: (self.decay - 1.0) * state[importance(name)] for name in self.weights}
        return {name: value / len(order) + fading[name] for name, value in total.items()}

    def by_autograd(self, state: State, x: Tensor) -> State:
        """Σ over images of (∂ log p(predicted label) / ∂w)², on any module: what defines the meaning."""

        def loss(weights: State, image: Tensor) -> Tensor:
            outputs = self.run(state | weights, image[None])
            return cross_entropy(outputs, outputs.argmax(1))

        gradients = vmap(grad(loss), (None, 0))({name: state[name] for name in self.weights}, x)
        return {name: (value**2).sum(0) for name, value in gradients.items()}

    def by_hand(self, state: State, x: Tensor) -> State:
        """The same for fully connected networks: the square of an outer product is the product of the squares."""
        hidden = [x.flatten(1)]
        for name in self.layers[:-1]:
            hidden.append((hidden[-1] @ state[name].T).relu_())
        outputs = self.run(state, x)
        delta = outputs.softmax(1)
        delta.scatter_add_(1, outputs.argmax(1, keepdim=True), torch.full_like(delta[:, :1], -1.0))
        squares = {}
        for name, inputs in zip(reversed(self.layers), reversed(hidden)):
            squares[name] = (delta**2).T @ inputs**2
            delta = (delta @ state[name]).mul_(inputs > 0)
        return squares
