"""The plain path: the same weights for a seed, and only what the method trains is trained."""

import torch
from torch import nn

from supsup import Recipe
from supsup.baselines import SeparateHeads
from supsup.baselines.any_module import learn_plain
from supsup.data import Stream


def test_it_repeats_and_keeps_to_what_is_trained(convolutional: nn.Module, split: Stream, brief: Recipe) -> None:
    models = [SeparateHeads(convolutional, 2, trunk="random", recipe=brief, device="cpu") for _ in range(2)]
    trunk = models[0].shared["conv.weight"].clone()
    for model in models:
        learn_plain(model, split[0])
    states = [model.state_of(split[0].name) for model in models]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert torch.equal(states[0]["conv.weight"], trunk)
    assert not torch.equal(states[0]["linear.weight"], models[0].begin(split[1])["linear.weight"])
    assert states[0]["norm.running_mean"].any(), "statistics are the task's own"
    assert not models[0].begin(split[1])["norm.running_mean"].any(), "and begin afresh for the next"
