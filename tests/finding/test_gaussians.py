"""Gaussians of classes against torch's own distributions, and what of them survives in whole numbers."""

import pytest
import torch

from supsup.finding.gaussians import Gallery, Gaussians, whole_numbers

CPU = torch.device("cpu")


def plain(gaussians: Gaussians, x: torch.Tensor) -> torch.Tensor:
    """log p(x | task) with full covariance matrices."""
    classes, features = gaussians.means.shape
    each = []
    for c in range(classes):
        group = c if len(gaussians.rest) > 1 else 0
        v = gaussians.directions[group].double()
        rest = float(gaussians.rest[group])
        covariance = rest * torch.eye(features).double()
        covariance += v.T @ torch.diag(gaussians.variances[group].double() - rest) @ v
        normal = torch.distributions.MultivariateNormal(gaussians.means[c].double(), covariance)
        each.append(normal.log_prob(x.double()))
    constant = features / 2 * torch.log(torch.tensor(2 * torch.pi).double())
    return torch.stack(each).logsumexp(0) - torch.tensor(float(classes)).double().log() + constant


def some(classes: int, images: int = 400, features: int = 20, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    labels = torch.arange(images) % classes
    return torch.randn(images, features) * torch.linspace(3, 0.3, features) + labels[:, None], labels


@pytest.mark.parametrize("classes", [1, 2, 5, 30])
def test_likelihoods_are_those_of_normal_distributions(classes: int) -> None:
    tasks = [Gaussians.of(*some(classes, seed=seed), classes) for seed in range(3)]
    x = torch.randn(7, 20)
    found = Gallery(tasks, CPU).likelihoods(x)
    for column, task in enumerate(tasks):
        torch.testing.assert_close(found[:, column].double(), plain(task, x), rtol=1e-3, atol=1e-2)


def test_directions_are_those_in_which_images_vary_most() -> None:
    x, labels = some(1, images=2000)
    found = Gaussians.of(x, labels, 1)
    values, vectors = torch.linalg.eigh(torch.cov(x.T).double())
    count = found.directions.shape[1]
    torch.testing.assert_close(found.variances[0].double(), values[-count:], rtol=1e-2, atol=1e-4)
    leading = (found.directions[0, -1].double() @ vectors[:, -1]).abs()
    assert leading > 0.99


def test_a_task_has_its_number_whatever_others_are_there() -> None:
    tasks = [Gaussians.of(*some(classes, seed=classes), classes) for classes in (1, 2, 2, 30)]
    x = torch.randn(5, 20)
    together = Gallery(tasks, CPU).likelihoods(x)
    for column, task in enumerate(tasks):
        torch.testing.assert_close(together[:, column], Gallery([task], CPU).likelihoods(x)[:, 0])


@pytest.mark.parametrize("images", [1, 2, 3, 9])
def test_few_images_are_enough(images: int) -> None:
    x, labels = some(1, images=images)
    assert Gallery([Gaussians.of(x, labels, 1)], CPU).likelihoods(x).isfinite().all()
    same = Gaussians.of(torch.zeros(images, 4), labels, 1)
    assert Gallery([same], CPU).likelihoods(torch.zeros(1, 4)).isfinite().all()


def test_whole_numbers_lose_little() -> None:
    vectors = torch.randn(5, 3, 40)
    numbers, scales = whole_numbers(vectors)
    assert numbers.dtype == torch.int8
    assert ((numbers * scales[..., None] - vectors).abs() <= 0.51 * scales[..., None]).all()
