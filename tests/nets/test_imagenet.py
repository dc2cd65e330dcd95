"""Networks for photographs: the published sizes, images of any size, and weights where they are at hand."""

import pytest
import torch
from torch import nn

from supsup import SupSupError, nets
from supsup.data.inputs import Inputs, pixel_inputs
from supsup.nets.architecture import architecture_of
from supsup.nets.execution import has_only_known_layers
from supsup.nets.imagenet import TensorFlowPadding
from supsup.nets.published import IMAGENET


@pytest.mark.parametrize(
    ("build", "parameters"),
    [(nets.mobilenet_v2, 3_504_872), (nets.efficientnet_lite0, 4_652_008), (nets.resnet50, 25_557_032)],
)
def test_as_large_as_published(build: object, parameters: int) -> None:
    """With 1,000 outputs each has the published number of parameters; what builds a sketch asks for no weights."""
    with torch.device("meta"):
        net = build(1000, pretrained=True)  # type: ignore[operator]
    assert sum(value.numel() for value in net.parameters()) == parameters
    assert has_only_known_layers(net)
    assert architecture_of(net).arguments["pretrained"] is True  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 70, 50), (3, 64, 64)])
def test_any_image_is_brought_to_size(shape: tuple[int, ...]) -> None:
    """Small, large, grey and oblong images all reach the layers as the weights want them."""
    net = nets.mobilenet_v2(5, size=64).eval()
    x = torch.rand(2, *shape)
    assert net.fit_images(x).shape == (2, 3, 64, 64)
    assert net(x).shape == (2, 5)


def test_padding_is_that_of_tensorflow() -> None:
    """The odd zero comes behind: else every stride would shift the image against the trained weights."""
    for side, before, behind in ((8, 0, 1), (7, 1, 1)):
        padded = TensorFlowPadding(3)(torch.ones(1, 1, side, side))
        assert padded.shape[-1] == side + before + behind
        assert bool(padded[0, 0, 0, 0]) == (before == 0)
    assert TensorFlowPadding(5)(torch.ones(1, 1, 8, 8)).shape[-1] == 11
    assert nn.Conv2d(1, 1, 5, 2)(TensorFlowPadding(5)(torch.ones(1, 1, 7, 8))).shape[-2:] == (4, 4)


def test_bad_sizes_are_refused() -> None:
    """Before any memory is taken."""
    with pytest.raises(SupSupError, match="size"):
        nets.mobilenet_v2(5, size=16)
    for build in (nets.mobilenet_v2, nets.efficientnet_lite0, nets.resnet50):
        with pytest.raises(SupSupError, match="too large; the most are"):
            build(10**9)
    with pytest.raises(SupSupError, match="size goes with pretrained"):
        nets.resnet50(5, size=64)
    with pytest.raises(SupSupError, match="pretrained"):
        nets.efficientnet_lite0(5, pretrained="yes")  # type: ignore[arg-type]


def test_pixels_become_what_trained_weights_expect() -> None:
    """Bytes, fractions and grey images alike; what has been normalised already stays as it is."""
    raw = torch.randint(0, 256, (4, 3, 5, 5), dtype=torch.uint8)
    own = Inputs()
    seen = pixel_inputs(raw, IMAGENET, own).preprocess(raw)
    mean, deviation = (torch.tensor(each).view(3, 1, 1) for each in IMAGENET)
    assert torch.allclose(seen, (raw / 255 - mean) / deviation, atol=1e-5)
    assert torch.allclose(pixel_inputs(raw / 255, IMAGENET, own).preprocess(raw / 255), seen, atol=1e-5)
    assert pixel_inputs(raw[:, :1], IMAGENET, own).gain.ndim == 0
    assert pixel_inputs(raw / 255 - 0.5, IMAGENET, own) is own


def test_published_weights_know_classes_apart(pretrained_net: nets.ImageNetwork) -> None:
    """The layers compute what the weights were trained for: real digits are told apart by features of photographs."""
    from supsup import data

    task = data.split(data.digits(), 5, tasks=1)[0]
    x, y = task.train.batch(torch.arange(100))
    tested, truth = task.test.batch(torch.arange(100))
    with torch.no_grad():
        features = [pretrained_net.features(pretrained_net.fit_images(images)).mean((2, 3)) for images in (x, tested)]
    means = torch.stack([features[0][y == label].mean(0) for label in range(5)])
    nearest = torch.cdist(features[1], means).argmin(1)
    assert float((nearest == truth).float().mean()) > 0.6  # 0.2 by chance
