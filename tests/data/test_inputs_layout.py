"""Where channels are: 32 × 32 × 3 must never be taken for 32 channels."""

import pytest
import torch

from supsup import SupSupError
from supsup.data.inputs import channels_first, has_channels_last, to_learned_shape


@pytest.mark.parametrize(
    ("shape", "last"),
    [
        ((8, 32, 32, 3), True),
        ((8, 32, 48, 1), True),
        ((8, 28, 28, 4), True),
        ((8, 3, 32, 32), False),
        ((8, 1, 28, 28), False),
        ((8, 32, 32, 32), False),
        ((8, 3, 3, 3), False),
        ((8, 64, 8, 8), False),
        ((8, 4, 4, 3), False),
        ((8, 28, 28), False),
        ((8, 10), False),
        ((8, 16, 32, 32, 3), False),
    ],
)
def test_the_shape_tells_where_it_leaves_no_doubt(shape: tuple[int, ...], last: bool) -> None:
    assert has_channels_last(torch.empty(shape)) is last


def test_what_is_said_counts() -> None:
    assert has_channels_last(torch.empty(2, 3, 3, 3), "NHWC")
    assert not has_channels_last(torch.empty(2, 32, 32, 3), "NCHW")
    with pytest.raises(SupSupError, match="layout"):
        has_channels_last(torch.empty(2, 32, 32, 3), "HWC")
    with pytest.raises(SupSupError, match="height, width"):
        has_channels_last(torch.empty(2, 32), "NHWC")


def test_images_come_in_the_shape_that_was_learned() -> None:
    images = torch.rand(2, 3, 5, 6)
    assert torch.equal(channels_first(images.movedim(1, -1)), images)
    for last in (False, True):
        assert to_learned_shape(images, (3, 5, 6), last) is images
        assert torch.equal(to_learned_shape(images.movedim(1, -1), (3, 5, 6), last), images)
    assert to_learned_shape(torch.rand(2, 5, 6), (1, 5, 6), False).shape == (2, 1, 5, 6)
    cube = torch.rand(2, 3, 3, 3)
    assert to_learned_shape(cube, (3, 3, 3), False) is cube
    assert torch.equal(to_learned_shape(cube, (3, 3, 3), True), channels_first(cube))
    batches = torch.rand(4, 2, 5, 6, 3)
    assert torch.equal(to_learned_shape(batches, (3, 5, 6), True, 2)[1], channels_first(batches[1]))
    with pytest.raises(SupSupError, match=r"shape \(5, 7, 3\), but this model learned images of shape \(3, 5, 6\)"):
        to_learned_shape(torch.rand(2, 5, 7, 3), (3, 5, 6), True)
