"""Who trains a rival's tasks: many at once side by side, captured on a GPU, or plain; the first that takes them.

A rival is a `Trainee`, so the last two are the executors that train masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from supsup.data import Task
from supsup.training.fast.captured import Lane, captures, lane_for, run_lanes
from supsup.training.jobs import groups_of
from supsup.training.plain import PlainTraining
from supsup_paper.rivals.networks import most_at_once
from supsup_paper.rivals.side_by_side import go_together, learn_side_by_side, learn_stacked, stacks

if TYPE_CHECKING:
    from supsup_paper.rivals.rival import Baseline

_STREAMS = 10  # tasks at once on a GPU, where none are stacked


def learn_one(rival: Baseline, task: Task) -> None:
    """The next task."""
    if stacks(rival, task):
        learn_side_by_side([rival], [task])
    elif _captured(rival, task):
        learn_captured(rival, [task])
    else:
        learn_plain(rival, task)


def learn_independent(rival: Baseline, tasks: Sequence[Task]) -> Iterator[int]:
    """Tasks that do not depend on each other; yields how many have just been learned."""
    if all(stacks(rival, task) for task in tasks):
        for group in groups_of(tasks, go_together, lambda first: most_at_once(rival, first.train)):
            learn_stacked(rival, group)
            yield len(group)
        return
    captured = all(_captured(rival, task) for task in tasks)
    size = _STREAMS if captured else 1
    for start in range(0, len(tasks), size):
        some = tasks[start : start + size]
        if captured:
            learn_captured(rival, some)
        else:
            learn_one(rival, some[0])
        yield len(some)


def learn_plain(rival: Baseline, task: Task) -> None:
    """One task on any module with autograd: what defines the meaning."""
    rival.check(task)
    recipe = rival.recipe_of_next()
    training = PlainTraining(rival, rival.begin(task), recipe, recipe.steps_for(len(task.train)))
    training.run(task.name, task.train, rival.label_offset(task))
    rival.keep(task, {name: value.detach() for name, value in training.state.items()})


def learn_captured(rival: Baseline, tasks: Sequence[Task]) -> None:
    """Independent tasks, or one, each on a stream of its own; the host does not wait for them."""
    for task in tasks:
        rival.check(task)
    recipe, lanes = rival.recipe_of_next(), []
    for index, task in enumerate(tasks):
        state = rival.begin(task)

        def make(task: Task = task) -> Lane:
            return _lane(rival, task)

        lane = lane_for(rival.lanes, index, state, recipe, task.train, make)
        lane.start(state, task, rival.label_offset(task))
        lanes.append(lane)
    run_lanes(lanes)
    for lane, task in zip(lanes, tasks):
        rival.keep(task, lane.ended())


def _captured(rival: Baseline, task: Task) -> bool:
    """On a GPU, where the network can be captured: tried once."""
    if rival.device.type != "cuda":
        return False
    if rival.captures is None:
        rival.captures = captures(_lane(rival, task))
    return rival.captures


def _lane(rival: Baseline, task: Task) -> Lane:
    return Lane(rival, rival.begin(task), rival.recipe_of_next(), task.train)
