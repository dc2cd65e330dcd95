"""What a task leaves is of its own images: which ones are looked at, what they score, and how many are found again."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from supsup import nets
from supsup.data import Part
from supsup.inference.profiles.features import extract_features
from supsup.inference.profiles.fit import ProfileData, ProfileFitter, _spread, expected_shares, fit_gaussians
from supsup.inference.profiles.profile import CALIBRATED, SCORES, SHARES, Gaussians, TaskProfile, familiarity
from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet

CPU = torch.device("cpu")
CLASSES = 3


@pytest.fixture(scope="module")
def net() -> FrozenNet:
    return FrozenNet(nets.FullyConnected((8, 30, 20, 6)), 0, CPU)


@pytest.fixture(scope="module")
def bank(net: FrozenNet) -> Bank:
    """Two random masks."""
    generator = torch.Generator().manual_seed(0)
    made = Bank(net.shapes, "cpu")
    for _ in range(2):
        made.add({name: torch.rand(shape, generator=generator) < 0.5 for name, shape in net.shapes.items()})
    return made


Leave = Callable[..., TaskProfile | None]


@pytest.fixture(scope="module")
def leave(net: FrozenNet, bank: Bank) -> Leave:
    """What a task with one of the masks leaves."""

    def profile(index: int, learned: Part, judge: Part | None, classes: int = CLASSES) -> TaskProfile | None:
        leaving = ProfileFitter(net, bank.packed(index)[:, None], {})
        (found,) = leaving.fit([ProfileData(learned, judge, classes)])
        return found

    return profile


def images(seed: int, count: int = 120) -> Part:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    centres = torch.randn(CLASSES, 8, generator=generator)
    return Part((centres[labels] + 0.5 * torch.randn(count, 8, generator=generator))[:, None], labels)


def scores(net: FrozenNet, bank: Bank, index: int, x: Tensor, gaussians: Gaussians) -> list[Tensor]:
    """`SCORES` under one mask."""
    outputs, features = net.run(x, net.masked(bank.mask(index))), extract_features(net, x)
    levels = (CALIBRATED[name](outputs, CLASSES) for name in ("energy", "mixture"))
    return [gaussians.likelihoods(features), *levels, gaussians.class_scores(features).amax(1)]


def gaussians_of(net: FrozenNet, part: Part, positions: Tensor) -> Gaussians:
    x, labels = part.batch(positions)
    return fit_gaussians(extract_features(net, x), labels, CLASSES, 32)


def check(profile: TaskProfile, expected: list[Tensor]) -> None:
    spreads = [[score.mean(), score.std(correction=0)] for score in expected]
    torch.testing.assert_close(profile.spreads, torch.tensor(spreads), rtol=1e-3, atol=1e-3)
    familiar = familiarity(dict(zip(SCORES, expected)), profile.spread)
    shares = expected_shares(torch.tensor(SHARES), len(familiar))
    torch.testing.assert_close(profile.familiar, familiar.quantile(shares), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("index", [0, 1])
def test_images_held_back_judge(leave: Leave, net: FrozenNet, bank: Bank, index: int) -> None:
    """They judge Gaussians of the others; where images are few, Gaussians that are kept are fitted to all."""
    learned, judge = images(1, 600), images(2, 50)
    profile = leave(index, learned, judge)
    assert profile is not None
    own = gaussians_of(net, learned, learned.labels.argsort(stable=True))
    torch.testing.assert_close(profile.gaussians.means, own.means, rtol=2e-2, atol=2e-2)
    check(profile, scores(net, bank, index, judge.tensors()[0], own))
    few = images(1)
    found = leave(index, few, judge)
    assert found is not None
    both = Part(torch.cat([few.images, judge.images]), torch.cat([few.labels, judge.labels]))
    every = gaussians_of(net, both, torch.arange(len(both)))
    torch.testing.assert_close(found.gaussians.means, every.means, rtol=2e-2, atol=2e-2)
    check(found, scores(net, bank, index, judge.tensors()[0], gaussians_of(net, few, few.labels.argsort(stable=True))))


def test_where_many_are_learned_and_none_held_back_one_half_judges_the_other(
    leave: Leave, net: FrozenNet, bank: Bank
) -> None:
    """Images that Gaussians were made of are more familiar than any that come later."""
    learned = images(1, 501)
    profile = leave(0, learned, None)
    assert profile is not None
    every = learned.labels.argsort(stable=True)
    own = gaussians_of(net, learned, every)
    torch.testing.assert_close(profile.gaussians.means, own.means, rtol=2e-2, atol=2e-2)
    half = gaussians_of(net, learned, every[::2])
    check(profile, scores(net, bank, 0, learned.batch(every[1::2])[0], half))


def test_few_images_are_judged_a_fifth_at_a_time(leave: Leave, net: FrozenNet, bank: Bank) -> None:
    """Each by Gaussians of the other four fifths, so that thresholds hold for new images."""
    learned = images(1)
    profile = leave(0, learned, None)
    assert profile is not None
    every, expected = learned.labels.argsort(stable=True), []
    for fold in range(5):
        judged = torch.arange(len(every)) % 5 == fold
        others = gaussians_of(net, learned, every[~judged])
        expected.append(scores(net, bank, 0, learned.batch(every[judged])[0], others))
    check(profile, [torch.cat(parts) for parts in zip(*expected)])


@pytest.mark.parametrize(("seen", "honest"), [(3.0, True), (3.1, False)])
def test_a_mask_that_saw_its_images_often_gets_half_the_say(
    net: FrozenNet, bank: Bank, seen: float, honest: bool
) -> None:
    """What it makes of them is too good; of images that it rarely saw it is as good as of new ones."""
    fitter = ProfileFitter(net, bank.packed(0)[:, None], {})
    weights = []
    for times in (seen, math.inf):
        (found,) = fitter.fit([ProfileData(images(1), None, CLASSES, seen=times)])
        assert found is not None
        assert found.weights is not None
        weights.append(found.weights)
    assert torch.equal(weights[0], weights[1]) != honest


def test_images_without_a_spread_that_can_be_computed_with_leave_nothing(leave: Leave) -> None:
    """A lone image, and numbers that are not finite: such a task is found by its mask, and learning goes on."""
    two = torch.arange(2)
    assert leave(0, Part(torch.ones(1, 8), two[:1]), None, 1) is None
    assert leave(0, Part(torch.full((2, 8), 3e38), two), None, 2) is None
    assert leave(0, images(1, 9), None, CLASSES) is not None


@pytest.mark.parametrize("count", [5, 40, 41, 59, 60, 120])
def test_images_are_taken_evenly_from_every_class(net: FrozenNet, bank: Bank, count: int) -> None:
    labels = torch.cat([torch.zeros(count, dtype=torch.int64), torch.ones(2 * count, dtype=torch.int64)])
    part = Part(torch.zeros(3 * count, 1), labels[torch.randperm(3 * count)])
    positions = ProfileFitter(net, bank.packed(0)[:, None], {})._evenly(part, 60)
    assert len(positions) <= 60
    assert len(positions) > 30 or len(positions) == 3 * count
    taken = part.labels[positions]
    assert torch.equal(taken, taken.sort().values)
    assert abs(int((taken == 1).sum()) - 2 * int((taken == 0).sum())) <= 2


def test_a_deviation_can_always_be_divided_by() -> None:
    assert _spread(torch.tensor([1.0, 3.0])).tolist() == [2.0, 1.0]
    mean, deviation = _spread(torch.full((5,), 1000.0)).tolist()
    assert mean == 1000
    assert deviation == pytest.approx(1e-3, rel=0.01)
    assert _spread(torch.zeros(5))[1] > 0
