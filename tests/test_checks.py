"""What a user can hand in wrongly."""

import numpy as np
import pytest
import torch

from supsup import SupSupError, checks

CPU = torch.device("cpu")


def test_images_may_be_numpy_or_torch_of_any_float_type() -> None:
    for x in (np.zeros((2, 4)), torch.zeros(2, 4, dtype=torch.float64), np.zeros((2, 4), dtype=np.float16)):
        assert checks.images(x, CPU).dtype == torch.float32


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
        checks.images(x, CPU)  # type: ignore[arg-type]


@pytest.mark.parametrize("y", [torch.zeros(3), torch.zeros(2, dtype=torch.int64), torch.zeros(3, 1, dtype=torch.int64)])
def test_wrong_labels(y: torch.Tensor) -> None:
    with pytest.raises(SupSupError, match="label"):
        checks.labels(y, 3, CPU)


def test_labels_must_have_outputs() -> None:
    checks.label_range(torch.tensor([0, 9]), 10, "t")
    with pytest.raises(SupSupError, match="labels up to 11 but the network has 10 outputs; build it with outputs=12"):
        checks.label_range(torch.tensor([0, 11]), 10, "t")
    with pytest.raises(SupSupError, match="count from 0"):
        checks.label_range(torch.tensor([-1]), 10, "t")
