"""Vectors are found by Gaussians and shares, weighted by held-back vectors; given answers depend on their own task."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

import supsup
from supsup import Inference, Recipe, SupSup, data, nets
from supsup.data import Part, Task
from supsup.inference.profiles import TaskProfile, vectors
from supsup.inference.profiles.fit import fit_gaussians, fit_weights
from supsup.inference.profiles.profile import mean_weights
from supsup.model.state import state_of

WORDS, CLASSES, TASKS = 600, 4, 5


def sentences(task: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Counts of words as hashed text has them: signed, rooted, of length 1. Most numbers are zero."""
    topics = torch.Generator().manual_seed(task)
    weights = torch.rand(CLASSES, WORDS, generator=topics) ** 8 + 0.3 * torch.rand(WORDS, generator=topics) ** 8
    signs = torch.randint(0, 2, (WORDS,), generator=torch.Generator().manual_seed(99)) * 2 - 1
    drawn = torch.Generator().manual_seed(1000 * task + seed)
    labels = torch.arange(count) % CLASSES
    chosen = torch.multinomial(weights[labels], 12, replacement=True, generator=drawn)
    counts = torch.zeros(count, WORDS).scatter_add_(1, chosen, torch.ones(count, 12))
    return torch.nn.functional.normalize(counts.sqrt() * signs, dim=1), labels


@pytest.fixture(scope="module")
def model() -> SupSup:
    found = SupSup(nets.FullyConnected((WORDS, 100, 50, CLASSES)), device="cpu")
    for task in range(TASKS):
        found.learn(sentences(task, 400, 0), task=f"topic {task}", show_progress=False)
    return found


def fresh(task: int, count: int = 200) -> tuple[Tensor, Tensor]:
    return sentences(task, count, 1)


def test_the_task_of_sparse_vectors_is_found_better_than_by_nearest_means(model: SupSup) -> None:
    """The features of a random layer, which tasks were found by before, lose most of what words say."""
    x, y = zip(*(fresh(task) for task in range(TASKS)))
    truth = torch.arange(TASKS).repeat_interleave(200)
    answer = model.predict(torch.cat(x))
    found = torch.tensor([int(name[-1]) for name in answer.tasks])
    right = float((found == truth).float().mean())
    labels = float(((found == truth) & (answer.labels == torch.cat(y))).float().mean())
    means = torch.cat([torch.stack([a[b == c].mean(0) for c in range(CLASSES)]) for a, b in learned()])
    nearest = torch.cdist(torch.cat(x), means).argmin(1)
    assert answer.method_used == "features"
    assert right >= float((nearest // CLASSES == truth).float().mean())
    assert labels >= float((nearest == CLASSES * truth + torch.cat(y)).float().mean())
    assert right > 0.9


def learned() -> list[tuple[Tensor, Tensor]]:
    return [sentences(task, 400, 0) for task in range(TASKS)]


def test_confidence_in_tasks_is_how_often_they_are_right(model: SupSup) -> None:
    x = torch.cat([fresh(task)[0] for task in range(TASKS)])
    answer = model.predict(x)
    right = torch.tensor([int(name[-1]) for name in answer.tasks]) == torch.arange(TASKS).repeat_interleave(200)
    assert float(answer.task_confidence.max()) <= 1
    assert abs(float(answer.task_confidence.mean() - right.float().mean())) < 0.05


def test_about_as_many_known_vectors_are_rejected_as_was_asked_for(model: SupSup) -> None:
    """A threshold for three times the share, or one from vectors that were trained on, would fail."""
    rejected = [model.predict(fresh(task, 800)[0], f"topic {task}", unknown=True).unknown for task in range(TASKS)]
    share = float(torch.cat([each for each in rejected if each is not None]).float().mean())
    assert 0.02 < share < 0.09
    strange = model.predict(fresh(77, 400)[0], unknown=True).unknown
    assert strange is not None
    assert float(strange.float().mean()) > 2 * share


def test_a_given_answer_does_not_depend_on_other_tasks(model: SupSup) -> None:
    """What the task's profile adds to its mask is its own; else learning would change old answers."""
    alone = SupSup(nets.FullyConnected((WORDS, 100, 50, CLASSES)), device="cpu")
    alone.learn(learned()[0], task="topic 0", show_progress=False)
    x = fresh(0)[0]
    one, other = alone.predict(x, "topic 0"), model.predict(x, "topic 0")
    assert torch.equal(one.probabilities, other.probabilities)


def test_after_forgetting_all_is_as_if_the_task_had_never_been_learned() -> None:
    made = []
    for order in ((0, 1, 2), (0, 2)):
        found = SupSup(nets.FullyConnected((WORDS, 60, CLASSES)), recipe=Recipe(steps=30), device="cpu")
        for task in order:
            found.learn(data.task(learned()[task], f"topic {task}", normalise=False), show_progress=False)
        made.append(found)
    x = torch.cat([fresh(task)[0] for task in range(3)])
    made[0].predict(x)
    made[0].forget("topic 1")
    for one, other in zip(*(m.task_scores(x) for m in made)):
        assert torch.equal(one, other)
    first, second = (m.predict(x) for m in made)
    assert first.tasks == second.tasks
    assert torch.equal(first.probabilities, second.probabilities)


def test_a_file_keeps_what_vectors_are_found_by(model: SupSup, tmp_path: object) -> None:
    path = f"{tmp_path}/vectors.supsup"
    model.save(path)
    again, x = supsup.load(path, device="cpu"), fresh(2)[0]
    assert torch.equal(again.task_scores(x), model.task_scores(x))
    assert torch.equal(again.predict(x).probabilities, model.predict(x).probabilities)


def test_profiles_of_vectors_take_less_than_twice_their_mask() -> None:
    """15 classes in 2,048 numbers, the size of a text model."""
    net = nets.FullyConnected((2048, 300, 100, 15))
    found = SupSup(net, recipe=Recipe(steps=1), device="cpu")
    x = torch.randn(300, 2048, generator=torch.Generator().manual_seed(0))
    found.learn((x, torch.arange(300) % 15), task="t", show_progress=False)
    profile = state_of(found).tasks["t"].profile
    assert profile is not None
    assert profile.of_vectors
    bits = sum(parameter.numel() for parameter in net.parameters())
    assert sum(tensor.nbytes for tensor in profile.tensors().values()) < 2 * bits / 8


def test_directions_are_right_though_they_are_rounded() -> None:
    """A table with columns that never vary: variances differ by factors of thousands, and rounding would decide."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(90) % 3
    own = torch.randn(90, 4, generator=generator) @ torch.tensor(
        [[1.0, 0.9, 0.8, 0.7], [0, 0.3, 0.2, 0.1], [0, 0, 0.1, 0.1], [0, 0, 0, 0.05]]
    )
    x = torch.nn.functional.pad(own + 0.25 * torch.randn(3, 4, generator=generator)[labels], (0, 60))
    exact = fit_gaussians(x, labels, 3, 25, in_units=False)
    means = vectors.part_means(x, labels, 3)
    kept = TaskProfile.of(exact, torch.tensor([[0.0, 1.0]] * 3), torch.linspace(-3, 3, 9), torch.ones(5), means)
    agreement = kept.gaussians.class_scores(x).argmax(1) == exact.class_scores(x).argmax(1)
    assert float(agreement.float().mean()) > 0.97


def test_part_means_survive_compression() -> None:
    means = torch.rand(5, 40, generator=torch.Generator().manual_seed(0)) ** 6
    again = vectors.expanded(*vectors.compressed(means))
    assert float((again.sqrt() - means.sqrt()).abs().max()) <= 0.5 / 255 * float(means.amax().sqrt()) + 1e-6
    assert torch.equal(vectors.expanded(*vectors.compressed(torch.zeros(2, 4))), torch.zeros(2, 4))


def test_shares_are_those_of_naive_bayes() -> None:
    x, labels = sentences(0, 100, 0)
    shares = vectors.log_shares(vectors.part_means(x, labels, CLASSES))
    assert torch.allclose(shares.exp().sum(1), torch.ones(CLASSES), atol=1e-4)
    parts = torch.cat([x.clamp(min=0), (-x).clamp(min=0)], 1)
    by_hand = (parts[:, None] * shares).sum(-1) / x.abs().sum(1, keepdim=True)
    torch.testing.assert_close(vectors.share_scores(x, shares), by_hand, rtol=1e-4, atol=1e-4)
    twice = vectors.share_scores(2 * x, shares)
    torch.testing.assert_close(twice, by_hand, rtol=1e-4, atol=1e-4)  # the length does not count


@pytest.mark.parametrize("seed", range(5))
def test_weights_make_labels_likeliest(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (80,), generator=generator)
    useful = torch.nn.functional.one_hot(labels, 3) + 1.2 * torch.randn(80, 3, generator=generator)
    misleading = -useful + torch.randn(80, 3, generator=generator)
    scores = torch.stack([100 * useful, misleading, torch.randn(80, 3, generator=generator)], -1)

    def loss(weights: Sequence[float]) -> float:
        logits = scores.double() @ torch.tensor(weights, dtype=torch.float64)
        smooth = 2 * (1 / 82)
        hard = torch.nn.functional.cross_entropy(logits, labels)
        others = (torch.logsumexp(logits, 1)[:, None] - logits).sum(1) - torch.nn.functional.cross_entropy(
            logits, labels, reduction="none"
        )
        return float((1 - smooth / 2) * hard + (1 / 82 / 2) * others.mean())

    found = fit_weights(scores, labels, 1.0).tolist()
    assert min(found) >= 0
    best = loss(found)
    for index in range(3):
        for factor in (0.9, 1.1):
            moved = list(found)
            moved[index] *= factor
            assert loss(moved) >= best - 1e-9
        moved = list(found)
        moved[index] += 1e-3 / float(scores[..., index].std())
        assert loss(moved) >= best - 1e-9


def test_weights_of_what_cannot_be_told_apart_are_zero() -> None:
    assert fit_weights(torch.zeros(10, 3, 2), torch.arange(10) % 3, 1.0).tolist() == [0, 0]
    assert fit_weights(torch.randn(10, 1, 2), torch.zeros(10, dtype=torch.int64), 1.0).tolist() == [0, 0]


def test_mean_weights_do_not_depend_on_the_order() -> None:
    each = [torch.rand(5, generator=torch.Generator().manual_seed(seed)) for seed in range(50)]
    scales = torch.rand(50, generator=torch.Generator().manual_seed(50)).tolist()
    assert mean_weights(each, scales) == mean_weights(each[::-1], scales[::-1])
    assert mean_weights([*each, torch.zeros(5)], [*scales, 7.0]) == mean_weights(each, scales), "tasks of one class"
    assert all(math.isfinite(value) and value > 0 for value in mean_weights([], []))


def test_a_task_of_one_class_is_found_beside_others() -> None:
    found = SupSup(nets.FullyConnected((WORDS, 60, CLASSES)), recipe=Recipe(steps=20), device="cpu")
    x, _ = sentences(0, 400, 0)
    part = Part(x, torch.zeros(400, dtype=torch.int64))
    found.learn(Task("one", part, part, 1), show_progress=False)
    assert found.predict(x, "one").labels.tolist() == [0] * 400
    found.learn(data.task(sentences(1, 400, 0), "four", normalise=False), show_progress=False)
    assert found.infer_task(fresh(1)[0]).count("four") > 150
    assert found.infer_task(fresh(0)[0]).count("one") > 150


def test_other_methods_take_vectors_as_before(model: SupSup) -> None:
    x = fresh(0, 8)[0]
    for how in (Inference("one-shot"), Inference("exhaustive"), Inference("exhaustive", objective="energy")):
        assert len(model.predict(x, inference=how).tasks) == 8


def test_a_sparse_table_keeps_its_zeros() -> None:
    """Centred, words that a sentence lacks would count; scaled one by one, rare words would outweigh all others."""
    x, y = sentences(0, 200, 0)
    made: Task = data.task((x, y), "sparse")
    inputs, _ = made.train.tensors()
    assert torch.equal(inputs == 0, x == 0)
    assert float((inputs.square().mean() - 1).abs()) < 0.01
    dense = data.task((torch.randn(50, 6) * 3 + 5, torch.arange(50) % 2), "dense").train.tensors()[0]
    assert float(dense.mean().abs()) < 1e-4
    mixed = np.concatenate([x.numpy(), np.random.default_rng(0).normal(40, 12, (200, 1)).astype(np.float32)], 1)
    both = data.task((mixed, y), "mixed").train.tensors()[0]
    assert float(both[:, -1].mean().abs()) < 1e-4, "a full column of a sparse table is centred"
    assert torch.equal(both[:, :-1] == 0, x == 0)


def test_tables_of_different_units_are_told_apart() -> None:
    """Small numbers look like the middle of a table of large ones, unless densities are compared in the same units."""
    generator = torch.Generator().manual_seed(0)
    small = torch.rand(300, 20, generator=generator)
    large = torch.rand(300, 20, generator=generator) * 200 - 100
    found = SupSup(nets.FullyConnected((20, 60, 30, 4)), recipe=Recipe(steps=20), device="cpu")
    labels = torch.arange(300) % 2
    for name, x in (("small", small + 0.2 * labels[:, None]), ("large", large + 40 * labels[:, None])):
        found.learn((x, labels), task=name, normalise="own", show_progress=False)
    assert found.infer_task(torch.rand(100, 20, generator=generator)).count("small") == 100
    assert found.infer_task(torch.rand(100, 20, generator=generator) * 200 - 100).count("large") == 100
