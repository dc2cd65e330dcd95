"""A model whose statistics an earlier version left (means as int8, directions for each class) answers and learns on."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import supsup
from supsup import Inference, Recipe, SupSup, SupSupError, data, nets
from supsup.data import Task
from supsup.file.modelfile import ModelFile
from supsup.inference.profiles import TaskProfile
from supsup.inference.profiles.features import extract_features
from supsup.inference.profiles.fit import fit_gaussians
from supsup.inference.profiles.profile import whole_numbers
from supsup.model.state import state_of

CLASSES = 2


def table(seed: int) -> Task:
    """Two classes about centres of the task's own."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(60) % CLASSES
    x = 3 * torch.randn(CLASSES, 12, generator=generator)[labels] + torch.randn(60, 12, generator=generator)
    return data.task((x, labels), f"table {seed}", normalise=False)


def shown(task: Task) -> Tensor:
    return task.test.tensors()[0]


def left_then(model: SupSup, task: Task, profile: TaskProfile, every: int) -> TaskProfile:
    """What a task left in those days, of every so manieth feature."""
    x, labels = task.train.tensors()
    numbers = extract_features(state_of(model).net, x)[:, ::every]
    found = [numbers[labels == label] for label in range(CLASSES)]
    each = [fit_gaussians(of_class, torch.zeros(len(of_class), dtype=torch.int64), 1, 5) for of_class in found]
    means, directions, variances, rest, *_ = (torch.stack(parts) for parts in zip(*each))
    numbers_of_means, mean_scales = whole_numbers(means[:, 0], torch.int8)
    numbers_of_directions, direction_scales = whole_numbers(directions, torch.int8)
    vectors = {
        "means": numbers_of_means,
        "mean_scales": mean_scales,
        "directions": numbers_of_directions,
        "direction_scales": direction_scales,
        "variances": variances,
        "rest": rest,
    }
    new = {"weights", "noise"}
    kept = {name: value for name, value in profile.tensors().items() if name not in new}
    return TaskProfile.from_tensors(kept | vectors, CLASSES)


def written(path: Path, tasks: int, every: int = 1) -> list[Task]:
    """A file of that time, and the tasks in it."""
    learned = [table(seed) for seed in range(tasks)]
    model = SupSup(nets.FullyConnected((12, 30, 20, 4)), recipe=Recipe("adam", 1e-2, steps=30), device="cpu")
    model.learn_many(learned)
    for row, task in zip(state_of(model).tasks, learned):
        assert row.profile is not None
        row.profile = left_then(model, task, row.profile, every)
        assert row.profile.means.dtype == torch.int8
        assert row.profile.directions.shape[0] == CLASSES
    model.save(path)
    return learned


@pytest.fixture(params=[1, 2], ids=["as many features", "other features"])
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[Task]]:
    path = tmp_path / "earlier.supsup"
    return path, written(path, 3, request.param)


def test_every_mask_is_tried_where_statistics_are_of_an_earlier_kind(earlier: tuple[Path, list[Task]]) -> None:
    path, tasks = earlier
    model = supsup.load(path, device="cpu")
    assert model.inference == Inference("auto")
    x = torch.cat([shown(task) for task in tasks])
    answer = model.predict(x)
    assert answer.method_used == "exhaustive"
    assert answer.tasks == model.predict(x, inference=Inference("exhaustive")).tasks
    assert model.infer_task(shown(tasks[1]), per="batch") in model.tasks
    assert set(model.infer_task(x, among=model.tasks[1:])) <= set(model.tasks[1:])
    assert model.predict(x, inference=Inference("exhaustive", objective="energy")).method_used == "exhaustive, energy"
    for task in tasks:
        assert (model.predict(shown(task), task=task.name).labels == task.test.labels).float().mean() > 0.8


def test_what_needs_statistics_of_now_says_so(earlier: tuple[Path, list[Task]]) -> None:
    path, tasks = earlier
    model, x = supsup.load(path, device="cpu"), shown(tasks[0])
    with pytest.raises(SupSupError, match=r"has no profile .*: learn it again while"):
        model.predict(x, inference=Inference("features"))
    for task in (None, tasks[0].name):
        with pytest.raises(SupSupError, match="has no profile"):
            model.predict(x, task=task, unknown=True)


def test_learning_more_leaves_what_was_there(earlier: tuple[Path, list[Task]]) -> None:
    path, tasks = earlier
    more = [table(7), table(8)]
    with ModelFile(path) as file:
        before = {record.name: record.extras for record in file.records()}
    with supsup.load(path, device="cpu", in_place=True) as model:
        masks = {name: model.mask(name) for name in model.tasks}
        for task in more:
            model.learn(task)
    again = supsup.load(path, device="cpu")
    assert again.tasks == [task.name for task in (*tasks, *more)]
    for name, mask in masks.items():
        assert all(torch.equal(bits, mask[weight]) for weight, bits in again.mask(name).items())
    with ModelFile(path) as file:
        assert {record.name: record.extras for record in file.records()}.items() >= before.items()
    assert again.predict(shown(more[0])).method_used == "exhaustive"
    new = again.predict(torch.cat([shown(task) for task in more]), among=[task.name for task in more])
    assert new.method_used == "features"
    with pytest.raises(SupSupError, match=f"task '{tasks[1].name}' has no profile"):
        again.predict(shown(more[0]), among=[more[0].name, tasks[1].name], inference=Inference("features"))
    right = [task.name for task in more for _ in task.test.labels]
    assert sum(map(str.__eq__, new.tasks, right)) > 0.9 * len(right)
    again.forget(tasks[0].name)
    assert again.predict(shown(tasks[1])).method_used == "exhaustive"


def test_learned_again_they_are_found_by_features(tmp_path: Path) -> None:
    tasks = written(tmp_path / "earlier.supsup", 2)
    model = supsup.load(tmp_path / "earlier.supsup", device="cpu")
    for task in tasks:
        model.forget(task.name)
        model.learn(task)
    assert model.predict(shown(tasks[0]), inference=Inference("features")).method_used == "features"


@pytest.mark.parametrize(("tasks", "way"), [(32, "exhaustive"), (33, "one-shot")])
def test_beyond_32_tasks_one_shot_decides(tasks: int, way: str, tmp_path: Path) -> None:
    """Every mask of many tasks would take too long."""
    learned = written(tmp_path / "earlier.supsup", tasks)
    model = supsup.load(tmp_path / "earlier.supsup", device="cpu")
    answer = model.predict(shown(learned[0]))
    assert answer.method_used == way
    assert answer.tasks == model.predict(shown(learned[0]), inference=Inference(way)).tasks
