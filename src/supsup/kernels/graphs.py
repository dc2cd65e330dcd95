"""CUDA graphs: what a GPU is to do again and again, as one launch instead of dozens or hundreds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from supsup.runtime.locks import ReadersWriter, new_lock
from supsup.runtime.process import no_garbage_collection

CAPTURING = new_lock()  # held around `capture`: all graphs are captured on one stream
# Whether waiting for a GPU is an error is a setting of the whole process: who may wait reads, who changes it writes.
WAITING = ReadersWriter()


@contextmanager
def capture() -> Iterator[torch.cuda.CUDAGraph]:
    """What is launched inside becomes the graph, and is not run.

    Torch keeps the scratch memory of matrix products by stream and captures all graphs on one stream, so they would
    share it: two that run at the same time would spoil each other's sums, and when one is deleted the other's memory
    goes with it. Forgotten before, it is taken from the graph's own memory; forgotten after, nobody else finds it.
    A graph that is deleted meanwhile, as part of somebody's garbage, would make the capture fail. Other threads may go
    on with whatever they do on the GPU. One capture at a time: hold `CAPTURING`.
    """
    forget_scratch: Callable[[], None] = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
    graph = torch.cuda.CUDAGraph()
    forget_scratch()
    try:
        with no_garbage_collection(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            yield graph
    finally:
        forget_scratch()


def repeated(step: Callable[[], object], times: int = 1, warm_up: int = 1) -> Callable[[], None]:
    """So many steps as one launch, after some that are run one by one: those make what a first step has to make.

    `step` must read and write the same tensors each time and never wait for the host; what they hold now is spoilt.
    """
    torch.cuda.synchronize()  # the warm-up may be given memory that was freed while another stream still used it
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            step()
    torch.cuda.current_stream().wait_stream(side)
    with CAPTURING, capture() as graph:
        for _ in range(times):
            step()
    return graph.replay


# MERGED MODULE DOC: The same question about one image again and again on a GPU, each time the replay of a CUDA graph: one launch.
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
