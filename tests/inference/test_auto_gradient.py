"""Among many tasks, where features are close, the default also asks one gradient which mask stands out."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from supsup import Inference, Recipe, SupSup, data, nets
from supsup.data import Task
from supsup.inference import auto, objectives
from supsup.inference.auto import feature_scores
from supsup.inference.candidates import Candidates, TaskNetworks, TaskView
from supsup.inference.profiles.features import extract_features
from supsup.inference.profiles.profile import FeatureScores, GaussianIndex
from supsup.model.state import state_of

TASKS = 35
ASKED, NOT = "features, masks and a gradient", "features and masks"


def permutations() -> list[Task]:
    return list(data.permuted(data.digits(), TASKS, seed=0))


UNSURE = 0.02


def learned(tasks: list[Task], net: nn.Module | None = None) -> SupSup:
    net = nets.FullyConnected((784, 100, 60, 20)) if net is None else net
    model = SupSup(net, recipe=Recipe(steps=60), device="cpu")
    model.learn_many(tasks, show_progress=False)
    return model


@pytest.fixture(scope="module")
def model() -> SupSup:
    return learned(permutations())


def shown(each: int) -> tuple[Tensor, list[str]]:
    tasks = permutations()
    return torch.cat([task.test.tensors()[0][:each] for task in tasks]), [t.name for t in tasks for _ in range(each)]


def outstanding(model: SupSup, x: Tensor, members: list[int], objective: str) -> Tensor:
    """[n, members], image by image, by the gradient that torch takes at the superposition of the members."""
    first, rows = next(iter(state_of(model).net.shapes)), []
    masks = [state_of(model).bank.mask(index) for index in members]
    mean = {name: torch.stack([mask[name].float() for mask in masks]).mean(0) for name in masks[0]}
    for image in x:
        weights = state_of(model).net.masked(mean)
        weights[first] = weights[first].detach().requires_grad_()
        objectives.OBJECTIVES[objective](state_of(model).net.run(image[None], weights), 10).sum().backward()
        slope = weights[first].grad
        assert slope is not None
        query = -state_of(model).net.weights[first] * slope
        g = torch.stack([(query * mask[first]).sum() for mask in masks])
        rows.append((g - g.mean()) / g.std() - math.sqrt(2 * math.log(len(members))))
    return torch.stack(rows).clamp(min=0)


def unsure(share: float) -> Callable[[Candidates], FeatureScores]:
    """What features say, with a share of their certainty."""

    def scores(candidates: Candidates) -> FeatureScores:
        found = feature_scores(candidates)
        assert found is not None
        index, every = found.profile_index, share * found.all_classes[0]
        assert index.gaussians is not None
        columns = [index.place[each] for each in candidates.indices]
        return found._replace(all_classes=[every], of_tasks=index.gaussians.task_scores(every[:, 0])[:, columns])

    return scores


@pytest.mark.parametrize("count", [TASKS, TASKS - 1])
def test_features_masks_and_the_gradient_decide_together_as_by_hand(
    model: SupSup, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is tried by features alone here, so that masks beyond the best by features are the gradient's choice."""
    monkeypatch.setattr(auto, "_WEIGHTS", replace(auto._WEIGHTS, doubt=-1.0))
    monkeypatch.setattr(auto, "feature_scores", unsure(UNSURE))
    x, members = shown(2)[0], list(range(count))
    profiles = [task.profile for task in state_of(model).tasks if task.profile is not None]
    seen = extract_features(state_of(model).net, x)
    gallery = GaussianIndex([profile.gaussians for profile in profiles], model.device)
    weights = [profile.weights for profile in profiles if profile.weights is not None]
    scales = [profile.gaussians.separation / common for profile, common in zip(profiles, gallery.separations)]
    weight = sum(float(each[0]) * scale for each, scale in zip(weights, scales)) / len(weights)
    by_mask = sum(float(each[-1]) for each in weights) / len(weights)
    classes = UNSURE * weight * gallery.class_scores(seen)
    levels = gallery.task_scores(classes)[:, :count]
    best = levels.topk(2).values
    close = best[:, 0] - best[:, 1] < 3
    assert close.all()
    stands = outstanding(model, x, members, "G")
    expected = levels - 0.1 * 6
    for row, column in enumerate(stands.argmax(1).tolist()):
        if stands[row, column] > 0:
            outputs = state_of(model).net.run(
                x[row : row + 1], state_of(model).net.masked(state_of(model).bank.mask(column))
            )[:, :10]
            mean, deviation = profiles[column].spreads[1].tolist()
            energy = ((outputs.logsumexp(-1) - mean) / deviation).clamp(-6, 0)
            log_p = by_mask * outputs.log_softmax(-1)
            both = classes[row : row + 1, gallery.columns[column]] + log_p
            expected[row, column] = both.logsumexp(-1) + 0.1 * energy
    expected += 2 * stands
    found = model.predict(x, among=model.tasks[:count])
    assert found.method_used == ASKED
    assert found.tasks == [model.tasks[index] for index in expected.argmax(1).tolist()]
    assert found.tasks != [model.tasks[index] for index in levels.argmax(1).tolist()]


def test_where_features_know_nothing_the_gradient_finds_more(model: SupSup, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_chance(candidates: Candidates) -> FeatureScores | None:
        found = feature_scores(candidates)
        assert found is not None
        chance = torch.rand(found.of_tasks.shape, generator=torch.Generator().manual_seed(0))
        return found._replace(of_tasks=chance)

    monkeypatch.setattr(auto, "feature_scores", by_chance)
    x, names = shown(8)
    with_it = model.predict(x)
    monkeypatch.setattr(auto, "_FEW_TASKS", TASKS)
    without = model.predict(x)
    assert (with_it.method_used, without.method_used) == (ASKED, NOT)
    share = [sum(one == other for one, other in zip(found.tasks, names)) / len(names) for found in (with_it, without)]
    assert share[0] > share[1] + 0.2


def test_it_is_asked_only_among_many_tasks_and_where_features_are_close(
    model: SupSup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "feature_scores", unsure(0.2))
    x, names = shown(4)
    assert model.predict(x).method_used == ASKED
    assert model.predict(x, among=model.tasks[:32]).method_used == NOT
    assert model.predict(x, among=model.tasks[:33]).method_used == ASKED
    clear = [row for row in range(len(x)) if model.predict(x[row : row + 1]).method_used == NOT]
    assert 0 < len(clear) < len(x)
    assert model.predict(x[clear]).tasks == [names[row] for row in clear], "features that are not close are right"


def test_without_superfluous_outputs_entropy_is_asked_and_filters_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_FEW_TASKS", 9)
    monkeypatch.setattr(auto, "_CLOSE", torch.inf)
    tasks = permutations()[:10]
    x = torch.cat([task.test.tensors()[0][:6] for task in tasks])
    ten = learned(tasks, nets.FullyConnected((784, 30, 10)))
    state = state_of(ten)
    networks = TaskNetworks(state.net, state.bank, state.tasks)
    found = auto._outstanding(Candidates(networks, [TaskView(x[:, None])], Inference("auto")), torch.arange(len(x)))
    torch.testing.assert_close(found, outstanding(ten, x, list(range(10)), "H"), atol=2e-3, rtol=2e-3)
    assert found.max() > 0
    assert ten.predict(x).method_used == ASKED
    convolution = nn.Sequential(nn.Conv2d(1, 4, 5, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 20))
    assert learned(tasks, convolution).predict(x).method_used == NOT


def test_a_task_forgotten_was_never_learned_for_the_gradient_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_FEW_TASKS", 2)
    monkeypatch.setattr(auto, "_CLOSE", torch.inf)
    tasks = permutations()[:10]
    x = torch.cat([task.test.tensors()[0][:6] for task in tasks])
    forgot, never = learned(tasks), learned([*tasks[:2], *tasks[3:]])
    forgot.forget(tasks[2].name)
    here, there = forgot.predict(x), never.predict(x)
    assert here.method_used == ASKED
    assert here.tasks == there.tasks
    assert torch.equal(here.task_confidence, there.task_confidence)
