"""Bytes: the published figures of SplitCIFAR100, digit for digit."""

import pytest
import torch

from supsup import nets
from supsup.data import Part, Task
from supsup_paper.baselines import BatchE, SeparateHeads, UpperBound
from supsup_paper.baselines.baseline import Baseline

PUBLISHED = {
    "BatchE": 4_640_800,
    "BatchE Rand W": 400_240,
    "Separate Heads": 4_544_560,
    "Separate Heads Rand W": 184_000,
    "Upper Bound": 89_675_200,
}


def baseline(name: str) -> Baseline:
    net = nets.gem_resnet18(outputs=5)
    if name.startswith("BatchE"):
        return BatchE(net, base="random" if "Rand" in name else "trained", last="head", device="cpu")
    if name.startswith("Separate"):
        return SeparateHeads(net, trunk="random" if "Rand" in name else "trained", device="cpu")
    return UpperBound(net, device="cpu")


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_published_bytes(name: str, published: int) -> None:
    model = baseline(name)
    part = Part(torch.zeros(1, 3, 32, 32), torch.zeros(1, dtype=torch.int64))
    for number in range(20):
        task = Task(f"task-{number}", part, part, 5)
        model.finish(task, model.begin(task))  # what is stored does not depend on how well it was trained
    assert model.bytes == published
