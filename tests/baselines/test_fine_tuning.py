"""An ordinary network, trained on one task after the other."""

import pytest
import torch

from supsup import Recipe, SupSupError, nets
from supsup.baselines import FineTuning
from supsup.data import Stream


def test_it_learns_the_newest_task_and_repeats_for_a_seed(stream: Stream) -> None:
    x, y = stream[0].test.tensors()
    answers = []
    for _ in range(2):
        model = FineTuning(nets.lenet_300_100(), seed=3, recipe=Recipe(steps=60), device="cpu")
        assert model.learn(stream[0]) == "permutation-0"
        answers.append(model.predict(x).labels)
    assert torch.equal(*answers)
    assert float((answers[0] == y).float().mean()) > 0.8


def test_nothing_learned_yet() -> None:
    with pytest.raises(SupSupError, match="no task"):
        FineTuning(nets.lenet_300_100(), device="cpu").predict(torch.zeros(1, 784))
