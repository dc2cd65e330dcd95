"""The process that has the model: it sends out groups of tasks and commits the parts it gets back, in stream order."""

from __future__ import annotations

import heapq
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import Any

import torch

from supsup.cluster.worker import GroupResult, SharedTasks, WorkerSetup, learn_group, tasks_per_group
from supsup.cluster.workers import GivenExecutor, RayWorkers, workers_of
from supsup.data import Task
from supsup.model.learning import Learning
from supsup.runtime import progress
from supsup.runtime.errors import SupSupError, printable
from supsup.runtime.interrupts import uninterrupted

_AHEAD = 2  # groups for each worker: the one it trains and the next
_WINDOW = 8  # groups for each worker after the first unfinished one: only these wait for their turn to be committed
_LOSSES = 3  # in a row; then something is wrong with the work, not with the workers
_NAMED = 6  # nodes that the progress line lists


def learn_on(
    cluster: str | Executor, learning: Learning, tasks: Sequence[Task], precision: torch.dtype | None, show: bool | None
) -> None:
    """Train a mask for each task on a cluster; tasks have been checked before."""
    content, module = learning.blueprint()
    workers = workers_of(cluster)
    try:
        device = workers.device or learning.state.net.device.type
        setup = WorkerSetup(uuid.uuid4().hex, content, module, device, precision)
        with progress.bar("learning", len(tasks), show=show) as bar:
            _Driver(workers, learning, tasks, setup, bar).learn()
    finally:
        with uninterrupted():
            workers.close()


class _Driver:
    """One run. Groups are numbered in the order of the stream.

    waiting  numbers of groups to be sent, a heap
    pending  numbers of groups that are with workers
    arrived  parts by number that wait until all earlier groups are committed
    next     the number of the group to be committed next
    """

    def __init__(
        self,
        workers: GivenExecutor | RayWorkers,
        learning: Learning,
        tasks: Sequence[Task],
        setup: WorkerSetup,
        bar: progress.ProgressBar,
    ) -> None:
        self._workers, self._learning, self._tasks, self._setup, self._bar = workers, learning, tasks, setup, bar
        self._shared = SharedTasks(tasks)
        self._tensors = workers.share(self._shared.tensors)
        self._groups: list[Sequence[Task]] = [tasks[:1]]
        self._waiting = [0]
        self._pending: dict[Future[Any], int] = {}
        self._arrived: dict[int, bytes] = {}
        self._next = 0
        self._losses = 0
        self._by_node: Counter[str] = Counter()

    def learn(self) -> None:
        """All tasks; groups that are lost are sent again. What has arrived is committed also after an error."""
        self._divide()
        try:
            while self._waiting or self._pending:
                self._send(learn_group, _AHEAD * self._workers.count)
                self._receive()
                while self._next in self._arrived:
                    self._add(self._next)
                    self._next += 1
        except BaseException:
            # Later tasks may be normalised as the first one is: in a model without tasks that one has to be first.
            if len(self._learning.state.tasks):
                for number in sorted(self._arrived):
                    self._add(number)
            raise

    def _divide(self) -> None:
        """Groups that fill a worker's device, fewer tasks in each where there would be no work for all workers."""
        sizes: list[int] = []
        while not sizes:
            self._send(tasks_per_group, 1)
            sizes = [size for _, size in self._results()]
        size = max(1, min(sizes[0], len(self._tasks) // self._workers.count))
        self._groups = [self._tasks[start : start + size] for start in range(0, len(self._tasks), size)]
        self._waiting = list(range(len(self._groups)))

    def _send(self, function: Callable[..., Any], most: int) -> None:
        """Keep `most` groups with workers."""
        last = self._next + _WINDOW * self._workers.count
        while self._waiting and len(self._pending) < most and self._waiting[0] < last:
            group = [self._shared.sent(task) for task in self._groups[self._waiting[0]]]
            try:
                future = self._workers.submit(function, self._setup, self._tensors, group)
            except self._workers.lost as error:  # a pool whose process was killed takes no more work
                self._renew(error)
                continue
            self._pending[future] = heapq.heappop(self._waiting)

    def _receive(self) -> None:
        """Take what has come back."""
        errors = []
        for number, result in self._results():
            assert isinstance(result, GroupResult)
            if result.error:
                errors.append(result.error)
                continue
            self._arrived[number] = result.part
            self._by_node[result.node] += len(self._groups[number])
            self._bar(len(self._groups[number]))
            self._bar.describe(_line(self._by_node))
        if errors:
            raise SupSupError(errors[0])

    def _results(self) -> list[tuple[int, Any]]:
        """Results since the last call with the numbers of their groups; none where a worker was lost."""
        done, _ = wait(self._pending, return_when=FIRST_COMPLETED)
        results, lost = [], None
        for future in done:
            number = self._pending.pop(future)
            try:
                results.append((number, future.result()))
                self._losses = 0
            except self._workers.lost as error:
                lost = error
                heapq.heappush(self._waiting, number)
        if lost is not None:
            self._renew(lost)
        return results

    def _renew(self, error: BaseException) -> None:
        """Go on without a worker that was lost."""
        self._losses += 1
        if self._losses > _LOSSES:
            raise SupSupError(
                f"workers are lost again and again ({printable(error)}): they may have run out of memory (use fewer of "
                'them), or a script starts them outside of `if __name__ == "__main__":`; '
                "finished tasks are in the model"
            ) from error
        if self._workers.renew():
            for number in self._pending.values():
                heapq.heappush(self._waiting, number)
            self._pending.clear()

    def _add(self, number: int) -> None:
        self._learning.add_part(self._arrived.pop(number), self._groups[number])


def _line(by_node: Counter[str]) -> str:
    """How many tasks each node has learned."""
    shown = [f"{node} {count:,}" for node, count in by_node.most_common(_NAMED)]
    more = len(by_node) - len(shown)
    nodes = "1 node" if len(by_node) == 1 else f"{len(by_node):,} nodes"
    return f"learning on {nodes}: {', '.join(shown)}" + (f" and {more} more" if more else "")
