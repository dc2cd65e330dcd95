"""Training is measured as it is done: by the executor that would train, for as many tasks as are learned."""

import importlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from supsup_paper.bench import Machine, training


def test_the_networks_of_the_zoo_are_measured_beside_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each network and its drawn inputs fit together, and the figures follow from each other."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))
    speed = importlib.import_module("benchmarks.networks.zoo_speed")
    for name, inputs in list(speed.INPUTS.items()):
        monkeypatch.setitem(speed.INPUTS, name, replace(inputs, images=24))
    monkeypatch.setattr(training, "plain_step", partial(training.plain_step, steps=1))
    for name in speed.INPUTS:
        row = speed.measured(name, 2, 2, Machine(1e9, 1e9), torch.device("cpu"), None)
        assert row["executor"] == ("batched on a CPU" if name == "lenet-mnist" else "side by side on a CPU")
        assert (row["tasks"], row["steps"], row["batch"]) == (2, 2, 16)
        assert row["µs per task-step"] == pytest.approx(1e6 * row["seconds"] / 4)
        assert row["faster than plain"] == pytest.approx(row["plain µs per task-step"] / row["µs per task-step"])
        assert speed.line(row).count("|") == 10
