"""A trace from a file is what a task left, or it is refused."""

from dataclasses import replace

import pytest
import torch

from supsup import SupSupError
from supsup.inference.profiles import TaskProfile
from supsup.inference.profiles.fit import fit_gaussians
from supsup.inference.profiles.profile import SCORES, SHARES, familiarity


def made() -> TaskProfile:
    torch.manual_seed(0)
    gaussians = fit_gaussians(torch.randn(100, 12), torch.arange(100) % 3, 3, 7)
    spreads = torch.tensor([[0.0, 1.0], [2.0, 3.0], [1.0, 1.0], [0.0, 2.0]])
    familiar = torch.linspace(-3, 3, len(SHARES))
    return TaskProfile.of(gaussians, spreads, familiar, torch.rand(5))


def test_what_was_left_is_read_again() -> None:
    profile = made()
    again = TaskProfile.from_tensors(profile.tensors(), 3)
    for one, other in zip(profile.gaussians, again.gaussians):
        assert torch.equal(one, other)
    assert again.spread["energy"].standard(torch.tensor(8.0)) == 2


def test_an_image_is_as_familiar_as_its_lowest_score_says() -> None:
    """What looks like the task's images, but like none of its classes more than another, is strange."""
    spread = made().spread
    usual = {"likelihood": torch.zeros(1), "energy": torch.full((1,), 2.0), "discriminant": torch.zeros(1)}
    strange = usual | {"discriminant": torch.full((1,), -20.0)}
    assert float(familiarity(strange, spread)) == pytest.approx(-10, abs=1e-3)
    assert float(familiarity(usual, spread)) > -2


def test_profiles_of_earlier_versions_keep_their_two_scores() -> None:
    """Their thresholds are of these two alone."""
    earlier = TaskProfile.from_tensors(made().tensors() | {"spreads": made().spreads[:3].clone()}, 3)
    scores = {"likelihood": torch.tensor([1.0]), "energy": torch.tensor([-4.0]), "discriminant": torch.tensor([-20.0])}
    expected = -torch.logaddexp(torch.tensor([-1.0]), torch.tensor([2.0]))
    torch.testing.assert_close(familiarity(scores, earlier.spread), expected)


def test_shares_between_those_kept_lie_between() -> None:
    profile = made()
    found = profile.threshold(torch.tensor([0.0, 0.01, 0.03, 0.05, 0.3, 0.99, 1.0, 7.0])).tolist()
    assert found[0] == -3
    assert found == sorted(found)
    assert found[-2:] == [3, 3]
    assert found[1] < found[2] < found[3]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rest", torch.tensor([torch.nan])),
        ("rest", torch.tensor([0.0])),
        ("rest", torch.tensor([torch.inf])),
        ("rest", torch.ones(2)),
        ("means", torch.zeros(2, 12, dtype=torch.int8)),
        ("means", torch.zeros(3, 12)),
        ("mean_scales", torch.full((3,), -1.0)),
        ("directions", torch.zeros(1, 12, 12, dtype=torch.int8)),
        ("directions", torch.zeros(2, 7, 12, dtype=torch.int8)),
        ("variances", torch.full((1, 7), 1e30)),
        ("spreads", torch.zeros(4, 2)),
        ("spreads", torch.ones(2, 2)),
        ("familiar", torch.linspace(3, -3, len(SHARES))),
        ("familiar", torch.full((len(SHARES),), torch.nan)),
        ("weights", torch.full((5,), -1.0)),
        ("weights", torch.ones(4)),
        ("noise", torch.tensor(torch.nan)),
    ],
)
def test_numbers_that_no_training_gives_are_refused(name: str, value: torch.Tensor) -> None:
    with pytest.raises(SupSupError, match="its profile"):
        TaskProfile.from_tensors(made().tensors() | {name: value}, 3)


def test_what_is_not_complete_is_refused() -> None:
    tensors = made().tensors()
    with pytest.raises(SupSupError, match="incomplete"):
        TaskProfile.from_tensors({name: tensors[name] for name in list(tensors)[1:]}, 3)
    with pytest.raises(SupSupError, match="incomplete"):
        TaskProfile.from_tensors(tensors | {"more": torch.zeros(1)}, 3)
    with pytest.raises(SupSupError, match="disagree"):
        TaskProfile.from_tensors(replace(made()).tensors(), 4)


def test_shares_are_those_that_files_have_numbers_for() -> None:
    """With others the numbers of a model that was saved before would be read as of other shares."""
    assert SHARES == (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    assert SCORES == ("likelihood", "energy", "mixture", "discriminant")
