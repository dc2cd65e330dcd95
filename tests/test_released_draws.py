"""The benchmark that makes the released scripts' run again draws and learns as they do."""

import math
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from supsup import Recipe, SupSup, data, nets
from supsup.data import Source

SCRIPT = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "paper" / "released_draws.py"))
TASKS = 3


@pytest.fixture(scope="module")
def source() -> Source:
    return data.digits()


def test_draws_are_those_of_layers_built_one_after_the_other(source: Source) -> None:
    """By torch's own layers and initialisation, from its global generator."""
    net = nets.FullyConnected((784, 20, 12))
    draws = SCRIPT["draw"](1, net, source, Recipe(steps=40), TASKS, [2])
    torch.manual_seed(1)
    for weight, scores in zip(net.parameters(), draws.scores):
        outs, ins = weight.shape
        layer = nn.Conv2d(ins, outs, kernel_size=1, bias=False)
        assert torch.equal(weight, layer.weight.detach().sign()[:, :, 0, 0] * math.sqrt(2 / ins))
        for task in range(SCRIPT["TASKS"]):
            drawn = nn.init.kaiming_uniform_(torch.empty_like(layer.weight), a=math.sqrt(5))
            assert task >= TASKS or torch.equal(scores[task], drawn[:, :, 0, 0])

    def order(images: int) -> torch.Tensor:
        torch.empty((), dtype=torch.int64).random_()
        return torch.randperm(images)

    train, test = len(source.train_labels), len(source.test_labels)
    for task in range(TASKS):
        assert len(draws.epochs[task]) == 40 // math.ceil(train / 128) + 1
        for epoch in draws.epochs[task]:
            assert torch.equal(epoch.long(), order(train))
            order(test)
        if task + 1 in (2, TASKS):
            assert all(torch.equal(known, order(test)) for known in draws.tests[task + 1])
    assert sorted(draws.tests) == [2, TASKS]


def test_masks_are_those_of_plain_steps_on_the_drawn_batches(source: Source) -> None:
    """The last batch of an epoch is smaller; the loss is the mean over what there is."""
    recipe = Recipe(steps=math.ceil(len(source.train_labels) / 128) + 2)
    net = nets.FullyConnected((784, 20, 12))
    stream = SCRIPT["permutations"](source, 2, 1)
    draws = SCRIPT["draw"](1, net, source, recipe, 2, [])
    model = SupSup(net, recipe=recipe, pretrained=True, own_head=False)
    for trained in SCRIPT["learned"](model, stream, source, draws):
        SCRIPT["take_in"](model, trained)
    weights = list(net.parameters())
    for index, task in enumerate(stream):
        scores = [first[index].clone().requires_grad_() for first in draws.scores]
        optimiser = torch.optim.RMSprop(scores, lr=1e-4)
        steps = [batch for epoch in draws.epochs[index] for batch in epoch.split(128)][: recipe.steps]
        assert len({len(batch) for batch in steps}) == 2
        for batch in steps:
            x, y = task.train.batch(batch)
            masks = [(score >= 0).float() + score - score.detach() for score in scores]
            hidden = nn.functional.relu(x.flatten(1) @ (weights[0] * masks[0]).T)
            loss = nn.functional.cross_entropy(hidden @ (weights[1] * masks[1]).T, y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        for mine, score in zip(model.mask(task.name).values(), scores):
            assert (mine == (score >= 0)).float().mean() > 0.999
