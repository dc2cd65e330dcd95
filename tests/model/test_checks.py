"""What a user can hand in wrongly."""

import numpy as np
import pytest
import torch

from supsup import SupSupError, nets
from supsup.masks.frozen import FrozenNet
from supsup.model import checks

CPU = torch.device("cpu")


def test_images_may_be_numpy_or_torch_of_any_float_type() -> None:
    for x in (np.zeros((2, 4)), torch.zeros(2, 4, dtype=torch.float64), np.zeros((2, 4), dtype=np.float16)):
        assert checks.check_images(x, CPU).dtype == torch.float32


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 4, dtype=torch.uint8), "floating point"),
        (torch.zeros(4), "batch"),
        (torch.zeros(0, 4), "at least one image"),
        (torch.tensor([[0.0, float("nan")], [0.0, 1.0]]), "1 of 2 images"),
        (torch.tensor([[0.0, float("inf")]]), "infinite"),
        ("pixels", "array of numbers"),
        (np.array([["a"]]), "array of numbers"),
    ],
)
def test_wrong_images(x: object, message: str) -> None:
    with pytest.raises(SupSupError, match=message):
        checks.check_images(x, CPU)


@pytest.mark.parametrize("y", [torch.zeros(3), torch.zeros(2, dtype=torch.int64), torch.zeros(3, 1, dtype=torch.int64)])
def test_wrong_labels(y: torch.Tensor) -> None:
    with pytest.raises(SupSupError, match="label"):
        checks.check_labels(y, 3, CPU)


def test_labels_must_have_outputs() -> None:
    checks.check_label_range(torch.tensor([0, 9]), 10, "t")
    with pytest.raises(SupSupError, match="labels up to 11 but the network has 10 outputs; build it with outputs=12"):
        checks.check_label_range(torch.tensor([0, 11]), 10, "t")
    with pytest.raises(SupSupError, match="count from 0"):
        checks.check_label_range(torch.tensor([-1]), 10, "t")


def test_what_a_network_does_not_take() -> None:
    net = FrozenNet(nets.FullyConnected((6, 4)), 0, CPU)
    assert checks.count_frozen_outputs(net, torch.zeros(3, 1, 2, 3), None) == 4
    with pytest.raises(SupSupError, match=r"does not take images of shape \(7,\)"):
        checks.count_frozen_outputs(net, torch.zeros(3, 7), None)
    with pytest.raises(SupSupError, match=r"shape \(6,\), but this model learned images of shape \(2, 3\)"):
        checks.count_frozen_outputs(net, torch.zeros(3, 6), (2, 3))


def test_a_pair_becomes_a_task() -> None:
    x, y = torch.rand(5, 6), torch.tensor([0, 1, 2, 1, 0])
    net = FrozenNet(nets.FullyConnected((6, 2)), 0, CPU)
    model = checks.InputRequirements(net)
    task = checks.make_task((x, y), "mine", model)
    assert (task.name, task.classes) == ("mine", 3)
    assert torch.equal(task.train.raw(torch.arange(5)), x)
    assert checks.check_new_task(task, "other", {"mine"}).name == "other"
    with pytest.raises(SupSupError, match="learned already"):
        checks.check_new_task(task, None, {"mine"})
    with pytest.raises(SupSupError, match="labels up to 2 but the network has 2 outputs"):
        checks.check_task_fits(task, model)
