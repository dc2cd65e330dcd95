"""What tasks leave does not depend on those that they are trained with, on a CPU to the bit."""

from collections.abc import Sequence

import pytest
import torch

from supsup import Recipe, SupSup, nets
from supsup.data import Part, Task
from supsup.inference.profiles import TaskProfile
from supsup.inference.profiles.fit import ProfileData, ProfileFitter
from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet
from supsup.model.state import state_of

CPU = torch.device("cpu")
FEATURES = 40


def net() -> FrozenNet:
    return FrozenNet(nets.FullyConnected((FEATURES, 60, 30, 8)), 0, CPU)


def shown(seed: int, judged: bool = False) -> ProfileData:
    x = torch.randn(300, FEATURES, generator=torch.Generator().manual_seed(seed)) + seed
    part = Part(x, torch.arange(300) % 3)
    return ProfileData(part, Part(x[:60] + 0.1, part.labels[:60]) if judged else None, 3)


def leaving(frozen: FrozenNet, masks: Sequence[int]) -> ProfileFitter:
    bank = Bank(frozen.shapes)
    drawn = torch.randint(0, 256, (bank.length, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return ProfileFitter(frozen, drawn[:, list(masks)], {})


def profiles(frozen: FrozenNet, tasks: Sequence[ProfileData]) -> list[TaskProfile]:
    found = leaving(frozen, range(len(tasks))).fit(tasks)
    return [profile for profile in found if profile is not None]


@pytest.mark.parametrize("judged", [False, True])
def test_a_task_leaves_the_same_alone(judged: bool) -> None:
    frozen, tasks = net(), [shown(seed, judged) for seed in range(4)]
    together = profiles(frozen, tasks)
    for index, task in enumerate(tasks):
        (alone,) = leaving(frozen, [index]).fit([task])
        assert alone is not None
        assert all(torch.equal(value, alone.tensors()[name]) for name, value in together[index].tensors().items())


@pytest.mark.parametrize("judged", [False, True])
def test_gaussians_made_together_are_those_of_each(judged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where tasks of another form come between, and one that gives no numbers."""
    broken = ProfileData(Part(torch.full((300, FEATURES), torch.inf), torch.arange(300) % 3), None, 3)
    tasks = [shown(0, judged), shown(1, judged), shown(2, not judged), broken, shown(3, judged), shown(4, judged)]
    frozen = net()
    alone = profiles(frozen, tasks)
    monkeypatch.setattr(ProfileFitter, "_room_for", lambda *_: True)
    together = profiles(frozen, tasks)
    assert len(together) == len(alone) == 5
    for one, other in zip(together, alone):
        torch.testing.assert_close(one.class_means, other.class_means, rtol=1e-2, atol=1e-2)
        for name in ("variances", "rest", "spreads", "familiar"):
            torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-3, atol=1e-3)
    assert all(len(profile.means.untyped_storage()) == profile.means.nbytes for profile in together)


def test_learning_one_by_one_or_together_leaves_the_same() -> None:
    labels = torch.arange(200) % 2
    parts = [Part(torch.randn(200, FEATURES, generator=torch.Generator().manual_seed(i)), labels) for i in range(5)]
    tasks = [Task(f"{index}", part, part, 2) for index, part in enumerate(parts)]
    models = []
    for count in (1, 5):
        model = SupSup(nets.FullyConnected((FEATURES, 60, 30, 8)), recipe=Recipe(steps=3), device="cpu")
        for start in range(0, 5, count):
            model.learn_many(tasks[start : start + count])
        models.append(model)
    for one, other in zip(*(state_of(model).tasks for model in models)):
        assert one.profile is not None
        assert other.profile is not None
        assert all(torch.equal(value, other.profile.tensors()[name]) for name, value in one.profile.tensors().items())
