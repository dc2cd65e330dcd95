"""Tasks are found by what they left, forgetting leaves no sign, and images of no task are refused."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import supsup
from supsup import Inference, Recipe, SupSup, SupSupError, data, nets
from supsup.data import Task
from supsup.file.modelfile import ModelFile
from supsup.inference.profiles.features import extract_features
from supsup.inference.profiles.profile import GaussianIndex
from supsup.model.state import state_of

WAYS = (
    Inference("auto"),
    Inference("features"),
    Inference("exhaustive", objective="energy"),
    Inference("exhaustive", objective="mixture"),
)


def digits(tasks: int = 5) -> list[Task]:
    return list(data.split(data.digits(), 2, tasks=tasks))


def learned(tasks: list[Task], **settings: object) -> SupSup:
    net = nets.FullyConnected((784, 100, 60, 20))
    model = SupSup(net, recipe=Recipe(steps=40), device="cpu", **settings)  # type: ignore[arg-type]
    for task in tasks:
        model.learn(task)
    return model


@pytest.fixture(scope="module")
def model() -> SupSup:
    return learned(digits())


def mixed(tasks: list[Task], each: int = 40) -> tuple[Tensor, list[str]]:
    return torch.cat([task.test.tensors()[0][:each] for task in tasks]), [t.name for t in tasks for _ in range(each)]


def share(found: list[str], right: list[str]) -> float:
    return sum(one == other for one, other in zip(found, right, strict=True)) / len(right)


def test_split_digits_are_found_by_default(model: SupSup) -> None:
    x, names = mixed(digits())
    answer = model.predict(x)
    assert answer.method_used == "features and masks"
    assert share(answer.tasks, names) >= 0.88
    assert model.predict(x[:1], task=names[0]).method_used == "given"
    assert model.predict(x[:1], among=names[:1]).method_used == "the only task"
    for task in digits():
        assert model.infer_task(task.test.tensors()[0][:16], per="batch") == task.name


def test_features_and_masks_decide_together_as_by_hand(model: SupSup) -> None:
    """Only tasks near the best by features are tried; the others count as if their masks knew nothing of an image."""
    x, _ = mixed(digits(), 20)
    profiles = [task.profile for task in state_of(model).tasks if task.profile is not None]
    seen = extract_features(state_of(model).net, x)
    gallery = GaussianIndex([profile.gaussians for profile in profiles], model.device)
    weights = [profile.weights for profile in profiles if profile.weights is not None]
    scales = [profile.gaussians.separation / common for profile, common in zip(profiles, gallery.separations)]
    weight = sum(float(each[0]) * scale for each, scale in zip(weights, scales)) / len(weights)
    by_class = weight * gallery.class_scores(seen)
    by_features = gallery.task_scores(by_class)
    near = by_features >= by_features.amax(1, keepdim=True) - 6
    doubt, expected = near.sum(1) > 1, by_features - 0.1 * 6
    assert 5 < doubt.sum() < len(x) - 5
    for index, (profile, own) in enumerate(zip(profiles, weights)):
        outputs = state_of(model).net.run(x, state_of(model).net.masked(state_of(model).bank.mask(index)))[:, :2]
        mean, deviation = profile.spreads[1].tolist()
        energy = ((outputs.logsumexp(-1) - mean) / deviation).clamp(-6, 0)
        both = (by_class[:, gallery.columns[index]] + float(own[-1]) * outputs.log_softmax(-1)).logsumexp(-1)
        expected[:, index] = torch.where(near[:, index] & doubt, both + 0.1 * energy, expected[:, index])
    found = model.predict(x)
    assert found.tasks == [model.tasks[index] for index in expected.argmax(1).tolist()]
    torch.testing.assert_close(found.task_confidence, expected.softmax(1).amax(1), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("how", WAYS)
def test_a_task_forgotten_was_never_learned(how: Inference) -> None:
    tasks = digits(4)
    one, other = learned(tasks), learned([tasks[0], *tasks[2:]])
    one.forget(tasks[1].name)
    x, _ = mixed(tasks)
    here, there = one.predict(x, inference=how, unknown=True), other.predict(x, inference=how, unknown=True)
    assert here.tasks == there.tasks
    assert torch.equal(here.probabilities, there.probabilities)
    assert torch.equal(here.task_confidence, there.task_confidence)


@pytest.mark.parametrize("how", WAYS)
def test_a_model_from_a_file_answers_the_same_to_the_bit(model: SupSup, how: Inference, tmp_path: Path) -> None:
    model.save(tmp_path / "m.supsup")
    again = supsup.load(tmp_path / "m.supsup", device="cpu")
    x, _ = mixed(digits())
    here, there = model.predict(x, inference=how), again.predict(x, inference=how)
    assert here.tasks == there.tasks
    assert torch.equal(here.task_confidence, there.task_confidence)


def test_every_method_takes_its_own_settings_alone() -> None:
    for wrong in ({"objective": "G"}, {"layers": "first"}, {"coordinates": 5}):
        with pytest.raises(SupSupError):
            Inference("auto", **wrong)
    with pytest.raises(SupSupError, match="exhaustive"):
        Inference("one-shot", objective="energy")
    auto = Inference("auto")
    assert auto.replaced(layers="first") == Inference("one-shot", layers="first")
    assert auto.replaced(objective="energy") == Inference("exhaustive", objective="energy")
    assert Inference("binary", objective="M").replaced(method="auto") == auto
    assert Inference("binary", objective="M").replaced(method="one-shot") == Inference(objective="M")
    assert Inference("one-shot", layers="first", coordinates=9).replaced(method="binary").layers == "first"
    assert Inference("one-shot", coordinates=9).replaced(method="binary") == Inference("binary")
    assert Inference("exhaustive", objective="energy").replaced(method="one-shot") == Inference()
    with pytest.raises(SupSupError, match="coordinates goes with"):
        Inference("one-shot").replaced(method="binary", coordinates=9)


def test_energy_is_of_a_tasks_own_classes_and_calibrated(model: SupSup) -> None:
    x, _ = mixed(digits(), 5)
    how, scores = WAYS[2], []
    for index, task in enumerate(state_of(model).tasks):
        outputs = state_of(model).switched.run(state_of(model).bank, index, x)
        assert task.profile is not None
        mean, deviation = task.profile.spreads[1].tolist()
        scores.append((outputs[:, :2].logsumexp(-1) - mean) / deviation)
    expected = [model.tasks[i] for i in torch.stack(scores, 1).argmax(1).tolist()]
    assert model.predict(x, inference=how).tasks == expected


def test_images_of_no_task_are_refused_and_few_others(model: SupSup) -> None:
    x, _ = mixed(digits(), 150)
    answer = model.predict(x, unknown=True)
    assert answer.unknown is not None
    assert answer.unknown.float().mean() < 0.2
    noise = model.predict(torch.randn(50, *x.shape[1:]), unknown=True)
    assert noise.unknown is not None
    assert noise.unknown.all()
    assert noise.tasks == [None] * 50
    assert noise.names == [None] * 50
    assert (noise.labels == -1).all()
    stricter, given = model.predict(x, unknown=0.5), model.predict(x, task=model.tasks[0], unknown=True)
    assert stricter.unknown is not None
    assert stricter.unknown.sum() > answer.unknown.sum()
    assert given.unknown is not None
    assert given.unknown[150:].float().mean() > given.unknown[:150].float().mean()
    for wrong in (1.0, -0.1, float("nan"), "yes"):
        with pytest.raises(SupSupError):
            model.predict(x, unknown=wrong)  # type: ignore[arg-type]


def test_tasks_without_statistics_are_found_by_their_masks() -> None:
    tasks = digits(2)
    plain = learned(tasks, inference=Inference("one-shot"))
    assert all(task.profile is None for task in state_of(plain).tasks)
    x, _ = mixed(tasks)
    plain.inference = Inference("auto")
    answer = plain.predict(x)
    assert answer.method_used == "exhaustive"
    assert answer.tasks == plain.predict(x, inference=Inference("exhaustive")).tasks
    with pytest.raises(SupSupError, match="no profile"):
        plain.predict(x, inference=Inference("features"))
    with pytest.raises(SupSupError, match="no profile"):
        plain.predict(x, unknown=True)


def test_tasks_that_are_alike_are_warned_of_once() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(300, 12), torch.arange(300) % 2
    model = SupSup(nn.Linear(12, 4), recipe=Recipe(steps=3), device="cpu")
    for name in ("a", "b", "c"):
        model.learn((x + 0.01 * torch.randn_like(x), y), task=name)
    with pytest.warns(UserWarning, match="tasks are similar") as caught:
        model.predict(x)
    assert caught[0].filename == __file__, "it points to the caller"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(x)
        model.learn((x, y), task="d")
        model.predict(x)


def test_a_few_images_are_no_reason_to_warn() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 12), torch.arange(40) % 2
    model = SupSup(nn.Linear(12, 4), recipe=Recipe(steps=3), device="cpu")
    for name in ("a", "b", "c"):
        model.learn((x, y), task=name)
    assert float(model.predict(x).task_confidence.mean()) < 0.6, "they are not told apart"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(x)


def test_a_file_with_statistics_that_do_not_fit_is_refused(model: SupSup, tmp_path: Path) -> None:
    state = state_of(model).to(torch.device("cpu"))
    profile = state.tasks.at(0).profile
    assert profile is not None
    right = profile.rest[0].clone()
    profile.rest[0] = torch.nan
    try:
        state.save(tmp_path / "m.supsup")
    finally:
        profile.rest[0] = right
    with ModelFile(tmp_path / "m.supsup") as file:
        assert file.names
    with pytest.raises(SupSupError, match="its profile"):
        supsup.load(tmp_path / "m.supsup", device="cpu")
