"""Which executor trains a rival's tasks: by hand side by side, captured on a GPU, or plain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from supsup.baselines.any_module import learn_plain
from supsup.baselines.captured import learn_captured, learn_on_streams
from supsup.baselines.side_by_side import learn_side_by_side, learn_together
from supsup.data import Task

if TYPE_CHECKING:
    from supsup.baselines.rival import Method

_TOGETHER = 512  # tasks of a fully connected network at once at most
_STREAMS = 10  # tasks of another network at once on a GPU


def learn_one(method: Method, task: Task) -> None:
    """The next task."""
    if _stacks(method, task):
        learn_side_by_side([method], [task])
    elif _captures(method, task):
        learn_captured(method, task)
    else:
        learn_plain(method, task)


def learn_independent(method: Method, tasks: Sequence[Task]) -> Iterator[int]:
    """Tasks that do not depend on each other; yields how many have just been learned."""
    stacks, captures = (all(kind(method, task) for task in tasks) for kind in (_stacks, _captures))
    size = _TOGETHER if stacks else _STREAMS if captures else 1
    for start in range(0, len(tasks), size):
        group = tasks[start : start + size]
        if stacks:
            learn_together(method, group)
        elif captures:
            learn_on_streams(method, group)
        else:
            learn_one(method, group[0])
        yield len(group)


def _stacks(method: Method, task: Task) -> bool:
    return method.stackable and task.train.in_memory and task.train.augmentation is None


def _captures(method: Method, task: Task) -> bool:
    """On a GPU only; pixels that a task rearranges are left to the plain path."""
    return method.device.type == "cuda" and task.train.in_memory and task.train.pixels is None
