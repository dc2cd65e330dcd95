"""Gaussians of classes against torch's own distributions, and what of them survives in whole numbers."""

import math
from collections.abc import Sequence

import pytest
import torch

from supsup.inference.profiles import fit
from supsup.inference.profiles.fit import fit_gaussians, orthonormal_by_factors
from supsup.inference.profiles.profile import GaussianIndex, Gaussians, smoothing, whole_numbers

CPU = torch.device("cpu")


def covariance(gaussians: Gaussians) -> torch.Tensor:
    features, v, rest = gaussians.means.shape[1], gaussians.directions.double(), float(gaussians.rest)
    found = rest * torch.eye(features).double() + v.T @ torch.diag(gaussians.variances.double() - rest) @ v
    units = gaussians.units.double()
    return found * units * units[:, None]


def plain(means: torch.Tensor, spread: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """log p(x | class) [n, classes] with a full covariance matrix, all but the constant."""
    normals = [torch.distributions.MultivariateNormal(mean.double(), spread) for mean in means]
    constant = x.shape[1] / 2 * math.log(2 * math.pi)
    return torch.stack([normal.log_prob(x.double()) for normal in normals], 1) + constant


def some(classes: int, images: int = 400, features: int = 20, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    labels = torch.arange(images) % classes
    mixed = torch.linalg.qr(torch.randn(features, features)).Q * torch.linspace(1, 4, features)
    return torch.randn(images, features) * torch.linspace(3, 0.3, features) @ mixed + labels[:, None], labels


@pytest.mark.parametrize("classes", [1, 2, 5, 30])
def test_likelihoods_are_those_of_normal_distributions(classes: int) -> None:
    task, x = fit_gaussians(*some(classes), classes, 8), torch.randn(7, 20)
    expected = plain(task.means, covariance(task), x).logsumexp(1) - math.log(classes)
    torch.testing.assert_close(task.likelihoods(x).double(), expected, rtol=1e-3, atol=1e-2)


def smoothed(tasks: Sequence[Gaussians], known: bool) -> torch.Tensor:
    """The mean of the covariances, by the formula of Ledoit and Wolf with ten times their share, or with 3 %.

    In units in which the mean variance beside the directions is 1.
    """
    units = torch.stack([float(task.rest) * task.units.double().square() for task in tasks]).mean(0).sqrt()
    spread = torch.stack([covariance(task) for task in tasks]).mean(0) / units / units[:, None]
    mean = float(spread.diagonal().mean())
    share = 0.03
    if known:
        scales = [(task.units / units).square().mean() for task in tasks]
        noise = sum(float(task.noise * scale**2) for task, scale in zip(tasks, scales)) / len(tasks) ** 2
        shrinkage = noise / float((spread - mean * torch.eye(len(spread))).square().sum())
        share = max(0.01, 10 * shrinkage / (1 - shrinkage))
    return (spread + share * mean * torch.eye(len(spread))) * units * units[:, None]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("directions", [8, 2])
@pytest.mark.parametrize("classes", [(2, 2, 2), (1, 3, 30)])
def test_tasks_are_compared_by_the_mean_of_their_covariances(
    classes: tuple[int, ...], directions: int, known: bool
) -> None:
    """Whether a matrix is made of them or their few directions stand for it."""
    tasks = [fit_gaussians(*some(count, seed=seed), count, directions) for seed, count in enumerate(classes)]
    if not known:
        tasks = [task._replace(noise=torch.tensor(math.nan)) for task in tasks]
    x = torch.randn(7, 20)
    spread = smoothed(tasks, known)
    gallery = GaussianIndex(tasks, CPU)
    found = gallery.class_scores(x, absolute=True)
    for task, columns in zip(tasks, gallery.columns):
        expected = plain(task.means, spread, x) + 0.5 * torch.logdet(spread)
        torch.testing.assert_close(found[:, columns].double(), expected, rtol=1e-3, atol=1e-2)
    relative = gallery.class_scores(x)
    torch.testing.assert_close(relative - relative[:, :1], found - found[:, :1], rtol=1e-3, atol=1e-2)
    each = [found[:, columns].logsumexp(1) - math.log(columns.stop - columns.start) for columns in gallery.columns]
    torch.testing.assert_close(gallery.task_scores(found), torch.stack(each, 1))


def test_directions_are_those_in_which_images_vary_most() -> None:
    x, labels = some(1, images=2000)
    found = fit_gaussians(x, labels, 1, 8)
    deviations = x.std(0) / x.var(0).mean().sqrt()
    torch.testing.assert_close(found.units, deviations, rtol=0.03, atol=0)
    values, vectors = torch.linalg.eigh(torch.cov((x / found.units).T).double())
    torch.testing.assert_close(found.variances[-4:].double(), values[-4:], rtol=2e-2, atol=1e-4)
    leading = (found.directions[-1].double() @ vectors[:, -1]).abs()
    assert leading > 0.99


def test_tasks_added_later_are_as_if_all_had_been_there_to_the_bit() -> None:
    tasks = [fit_gaussians(*some(classes, seed=classes), classes, 8) for classes in (1, 2, 2, 30)]
    x = torch.randn(5, 20)
    together = GaussianIndex(tasks, CPU)
    grown = GaussianIndex(tasks[3:], CPU, GaussianIndex(tasks[1:3], CPU, GaussianIndex(tasks[:1], CPU)))
    assert torch.equal(grown.class_scores(x), together.class_scores(x))


@pytest.mark.parametrize("images", [1, 2, 3, 9])
def test_few_images_are_enough(images: int) -> None:
    x, labels = some(1, images=images)
    for seen in (x, torch.zeros(images, 4)):
        task = fit_gaussians(seen, labels, 1, 8)
        assert task.likelihoods(seen).isfinite().all()
        assert GaussianIndex([task, task], CPU).class_scores(seen, absolute=True).isfinite().all()


def test_whole_numbers_lose_little() -> None:
    vectors = torch.randn(5, 3, 40)
    numbers, scales = whole_numbers(vectors, torch.int8)
    assert numbers.dtype == torch.int8
    assert ((numbers * scales[..., None] - vectors).abs() <= 0.51 * scales[..., None]).all()


def test_several_tasks_at_once_are_each_alone() -> None:
    """As on a GPU."""
    each = [some(3, seed=seed) for seed in range(4)]
    together = fit_gaussians(torch.stack([x for x, _ in each]), torch.stack([y for _, y in each]), 3, 8)
    for (x, labels), *values in zip(each, *together):
        alone, one = fit_gaussians(x, labels, 3, 8), Gaussians(*values)
        torch.testing.assert_close(one.means, alone.means)
        torch.testing.assert_close(covariance(one), covariance(alone), rtol=1e-4, atol=1e-4)


def test_the_gpus_way_to_right_angles_spans_the_same() -> None:
    columns = torch.randn(3, 40, 6) * torch.logspace(0, -4, 6)
    columns[1, :, 3] = columns[1, :, 2]  # alike
    columns[2] = 0
    found = orthonormal_by_factors(columns)
    unit = torch.eye(6).expand(3, 6, 6)
    torch.testing.assert_close(found.mT @ found, unit, rtol=0, atol=1e-5)
    whole = torch.linalg.qr(columns[0]).Q
    torch.testing.assert_close(found[0] @ found[0].T, whole @ whole.T, rtol=0, atol=1e-3)
    back = found[1] @ (found[1].T @ columns[1])
    torch.testing.assert_close(back, columns[1], rtol=0, atol=1e-4)


def test_the_fewer_images_the_more_a_covariance_is_smoothed() -> None:
    """The noise is the expected squared error of the matrix: by hand, from products of rows around their means."""
    x, labels = some(1, images=200)
    task = fit_gaussians(x, labels, 1, 19)
    rows = (x - x.mean(0)) / task.units
    products = rows[:, :, None] * rows[:, None]
    error = (products - products.mean(0)).square().sum((1, 2)).mean() / len(x)
    torch.testing.assert_close(task.noise, error, rtol=0.02, atol=1e-3)
    shares = []
    for images in (20, 200, 2000):
        found = fit_gaussians(*some(1, images=images), 1, 19)
        matrix = covariance(found) / found.units / found.units[:, None]
        shares.append(
            float(smoothing(found.noise, matrix.square().sum().float(), matrix.diagonal().mean().float(), 20))
        )
    assert shares[0] > 2 * shares[1] > 4 * shares[2] >= 0.04


def test_there_are_four_images_for_each_direction() -> None:
    """From fewer, directions would be those of the noise."""
    for images, classes, expected in ((41, 1, 8), (33, 1, 8), (32, 1, 7), (13, 1, 3), (13, 2, 2), (4, 1, 0)):
        task = fit_gaussians(*some(classes, images=images), classes, 8)
        assert task.directions.shape == (expected, 20)
    assert len(fit_gaussians(*some(1, images=400, features=5), 1, 8).directions) == 4, "one direction is left over"


def test_no_direction_is_without_variance() -> None:
    """A thousandth of the mean at least, else an image a little off would be of no task at all."""
    x = torch.zeros(400, 20)
    x[:, 0] = torch.randn(400, generator=torch.Generator().manual_seed(0))
    task = fit_gaussians(x, torch.zeros(400, dtype=torch.int64), 1, 8)
    assert task.units[1:].tolist() == [1 / 16] * 19
    rows = (x - x.mean(0)) / task.units
    least = 1e-3 * rows.square().mean()
    torch.testing.assert_close(task.rest, least)
    torch.testing.assert_close(task.variances[:-1], least.expand(7))
    torch.testing.assert_close(task.variances[-1], rows[:, 0].var())


def test_on_a_cpu_right_angles_come_from_reflections(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a task leaves is kept in files, and made again to the bit where it is learned again."""
    monkeypatch.setattr(fit, "orthonormal_by_factors", lambda columns: pytest.fail("the GPU's way"))
    assert len(fit_gaussians(*some(1), 1, 8).directions) == 8


def test_tasks_of_one_covariance_separate_their_classes_as_much_together_as_alone() -> None:
    """Where they differ, the weights that each was given must be scaled, or tasks are surer than they are right."""
    task = fit_gaussians(*some(5), 5, 8)._replace(noise=torch.tensor(0.0))
    for separation in GaussianIndex([task, task._replace(means=task.means + 3)], CPU).separations:
        assert separation == pytest.approx(task.separation, rel=1e-3)
    wider = task._replace(variances=4 * task.variances, rest=4 * task.rest)
    assert GaussianIndex([task, wider], CPU).separations[0] == pytest.approx(task.separation / 2.5, rel=1e-3)
    assert wider.separation == pytest.approx(task.separation / 4, rel=1e-3)
