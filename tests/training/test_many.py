"""Grouping tasks and feeding their batches: a task's batches are its own, whoever it is grouped with."""

import math

import pytest
import torch

from supsup import Recipe, data, nets
from supsup.data import Stream, Task
from supsup.frozen import FrozenNet
from supsup.scores import initial_scores
from supsup.training.batched import BatchedTrainer
from supsup.training.many import bytes_per_task, groups, make_feed, start_group, train_masks
from supsup.training.operations import gather
from supsup.training.order import batch_positions


def net() -> FrozenNet:
    return FrozenNet(nets.FullyConnected((784, 20, 12)), 3, torch.device("cpu"))


def colour() -> data.Source:
    torch.manual_seed(0)
    x = torch.randint(256, (60, 3, 4, 5), dtype=torch.uint8)
    return data.arrays(x[:50], torch.arange(50) % 6, x[50:], torch.arange(10) % 6)


@pytest.mark.parametrize(
    "tasks",
    [
        data.permuted(data.digits(), 3),
        data.rotated(data.digits(), 3),
        data.split(data.digits(), 5),
        data.permuted(colour(), 3),
        data.rotated(colour(), 2, step=45),
        data.split(colour(), 2, seed=1),
    ],
    ids=["permuted", "rotated", "split", "permuted colour", "rotated colour", "split colour"],
)
def test_the_feed_gives_the_batches_of_the_plain_path(tasks: Stream) -> None:
    recipe = Recipe(steps=7, batch_size=16)
    frozen = FrozenNet(nets.FullyConnected((math.prod(tasks[0].train.shape), 4)), 3, torch.device("cpu"))
    feed = make_feed(frozen, list(tasks), recipe)
    plain = [batch_positions(3, task.name, len(task.train), 16, 7) for task in tasks]
    x, y = torch.empty(len(tasks), 16, frozen.weights["layers.0.weight"].shape[1]), torch.empty(len(tasks), 16).int()
    for step in range(7):
        feed.step.fill_(step)
        gather(feed, x, y)
        for i, task in enumerate(tasks):
            images, labels = task.train.batch(next(plain[i]))
            assert torch.allclose(x[i], images.flatten(1), atol=1e-6)
            assert torch.equal(y[i].long(), labels)


def test_every_task_of_a_group_starts_from_its_own_scores(stream: Stream) -> None:
    frozen = net()
    trainer = BatchedTrainer(frozen, 3, Recipe(), 8)
    names = [task.name for task in stream[:3]]
    start_group(trainer, names)
    for i, name in enumerate(names):
        for layer, expected in zip(trainer.layers, initial_scores(3, name, frozen.shapes).values()):
            rows, columns = expected.shape
            assert torch.equal(layer.scores[i, :rows, :columns], expected)


def test_a_mask_is_the_same_to_the_bit_alone_and_beside_others(stream: Stream) -> None:
    """What makes a resumed run end with the masks of one that was never interrupted."""
    frozen, recipe = net(), Recipe(steps=30)
    together = {task.name: packed for (task,), packed, *_ in train_masks(frozen, stream[:3], recipe)}
    for task in stream[:3]:
        ((_, alone, _, _),) = train_masks(frozen, [task], recipe)
        assert torch.equal(together[task.name], alone)


def test_groups_fit_into_memory_share_images_and_keep_the_order(stream: Stream) -> None:
    frozen, recipe = net(), Recipe(steps=10)
    other = data.permuted(data.digits(), 2, seed=9)
    tasks: list[Task] = [*stream, *other]
    memory = math.ceil(2.5 * bytes_per_task(frozen, recipe, recipe.steps) / 0.7)
    grouped = groups(frozen, tasks, recipe, memory)
    assert [task for group in grouped for task in group] == tasks
    assert [len(group) for group in grouped] == [2, 2, 2, 2]
    assert len(groups(frozen, tasks, recipe, 0)) == 8, "one at a time where nothing seems to fit"
    assert [len(group) for group in groups(frozen, tasks, recipe, 10**12)] == [6, 2]
