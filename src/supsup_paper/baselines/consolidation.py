"""Online EWC and SI: all weights are trained, and a penalty holds back those that earlier tasks need.

EWC (Schwarz et al., 2018, after Kirkpatrick et al., 2017) takes the Fisher information as a weight's importance; SI
(Zenke et al., 2017) takes how much the weight's movement has lowered the loss.

labels  "shared": every task uses the same outputs (GNs). "unshared": each task has outputs of its own and an answer
        picks one among those of all tasks learned (GNu, class-incremental); with the task given, among that task's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from supsup.data import Task
from supsup.masks import philox
from supsup.model.checks import Array
from supsup.model.predictor import Outputs, Prediction, answer_among
from supsup.runtime.validation import choice, names, optional, real, whole
from supsup.training import Recipe
from supsup.training.plain import State
from supsup_paper.baselines import storage
from supsup_paper.baselines.baseline import Baseline

Labels = Literal["shared", "unshared"]
OPEN = "open outputs"  # 0 for the outputs in use, −∞ for those of tasks to come


class Consolidation(Baseline):
    """The penalty strength · Σ importance · (w − anchor)² on every weight w."""

    filling = "kaiming_uniform"
    needs_task = False

    def __init__(
        self, net: nn.Module, seed: int = 0, *, strength: float, labels: Labels = "shared", **settings: Any
    ) -> None:
        choice(*get_args(Labels))(labels, "labels")
        strength = real(0)(strength, "strength")
        if settings.get("recipe") is None:
            settings["recipe"] = Recipe("adam", 1e-4)
        super().__init__(net, seed, **settings)
        self.strength, self.labels = strength, labels
        self.weights = [name for name in self.shared if name not in self.statistics]
        self.memory: State = {}
        for name in self.weights:
            self.memory[importance(name)] = torch.zeros_like(self.shared[name])
            self.memory[anchor(name)] = self.shared[name].clone()
        self._outputs: dict[str, range] = {}

    def outputs_of(self, task: Task) -> range:
        """The outputs that belong to a task, learned or the next to be."""
        if task.name in self._outputs:
            return self._outputs[task.name]
        used = sum(len(outputs) for outputs in self._outputs.values()) if self.labels == "unshared" else 0
        return range(used, used + task.classes)

    def label_offset(self, task: Task) -> int:
        return self.outputs_of(task).start

    def begin(self, task: Task) -> State:
        state = self.shared | self.memory
        if self.labels == "unshared":
            closed = torch.full((self.shared[self.head].shape[0],), -torch.inf, device=self.device)
            closed[: self.outputs_of(task).stop] = 0
            state[OPEN] = closed
        return state

    def trains(self, name: str, first: bool) -> bool:
        return name in self.shared and super().trains(name, first)

    def run(self, state: State, x: Tensor, module: nn.Module | None = None) -> Tensor:
        outputs = super().run(state, x, module)
        return outputs + state[OPEN] if OPEN in state else outputs

    def run_side_by_side(self, state: State, x: Tensor) -> Tensor:
        outputs = super().run_side_by_side(state, x)
        return outputs + state[OPEN][:, None] if OPEN in state else outputs

    def penalty(self, state: State) -> Tensor | None:
        springs = [(state[importance(name)] * (state[name] - state[anchor(name)]) ** 2).sum() for name in self.weights]
        return self.strength * torch.stack(springs).sum()

    @torch.no_grad()
    def closed(self, task: Task, state: State) -> State:
        found = self.importances(task, state)
        return state | {importance(name): state[importance(name)] + value for name, value in found.items()}

    def finish(self, task: Task, state: State) -> None:
        self._outputs[task.name] = self.outputs_of(task)
        super().finish(task, state)
        for name in self.weights:
            self.memory[importance(name)] = state[importance(name)]
            self.memory[anchor(name)] = state[name].clone()

    @abstractmethod
    def importances(self, task: Task, state: State) -> State:
        """How much the task just learned needs each weight."""

    @torch.no_grad()
    def predict(
        self, x: Array, task: str | None = None, *, among: Sequence[str] | None = None, outputs: Outputs = "classes"
    ) -> Prediction:
        """A label for every image and, where labels are unshared, the task whose output is the largest.

        among    where the task is not given: only the outputs of these may answer (of all tasks by default)
        outputs  "all": where labels are shared, also those that stand for no class may answer, as the paper grades
        """
        among = None if among is None else names(among, "among")
        with self.lock.reading():
            name = self.answering(task, among)
            if self.labels == "shared":
                return super().predict(x, task, among=among, outputs=outputs)
            images = self.checked_images(x)
            asked = [name] if task is not None else self.tasks if among is None else list(dict.fromkeys(among))
            columns = [output for each in asked for output in self._outputs[each]]
            answers = self.outputs_with(images, self.shared)[:, columns]
            classes = {each: len(self._outputs[each]) for each in asked}
            return answer_among(answers, classes, self.info_of(asked))

    @property
    def bytes(self) -> int:
        return 3 * storage.weight_bytes(self.shared, self.statistics) + storage.statistics_bytes(self.net)


def importance(name: str) -> str:
    """Where a weight's importance is in a state."""
    return f"importance/{name}"


def anchor(name: str) -> str:
    """Where a weight's value after the last task is in a state."""
    return f"anchor/{name}"


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
