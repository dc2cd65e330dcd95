"""What goes out to workers: tensors that tasks share once, and each task as it was."""

import pickle

import torch

from supsup import data
from supsup.cluster.worker import SharedTasks
from supsup.data import Stream


def test_what_tasks_share_does_not_travel_with_them(stream: Stream) -> None:
    """The images of a stream of thousands would otherwise go out thousands of times."""
    tasks = list(stream)
    shared = SharedTasks(tasks)
    group = [shared.sent(task) for task in tasks[:3]]
    assert any(tensor.shape == tasks[0].train.images.shape for tensor in shared.tensors.values())
    assert len(pickle.dumps(group)) < 3 * 8 * 784 + 2000
    again = [sent.task(shared.tensors) for sent in group]
    for one, two in zip(again, tasks):
        assert (one.name, one.classes) == (two.name, two.classes)
        positions = torch.arange(0, len(two.train), 97)
        assert all(torch.equal(a, b) for a, b in zip(one.train.batch(positions), two.train.batch(positions)))
    assert again[0].train.images is again[1].train.images  # so that they are trained in one go


def test_augmentation_comes_along() -> None:
    x, y = torch.zeros(8, 1, 6, 6, dtype=torch.uint8), torch.zeros(8, dtype=torch.int64)
    part = data.Part(x, y, augmentation=data.augmentation.Augmentation(2, flip=True))
    task = data.Task("one", part, part, 1)
    shared = SharedTasks([task])
    again = shared.sent(task).task(shared.tensors)
    assert again.train.augmentation == part.augmentation
