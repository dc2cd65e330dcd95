"""BatchE (Wen et al., 2020): weights frozen after the first task and, for each task, a rank-one matrix they are
multiplied with, W ⊙ r sᵀ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args, overload

import torch
from torch import Tensor, nn

from supsup.data import Task
from supsup.masks import philox
from supsup.model import checks
from supsup.model.checks import Array
from supsup.model.predictor import Outputs, Prediction, check_outputs
from supsup.model.state import check_among
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import choice, given
from supsup.training import Recipe
from supsup.training.plain import State
from supsup_paper.baselines import storage
from supsup_paper.baselines.baseline import Baseline
from supsup_paper.baselines.inference import TaskInference, infer_batche_task

BaseWeights = Literal["trained", "random"]
LastLayer = Literal["rank-one", "head"]


class BatchE(Baseline):
    """A task is two vectors per layer: s scales its inputs and r its outputs.

    base       "trained": W is trained on the first task, then frozen; "random": never, so that it need not be stored
    last       the last layer too has a "rank-one" matrix (the paper's choice on MNIST), or each task its own "head"
    inference  how a task is inferred when nobody says it
    """

    independent = True
    broadcasts = True

    def __init__(
        self,
        net: nn.Module,
        seed: int = 0,
        *,
        base: BaseWeights = "trained",
        last: LastLayer = "rank-one",
        inference: TaskInference | None = None,
        **settings: Any,
    ) -> None:
        choice(*get_args(BaseWeights))(base, "base")
        choice(*get_args(LastLayer))(last, "last")
        settings.setdefault("filling", "kaiming_normal" if base == "trained" else "kaiming_uniform")
        if settings.get("recipe") is None:
            settings["recipe"] = Recipe("adam", 1e-2, weight_decay=1e-4)
        recipe = given(settings["recipe"], Recipe, "recipe")
        settings.setdefault("first", replace(recipe, learning_rate=1e-4) if base == "trained" else None)
        super().__init__(net, seed, **settings)
        self.base, self.last = base, last
        self.first_matters = base == "trained"
        self.scaled = self._scaled_with(last)
        self.inference = TaskInference() if inference is None else given(inference, TaskInference, "inference")

    def begin(self, task: Task) -> State:
        """Rank-one matrices of random signs."""
        own: State = {}
        for name in self.scaled:
            for side, width in zip((_out(name), _in(name)), self.shared[name].shape):
                own[side] = philox.signs(self.seed, f"rank-one/{task.name}/{side}", width).to(self.device)
        return self.shared | self.fresh_statistics() | own

    def trains(self, name: str, first: bool) -> bool:
        own = name not in self.shared or (name == self.head and self.last == "head")
        return own or (super().trains(name, first) and first and self.base == "trained")

    def finish(self, task: Task, state: State) -> None:
        own = {name for name in state if name not in self.shared} | self.statistics
        if self.last == "head":
            own.add(self.head)
        self.shared = {name: value if name in own else state[name] for name, value in self.shared.items()}
        self.own[task.name] = {name: state[name] for name in own}

    def effective(self, state: Mapping[str, Tensor]) -> State:
        weights = super().effective(state)
        for name in self.scaled:
            weights[name] = weights[name] * rank_one(state[_out(name)], state[_in(name)], self.shared[name].ndim)
        return weights

    def run_side_by_side(self, state: State, x: Tensor) -> Tensor:
        """The vectorised form, which never makes W ⊙ r sᵀ; W may be [n, out, in] or one [out, in] for all."""
        for name in self.layers:
            if name in self.scaled:
                x = ((x * state[_in(name)][:, None]) @ state[name].mT) * state[_out(name)][:, None]
            else:
                x = x @ state[name].mT
            x = x if name == self.head else x.relu_()
        return x

    @overload
    def infer_task(self, x: Array, *, per: Literal["image"] = "image", **how: Any) -> list[str]: ...

    @overload
    def infer_task(self, x: Array, *, per: Literal["batch", "first"], **how: Any) -> str: ...

    @torch.no_grad()
    def infer_task(
        self, x: Array, *, per: str = "image", among: Sequence[str] | None = None, **how: Any
    ) -> list[str] | str:
        """The name of the task that images belong to: per "image", from the whole "batch", or from its "first" image.

        among  only these tasks come into question (all by default)
        how    fields of `TaskInference` in place of the model's own setting
        """
        images = self.checked_images(x)
        choice("image", "batch", "first")(per, "per")
        decisions = {"image": images[:, None], "batch": images[None], "first": images[None, :1]}[per]
        names = self._inferred(decisions, among, how)
        return names if per == "image" else names[0]

    @torch.no_grad()
    def infer_batches(self, x: Array, *, among: Sequence[str] | None = None, **how: Any) -> list[str]:
        """The task of each of r batches [r, b, …]."""
        batches = checks.check_images(x, self.device, 2)
        self.outputs_for(batches[0])
        return self._inferred(batches, among, how)

    def _inferred(self, x: Tensor, among: Sequence[str] | None, how: Mapping[str, Any]) -> list[str]:
        try:
            settings = replace(self.inference, **how)
        except TypeError as error:
            raise SupSupError(f"unknown inference setting: {error}") from error
        with self.lock.reading():
            if not self.own:
                raise SupSupError("no task has been learned yet; call learn first")
            names = check_among(among, self.own) or self.tasks
            indices = infer_batche_task(self, x, names, self.most_classes(names), settings)
        return [names[i] for i in indices.tolist()]

    @torch.no_grad()
    def predict(
        self, x: Array, task: str | None = None, *, among: Sequence[str] | None = None, outputs: Outputs = "classes"
    ) -> Prediction:
        """A label for every image, with the task known or inferred for each image on its own.

        among    where it is not known: only these tasks come into question (all by default)
        outputs  "all": also those that stand for no class may answer, as the paper grades
        """
        if task is not None:
            return super().predict(x, task, outputs=outputs)
        check_outputs(outputs, "outputs")
        with self.lock.reading():
            images = self.checked_images(x)
            names = self._inferred(images[:, None], among, {})
            found = set(names)
            width = self.most_classes(found) if outputs == "classes" else self.outputs_for(images)
            probabilities = torch.zeros(len(images), width, device=self.device)
            for name in found:
                rows = torch.tensor([i for i, used in enumerate(names) if used == name], device=self.device)
                classes = self.learned[name].classes if outputs == "classes" else None
                some = self.probabilities(images[rows], self.state_of(name), classes)
                probabilities[rows, : some.shape[1]] = some
            unknown = torch.full((len(names),), torch.nan, device=self.device)
            return Prediction.of(probabilities, names, self.info_of(found), unknown)

    @property
    def bytes(self) -> int:
        """The paper counts no statistics where W is trained (that figure is from Wen et al.)."""
        return self.bytes_with(self.last)

    def bytes_with(self, last: LastLayer) -> int:
        """What `bytes` would be with that kind of last layer."""
        shapes = [self.shared[name].shape for name in self._scaled_with(last)]
        vectors = sum(out + inputs for out, inputs, *_ in shapes)
        head = storage.weight_bytes(self.shared, keep={self.head}) if last == "head" else 0
        per_task = 4 * vectors + head
        if self.base == "random":
            return len(self.own) * (per_task + storage.statistics_bytes(self.net))
        stored = self.statistics | ({self.head} if last == "head" else set())
        return storage.weight_bytes(self.shared, stored) + len(self.own) * per_task

    def _scaled_with(self, last: LastLayer) -> list[str]:
        """The layers that have vectors."""
        return self.layers if last == "rank-one" else self.layers[:-1]


def rank_one(out: Tensor, inputs: Tensor, dimensions: int = 2) -> Tensor:
    """r sᵀ in the shape of a weight [out, in, 1, …], or of n such from vectors [n, out] and [n, in]."""
    product = out[..., :, None] * inputs[..., None, :]
    return product.view(*product.shape, *[1] * (dimensions - 2))


def _out(name: str) -> str:
    return f"out/{name}"


def _in(name: str) -> str:
    return f"in/{name}"
