"""One list of promises, and every learner is held to all of them: what a user may rely on whichever learner it is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from supsup import HopSupSup, Prediction, Recipe, Recovery, SupSup, SupSupError, UnitRecipe, nets
from supsup.data import Part, Task
from supsup.evaluation.learner import InfersTask, Learner
from supsup.evaluation.promises import PROMISES, BrokenPromises, check_learner
from supsup_paper.baselines import PSP, SI, BatchE, LowerBound, OnlineEWC, SeparateHeads, UpperBound

RECIPE = Recipe("adam", 1e-2, steps=15, batch_size=16)
SHORT = Recipe("adam", 1e-2, steps=1, batch_size=16)


@dataclass(frozen=True)
class Kind:
    """A kind of learner: built with a recipe, and what it can do beyond the promises to all.

    infers      answers without the task
    looks_back  … as it would have before it learned the later tasks
    """

    name: str
    build: Callable[[Recipe], Learner]
    infers: bool = True
    looks_back: bool = False


def mlp() -> nets.FullyConnected:
    return nets.FullyConnected((64, 32, 12))


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 12)
    )


def hop(recipe: Recipe) -> HopSupSup:
    how: dict[str, Any] = {"recipe": UnitRecipe(epochs=1 if recipe is SHORT else 5, batch_size=16)}
    return HopSupSup(nets.HopMLP((64, 256, 256, 12)), seed=3, device="cpu", recovery=Recovery(starts=2), **how)


def baseline(kind: type, **settings: Any) -> Callable[[Recipe], Learner]:
    return lambda recipe: kind(mlp(), recipe=recipe, device="cpu", **settings)


KINDS = [
    Kind("SupSup", lambda recipe: SupSup(mlp(), recipe=recipe, device="cpu"), looks_back=True),
    Kind("SupSup-cnn", lambda recipe: SupSup(cnn(), recipe=recipe, device="cpu"), looks_back=True),
    Kind("HopSupSup", hop),
    Kind("BatchE", lambda recipe: BatchE(mlp(), recipe=recipe, first=recipe, device="cpu"), looks_back=True),
    Kind("PSP", baseline(PSP), infers=False),
    Kind("SeparateHeads", baseline(SeparateHeads), infers=False),
    Kind("UpperBound", baseline(UpperBound), infers=False),
    Kind("LowerBound", baseline(LowerBound), infers=False),
    Kind("LowerBound-single", baseline(LowerBound, heads="single")),
    Kind("OnlineEWC", baseline(OnlineEWC, images=10)),
    Kind("OnlineEWC-unshared", baseline(OnlineEWC, images=10, labels="unshared")),
    Kind("SI", baseline(SI)),
    Kind("SI-unshared", baseline(SI, labels="unshared")),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_learner_keeps_every_promise(kind: Kind) -> None:
    assert check_learner(partial(kind.build, RECIPE), infers=kind.infers) == list(PROMISES)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_network_that_has_hardly_learned_answers_with_classes_of_the_task(kind: Kind) -> None:
    """After a step or two a network of 12 outputs would answer with any of them."""
    check_learner(partial(kind.build, SHORT), infers=kind.infers, only=["answers_with_classes_of_the_task"])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_learners_of_ours_say_how_probable_each_class_is(kind: Kind) -> None:
    """Learners of others need not; which of ours can look back is settled, too."""
    model, x = kind.build(SHORT), torch.rand(24, 1, 8, 8)
    part = Part(x, torch.arange(24) % 3)
    model.learn(Task("a", part, part, 3))
    assert model.predict(x, task="a").probabilities.shape == (24, 3)
    assert isinstance(model, InfersTask) == kind.looks_back


class Careless:
    """Learns nothing and answers everything with class 7 of a task it invents."""

    def __init__(self) -> None:
        self.tasks: list[str] = []

    def learn(self, data: Task, /) -> str:
        self.tasks.append(data.name)
        return data.name

    def predict(self, x: Tensor, task: str | None = None, *, among: Sequence[str] | None = None) -> Prediction:
        return Prediction(torch.full((len(x),), 7), [task or "invented"] * len(x), torch.ones(len(x)))


def test_a_careless_learner_is_told_which_promises_it_breaks() -> None:
    with pytest.raises(BrokenPromises, match="Careless breaks 8 of 12 promises") as caught:
        check_learner(Careless)
    assert "learns_one_task_after_another" not in caught.value.broken
    assert "Labels of a task with 3 classes: [7]" in caught.value.broken["uses_the_given_task"]
    assert "no error" in caught.value.broken["refuses_unknown_tasks"]
    with pytest.raises(SupSupError, match="unknown promise"):
        check_learner(Careless, only=["flies"])
