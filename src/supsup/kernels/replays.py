"""The same question about one image again and again on a GPU, each time the replay of a CUDA graph: one launch."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from supsup.concurrency.locks import new_lock
from supsup.kernels.graphs import CAPTURING, capture


@dataclass(frozen=True)
class Replay:
    """A captured answer: the image is copied into `given`, and after the graph has run the answer is in `result`."""

    graph: torch.cuda.CUDAGraph
    given: Tensor
    result: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """The answer for this image."""
        self.given.copy_(x)
        self.graph.replay()
        return self.result.clone()


class Replays:
    """Captured answers by question. A graph reads the tensors it was captured with: `clear` once they change."""

    def __init__(self) -> None:
        self._by_question: dict[Hashable, Replay | None] = {}  # None: asked once and answered without a graph
        self._lock = new_lock()  # a graph has one buffer for its image and one for its answer

    def __len__(self) -> int:
        return len(self._by_question)

    def __deepcopy__(self, memo: dict[int, Any]) -> Replays:
        """Empty: a copy has tensors of its own."""
        return Replays()

    def clear(self) -> None:
        """Delete all graphs."""
        self._by_question.clear()

    def answer(
        self, question: Hashable, compute: Callable[[Tensor], Tensor], x: Tensor, capturable: Callable[[], bool]
    ) -> Tensor:
        """compute(x); for one image on a GPU a replay, from the second time on that the question is asked.

        The first time makes what needs to be made only once. `capturable` says then whether there can be a graph.
        """
        if len(x) > 1 or not x.is_cuda:
            return compute(x)
        with self._lock:
            if question not in self._by_question:
                if capturable():
                    self._by_question[question] = None
                return compute(x)
            replay = self._by_question[question]
            if replay is None:
                given = x.clone()
                with CAPTURING, capture() as graph:
                    result = compute(given)
                replay = self._by_question[question] = Replay(graph, given, result)
            return replay(x)
