"""Which jobs go together."""

import torch

from supsup import Recipe, data
from supsup.training import Job
from supsup.training.executors import count_fitting, grouped
from supsup.training.fast import batched


def test_groups_fit_into_memory_are_alike_and_keep_the_order() -> None:
    items = ["a1", "a2", "a3", "a4", "a5", "b1", "b2", "a6"]

    def in_groups(memory: int, most: int = 100) -> list[list[str]]:
        return grouped(items, lambda one, other: one[0] == other[0], lambda item: count_fitting(10, memory, most))

    assert in_groups(10**6) == [["a1", "a2", "a3", "a4", "a5"], ["b1", "b2"], ["a6"]]
    assert in_groups(43) == [["a1", "a2", "a3"], ["a4", "a5"], ["b1", "b2"], ["a6"]], "0.7 of 43 holds three"
    assert in_groups(0) == [[item] for item in items], "one at a time where nothing seems to fit"
    assert [len(group) for group in in_groups(10**6, most=4)] == [3, 2, 2, 1], "of about equal size"


def test_something_always_fits() -> None:
    assert count_fitting(100, 50, 10) == 1
    assert count_fitting(0, 50, 10) == 10
    assert count_fitting(7, 100, 10) == 10
    assert count_fitting(10, 100, 10) == 7


def test_tasks_of_one_source_but_of_unequal_length_are_trained_apart() -> None:
    """One feed has as many batches for every task: a shorter one would stop late, a longer one too soon."""
    labels = torch.tensor([0, 1, 2, 3, 4, 5, 0, 1, 4, 5])
    images = torch.rand(10, 1, 4, 4)
    stream = data.split(data.arrays(images, labels, images, labels), 2)
    jobs = [Job(task, Recipe(epochs=2, batch_size=2)) for task in stream]
    assert [job.steps for job in jobs] == [4, 2, 4]
    together = grouped(jobs, batched._alike, lambda job: 10)
    assert [[job.task.name for job in group] for group in together] == [
        ["classes-0-1"],
        ["classes-2-3"],
        ["classes-4-5"],
    ]
    assert batched._alike(jobs[0], jobs[2])
    other = data.split(data.arrays(images.clone(), labels, images, labels), 2)
    assert not batched._alike(jobs[0], Job(other[0], jobs[0].recipe)), "images of another source"
