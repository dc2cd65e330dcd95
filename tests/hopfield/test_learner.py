"""`HopSupSup`: what a user meets, and that nothing but Ψ and μ is kept of a task."""

import warnings

import pytest
import torch
from torch import Tensor

from supsup import HopSupSup, Recovery, SupSupError, UnitRecipe, data, nets
from supsup.data import Task
from supsup.hopfield.learner import MemoryFull, learn_in_parallel, outputs_in_parallel, recover_in_parallel

Hop = tuple[HopSupSup, list[Task], list[list[Tensor]]]


def tiny(**settings: object) -> HopSupSup:
    return HopSupSup(nets.HopMLP((20, 60, 50, 8)), device="cpu", **settings)  # type: ignore[arg-type]


def pairs(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    return torch.randn(count, 20, generator=chance) + labels[:, None], labels


def random_units(seed: int) -> list[Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return [torch.rand(width, generator=chance) < 0.5 for width in (60, 50)]


def test_an_unknown_tasks_images_are_answered_with_its_own_mask(hop: Hop) -> None:
    """Accuracy with the recovered mask is that with the mask itself, for labels and tasks."""
    model, tasks, masks = hop
    first = 0
    for task, learned in zip(tasks, masks):
        x, y = task.test.tensors()
        answer = model.predict(x)
        direct = outputs_in_parallel([model], x, learned)[0].argmax(-1)
        assert torch.equal(answer.labels[direct == y + first], y[direct == y + first])
        right = sum(name == task.name and label == true for name, label, true in zip(answer.tasks, answer.labels, y))
        assert right == int((direct == y + first).sum())
        assert right / len(y) > 0.97
        assert bool((answer.confidence > 0).all())
        first += task.classes


def test_with_the_task_known_only_its_outputs_answer(hop: Hop) -> None:
    """Outputs of other tasks would make answers wrong that can only be right."""
    model, tasks, _ = hop
    first, second = (task.name for task in tasks)
    x, y = tasks[1].test.tensors()
    units = model.recover(x).units
    free, known = model.predict(x, units=units), model.predict(x, task=second, units=units)
    assert (known.labels == y).float().mean() >= (free.labels == y).float().mean()
    assert known.tasks == [second] * len(y)
    assert torch.equal(known.labels, model.predict(x, task=second).labels), "the mask is recovered where none is given"
    other = model.predict(x, task=first, units=units)
    assert other.tasks == [first] * len(y)
    assert bool((other.confidence < known.confidence).float().mean() > 0.9)
    both = model.predict(x, among=[second, first], units=units)
    assert (both.tasks, both.labels.tolist()) == (free.tasks, free.labels.tolist())
    with pytest.raises(SupSupError, match=r"predict\(x, units="):
        model.predict(x, units)  # type: ignore[arg-type]


def test_what_is_kept_does_not_grow(hop: Hop) -> None:
    model, _, _ = hop
    assert model.tasks == ["classes-0-1", "classes-6-7"]
    assert model.memory_bytes == 2 * (512 * 512 + 512) * 4
    assert HopSupSup(nets.HopMLP((784, 512, 512, 10)), device="cpu").memory_bytes == model.memory_bytes
    tensors = [value for value in vars(model).values() if isinstance(value, Tensor)]
    assert not tensors
    lists = [value for value in vars(model).values() if isinstance(value, list) and value]
    assert lists == [model.psi, model.mean]


def test_models_that_learn_together_are_those_that_learn_alone() -> None:
    x, y = pairs(120)
    task = data.permuted(data.arrays(x, y, x, y, normalise=False), 1)[0]
    models = [tiny_with(seed) for seed in (1, 2)]
    learn_in_parallel(models, task)
    for model in models:
        alone = tiny_with(model.seed)
        alone.learn(task)
        for mine, ours in zip([*alone.psi, *alone.mean], [*model.psi, *model.mean]):
            assert (mine == ours).float().mean() > 0.9
    found = recover_in_parallel(models, x)
    assert found.entropy.shape == (2,)


def tiny_with(seed: int) -> HopSupSup:
    recipe = UnitRecipe(batch_size=40, epochs=5)
    return HopSupSup(nets.HopMLP((20, 60, 50, 8)), seed, recipe=recipe, recovery=Recovery(starts=2), device="cpu")


def test_a_full_memory_is_said_to_be_full() -> None:
    model = HopSupSup(nets.HopMLP((20, 60, 50, 400)), rule="hebb", device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(2):
            model.store(f"task-{number}", 2, random_units(number), (20,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(2, 60):
            model.store(f"task-{number}", 2, random_units(number), (20,))
    with pytest.warns(MemoryFull, match="the memory is full"):
        model.store("one too many", 2, random_units(60), (20,))


def test_a_pair_is_learned_under_its_name() -> None:
    model = tiny(recipe=UnitRecipe(batch_size=40))
    assert model.learn(pairs(80), task="first") == "first"
    assert (model.tasks, model.classes("first"), model.image_shape) == (["first"], 2, (20,))
    assert model.learned_at("first").startswith("2")


def test_mistakes_are_explained() -> None:
    model = tiny(recipe=UnitRecipe(batch_size=40))
    x, y = pairs(80)
    with pytest.raises(SupSupError, match="no task has been learned"):
        model.predict(x)
    with pytest.raises(SupSupError, match="give the task a name"):
        model.learn((x, y))
    with pytest.raises(SupSupError, match="data is 3"):
        model.learn(3, task="a")
    with pytest.raises(SupSupError, match="at least two classes"):
        model.learn((x[:1], y[:1]), task="a")
    with pytest.raises(SupSupError, match="build it with inputs=10"):
        model.learn((x[:, :10], y), task="a")
    with pytest.raises(SupSupError, match="not empty"):
        model.learn((x, y), task="")
    model.learn((x, y), task="a")
    with pytest.raises(SupSupError, match="learned already"):
        model.learn((x, y), task="a")
    with pytest.raises(SupSupError, match="outputs=9 or more"):
        model.learn((x, torch.arange(80) % 7), task="b")
    with pytest.raises(SupSupError, match="learned already"):
        model.store("a", 2, random_units(0), (20,))
    with pytest.raises(SupSupError, match="several images"):
        model.predict(x[:1])
    with pytest.raises(SupSupError, match="unknown task 'c'; known: a"):
        model.classes("c")
    with pytest.raises(SupSupError, match="paper, best-of"):
        model.recover(x, procedure="guess")
    with pytest.raises(SupSupError, match="hebb, storkey"):
        tiny(rule="oja")
