"""Features are rows of images for any number of images, whatever the network does with their dimensions."""

import hashlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, pad

from supsup import Recipe, SupSup, SupSupError, nets
from supsup.inference.profiles.features import (
    _FILTERS,
    _PLACES,
    SIZES,
    _filters,
    extract_features,
    filled,
    filter_features,
    is_picture,
    picture_features,
)
from supsup.inference.profiles.fit import direction_limit, fit_gaussians, image_limit
from supsup.inference.profiles.profile import GaussianIndex
from supsup.kernels import available
from supsup.masks.frozen import FrozenNet

CPU = torch.device("cpu")


class TimeFirst(nn.Module):
    """Eight steps, which its layers have before the images."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 12), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.leave(self.enter(x.transpose(0, 1)).relu()).mean(0)
        return out


class BatchFirst(TimeFirst):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.leave(self.enter(x).relu().mean(1))
        return out


@pytest.mark.parametrize("module", [TimeFirst, BatchFirst])
def test_an_image_has_the_same_features_among_any_number(module: type[nn.Module]) -> None:
    """As many images as steps must not be taken for the steps."""
    net, x = FrozenNet(module(), 0, CPU), torch.randn(20, 8, 8, generator=torch.Generator().manual_seed(0))
    every = extract_features(net, x)
    for count in (1, 2, 8, 12, 19):
        torch.testing.assert_close(extract_features(net, x[:count]), every[:count])


def test_as_many_images_as_steps_are_learned_and_answered() -> None:
    x, y = torch.randn(40, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    model = SupSup(TimeFirst(), recipe=Recipe(steps=2, batch_size=4), device="cpu")
    model.learn((x[:32] + 3, y[:32]), task="many")
    model.learn((x[32:] - 3, y[32:]), task="eight")
    assert model.infer_task(x[:8] + 3) == ["many"] * 8


def test_statistics_of_another_network_are_not_compared() -> None:
    """A file can hold any: masks are tried where features do not suit."""
    x = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    several = [fit_gaussians(x[:, :count], torch.arange(12) % 2, 2, 3) for count in (5, 4)]
    with pytest.raises(SupSupError, match="different numbers of features"):
        GaussianIndex(several, CPU)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 40, 100), (1, 12, 12)])
def test_filters_see_pictures_of_any_size_each_for_itself(shape: tuple[int, ...]) -> None:
    x = torch.rand(5, *shape, generator=torch.Generator().manual_seed(0))
    assert is_picture(shape)
    seen = filter_features(x, 10)
    assert seen.shape == (5, 10 * _PLACES)
    assert (seen >= 0).all()
    torch.testing.assert_close(filter_features(x[3:4], 10), seen[3:4])
    torch.testing.assert_close(filter_features(200 * x - 30, 10), filter_features(20 * x, 10), atol=0.02, rtol=0)


@pytest.mark.parametrize(("channels", "side", "margin", "threshold"), [(1, 7, 2, 1.0), (3, 6, 0, 1.0)])
def test_filters_answer_by_hand(channels: int, side: int, margin: int, threshold: float) -> None:
    """One filter at one place: the patch less its mean, by its contrast, times the filter; grey pictures have a rim."""
    x = torch.rand(1, channels, 12, 12, generator=torch.Generator().manual_seed(0))
    weight = _filters("grey" if channels == 1 else "colours", 3)[1].double()
    wide = pad(x, (margin,) * 4, mode="replicate")[0].double()
    places = wide.shape[1] - side + 1
    answers = torch.empty(places, places).double()
    for row in range(places):
        for column in range(places):
            patch = wide[:, row : row + side, column : column + side]
            contrast = patch.square().mean() - patch.mean().square()
            answers[row, column] = ((patch - patch.mean()) * weight).sum() / (contrast + 0.01).sqrt()
    quarters = adaptive_avg_pool2d((answers - threshold).relu()[None], 2).flatten().sqrt()
    torch.testing.assert_close(filter_features(x, 3)[0, 4:8].double(), quarters, atol=1e-4, rtol=1e-4)


def test_filters_are_those_that_files_hold_statistics_of() -> None:
    """With other numbers tasks of saved models would not be found again."""
    assert (
        hashlib.sha256(_FILTERS.read_bytes()).hexdigest()
        == "e12fffdf57ad7c0bf3b2766c8b0fa9fd31313d736e8890e47d200473ff0bc416"
    )
    for kind, shape in (("grey", (400, 1, 7, 7)), ("colours", (1600, 3, 6, 6))):
        weights = _filters(kind, 1600)
        assert weights.shape == shape
        torch.testing.assert_close(weights.mean((1, 2, 3)), torch.zeros(len(weights)), atol=1e-6, rtol=0)
        assert torch.equal(_filters(kind, 96), weights[:96])


@pytest.mark.skipif(not available.NUMBA, reason="needs numba")
@pytest.mark.parametrize(("side", "filters"), [(12, 5), (17, 48), (28, 48)])
def test_compiled_loops_see_what_torch_does(side: int, filters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = 3 * torch.rand(61, 1, side, side + 2, generator=torch.Generator().manual_seed(0)) - 1
    x[3], x[7, 0, 5, 5] = 1, torch.nan
    compiled = filter_features(x, filters)
    monkeypatch.setattr(available, "NUMBA", False)
    plain = filter_features(x, filters)
    torch.testing.assert_close(compiled, plain, rtol=0, atol=1e-5, equal_nan=True)
    assert plain[7].isnan().any()


def test_what_is_no_picture_is_not_looked_at() -> None:
    assert not any(map(is_picture, [(784,), (12, 30), (5, 28, 28), (1, 28, 5)]))


def test_a_larger_network_has_more_features_directions_and_images_within_limits() -> None:
    """The size of what a task leaves goes by that of its mask: by hand, for 784, 98,000 and 1,568,000 bytes."""
    found = []
    for width in (8, 1000, 16000):
        net = FrozenNet(nn.Sequential(nn.Flatten(), nn.Linear(784, width, bias=False)), 0, CPU)
        numbers = extract_features(net, torch.rand(2, 1, 28, 28)).shape[1]
        bytes_ = 784 * width // 8
        limits = (direction_limit(SIZES["default"], number, 10, bytes_, bytes_) for number in (numbers, 1000))
        found.append((numbers // _PLACES, *limits, image_limit(net)))
    assert found == [(96, 32, 32, 2000), (152, 80, 98, 4900), (400, 128, 128, 5000)]


def test_layers_that_are_too_wide_are_averaged() -> None:
    x = torch.randn(3, 1, 700)
    wide = extract_features(FrozenNet(nets.FullyConnected((700, 1200, 600, 4)), 0, CPU), x)
    narrow = extract_features(FrozenNet(nets.FullyConnected((700, 300, 200, 4)), 0, CPU), x)
    assert (wide.shape, narrow.shape) == ((3, 512 + 512), (3, 300 + 200))


@pytest.mark.parametrize(
    ("shape", "shrunk"),
    [((3, 40, 100), (13, 32)), ((3, 100, 20), (32, 12)), ((1, 64, 64), (32, 32)), ((3, 32, 32), None)],
)
def test_large_pictures_are_looked_at_with_32_pixels_along_a_side(
    shape: tuple[int, ...], shrunk: tuple[int, int] | None
) -> None:
    x = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    small = x if shrunk is None else torch.nn.functional.interpolate(x, shrunk, mode="area")
    torch.testing.assert_close(filter_features(x, 4), filter_features(small, 4))
    assert [is_picture(each) for each in ((3, 12, 12), (4, 12, 12), (1, 12, 11), (1, 11, 12))] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.skipif(not available.NUMBA, reason="needs numba")
def test_compiled_loops_look_at_grey_pictures_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A way that is no longer taken would be slow and right: no other test would see it."""
    from supsup.kernels import numba_filters

    asked: list[int] = []
    compiled = numba_filters.numba_filter_responses

    def watched(grey: Tensor, *rest: Any) -> Tensor:
        asked.append(len(grey))
        found: Tensor = compiled(grey, *rest)
        return found

    monkeypatch.setattr(numba_filters, "numba_filter_responses", watched)
    filter_features(torch.rand(3, 1, 12, 12), 4)
    filter_features(torch.rand(4, 3, 12, 12), 4)
    assert asked == [3]


def test_small_profiles_have_few_bytes_however_large_the_network() -> None:
    """By hand, of a mask of 10,000 bytes that a coder halves: at most 0.4 · 5,000 bytes, the means among them."""
    assert direction_limit(SIZES["small"], 100, 10, 10_000, 5_000.0) == 10
    assert direction_limit(SIZES["small"], 1000, 10, 10_000, 5_000.0) == 0
    assert direction_limit(SIZES["default"], 100, 10, 10_000, 5_000.0) == 90
    assert direction_limit(SIZES["large"], 100, 10, 10_000, 5_000.0) == 128


def test_large_profiles_see_coloured_pictures_and_their_mirror_images_alike() -> None:
    colours, grey = torch.rand(3, 3, 20, 20), torch.rand(3, 1, 20, 20)
    torch.testing.assert_close(picture_features(colours, 9, True), picture_features(colours.flip(-1), 9, True))
    torch.testing.assert_close(2 * picture_features(colours, 9, True), sum_of_both(colours, 9))
    assert torch.equal(picture_features(grey, 9, True), filter_features(grey, 9)), "letters and digits have a direction"
    assert torch.equal(picture_features(colours, 9, False), filter_features(colours, 9))


def sum_of_both(x: Tensor, filters: int) -> Tensor:
    return filter_features(x, filters) + filter_features(x.flip(-1), filters)


def test_random_features_are_the_same_everywhere() -> None:
    """Profiles in files hold their statistics: the size of sums with signs that never change."""
    x = torch.eye(3)
    found = filled(x, 8)
    assert torch.equal(found[:, :3], x)
    torch.testing.assert_close(found[:, 3:], torch.full((3, 5), 3**-0.5))
    sums = 3 * filled(torch.ones(1, 9), 17)[0, 9:]
    assert sums.tolist() == pytest.approx(SIGNED_SUMS)
    assert filled(x, 3) is x


SIGNED_SUMS = [1.0, 1.0, 1.0, 3.0, 3.0, 5.0, 1.0, 1.0]  # of nine signs each
