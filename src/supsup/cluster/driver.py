"""The process that has the model: it sends groups of tasks out and commits each part file that comes back."""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from supsup.cluster.groups import Shared
from supsup.cluster.worker import Finished, Run, group_size, learn_group
from supsup.cluster.workers import Executor, Workers, workers_of
from supsup.data import Task
from supsup.file.header import check_network
from supsup.file.modelfile import ModelFile, model_from_bytes, model_to_bytes, write_new
from supsup.file.task_blocks import TaskBlock, read_blocks
from supsup.masks.frozen import FrozenNet
from supsup.model.learning import Learning
from supsup.model.state import ModelState
from supsup.runtime import progress
from supsup.runtime.errors import SupSupError, printable
from supsup.runtime.interrupts import uninterrupted
from supsup.training import AutoRecipe, Recipe, Trained

_AHEAD = 2  # groups for each worker: the one it trains and the next
_LOSSES = 3  # in a row; then something is wrong with the work, not with the workers
_NAMED = 6  # nodes that the progress line lists


def learn_on(
    cluster: str | Executor,
    learning: Learning,
    tasks: Sequence[Task],
    *,
    precision: torch.dtype | None = None,
    show_progress: bool | None = None,
) -> None:
    """Train a mask for each task on a cluster; tasks have been checked before."""
    recipe = learning.state.settings.recipe
    if isinstance(recipe, Recipe) and recipe.transfer != "none":
        raise SupSupError(f"transfer={recipe.transfer!r} needs tasks one after the other; learn them without a cluster")
    workers = workers_of(cluster)
    try:
        with progress.bar("learning", len(tasks), show=show_progress) as bar:
            _Driver(workers, learning, tasks, precision, bar).learn()
    finally:
        with uninterrupted():
            workers.close()


class _Driver:
    """One run: what waits to be sent, what is under way, what has arrived; each group has its number in the stream."""

    def __init__(
        self,
        workers: Workers,
        learning: Learning,
        tasks: Sequence[Task],
        precision: torch.dtype | None,
        bar: progress.Bar,
    ) -> None:
        self._workers, self._learning, self._tasks, self._bar = workers, learning, tasks, bar
        self._shared = Shared(tasks)
        self._run = _run(learning.state, workers, precision)
        self._tensors = workers.share(self._shared.tensors)
        self._waiting: deque[tuple[int, Sequence[Task]]] = deque()
        self._pending: dict[Future[Any], tuple[int, Sequence[Task]]] = {}
        self._arrived: dict[int, tuple[Finished, Sequence[Task]]] = {}
        self._losses = 0
        self._by_node: Counter[str] = Counter()

    def learn(self) -> None:
        """All tasks; groups that are lost go out again."""
        self._divide()
        while self._waiting or self._pending:
            self._send(learn_group, _AHEAD * self._workers.count)
            for (number, group), finished in self._results():
                self._arrived[number] = finished, group
            # Later tasks may be normalised as the first one is: in a model without tasks its group has to be first.
            if len(self._learning.state.tasks) or 0 in self._arrived:
                for number in sorted(self._arrived):
                    self._add(*self._arrived.pop(number))

    def _divide(self) -> None:
        """Groups that fill a worker's device, fewer tasks in each where there would be no work for all workers."""
        self._waiting.append((0, self._tasks[:1]))
        sizes: list[int] = []
        while not sizes:
            self._send(group_size, 1)
            sizes = [size for _, size in self._results()]
        size = max(1, min(sizes[0], len(self._tasks) // self._workers.count))
        starts = range(0, len(self._tasks), size)
        self._waiting.extend(enumerate(self._tasks[start : start + size] for start in starts))

    def _send(self, function: Callable[..., Any], most: int) -> None:
        """Keep so many groups under way."""
        while self._waiting and len(self._pending) < most:
            number, group = self._waiting[0]
            try:
                future = self._workers.submit(function, self._run, self._tensors, self._shared.group(group))
            except self._workers.lost as error:  # a pool whose process was killed takes no more work
                self._renew(error)
                continue
            self._waiting.popleft()
            self._pending[future] = number, group

    def _results(self) -> list[tuple[tuple[int, Sequence[Task]], Any]]:
        """What came back since the last time, with the groups; at least one thing, or none where a worker was lost."""
        done, _ = wait(self._pending, return_when=FIRST_COMPLETED)
        results, lost = [], None
        for future in done:
            sent = self._pending.pop(future)
            try:
                results.append((sent, future.result()))
                self._losses = 0
            except self._workers.lost as error:
                lost = error
                self._waiting.appendleft(sent)
        if lost is not None:
            self._renew(lost)
        return results

    def _renew(self, error: BaseException) -> None:
        """Go on without a worker that was lost."""
        self._losses += 1
        if self._losses > _LOSSES:
            raise SupSupError(
                f"workers are lost again and again ({printable(error)}): for want of memory (use fewer of them), or "
                'because a script starts them outside of `if __name__ == "__main__":`; finished tasks are in the model'
            ) from error
        if self._workers.renew():
            self._waiting.extendleft(self._pending.values())
            self._pending.clear()

    def _add(self, finished: Finished, group: Sequence[Task]) -> None:
        """The masks of a group, committed."""
        if finished.error:
            raise SupSupError(finished.error)
        state, by_name = self._learning.state, {task.name: task for task in group}
        for block in _blocks(finished.part, state.net):
            tasks = [by_name[task.name] for task in block.tasks]
            chosen = [task.info.recipe for task in block.tasks]
            fitted = isinstance(state.settings.recipe, AutoRecipe)
            recipes = [Recipe(**(own or {})) for own in chosen] if fitted else None  # type: ignore[arg-type]
            profiles = {task.name: task.profile for task in block.tasks if task.profile is not None}
            self._learning.add(Trained(tasks, block.packed, block.statistics), recipes, profiles)
        self._by_node[finished.node] += len(group)
        self._bar(len(group))
        self._bar.describe(_line(self._by_node))


def _run(state: ModelState, workers: Workers, precision: torch.dtype | None) -> Run:
    """What every worker has to know; a model file without tasks says the most of it."""
    header = replace(state.header(), notes={})

    def save(path: Path) -> None:
        write_new(path, header)

    own = None if header.architecture is not None else state.net.module
    device = getattr(workers, "device", state.net.device.type)
    return Run(uuid.uuid4().hex, model_to_bytes(save), own, device, precision)


def _blocks(part: bytes, net: FrozenNet) -> list[TaskBlock]:
    """The tasks of a part file, every mask checked."""

    def load(path: Path) -> list[TaskBlock]:
        with ModelFile(path) as file:
            check_network(net, file.header)
            return list(read_blocks(file, net))

    return model_from_bytes(part, load)


def _line(by_node: Counter[str]) -> str:
    """How many tasks each node has learned."""
    shown = [f"{node} {count:,}" for node, count in by_node.most_common(_NAMED)]
    more = len(by_node) - len(shown)
    nodes = "1 node" if len(by_node) == 1 else f"{len(by_node):,} nodes"
    return f"learning on {nodes}: {', '.join(shown)}" + (f" and {more} more" if more else "")
