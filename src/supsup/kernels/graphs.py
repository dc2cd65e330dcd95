"""CUDA graphs: repeated work of a GPU as one launch instead of dozens or hundreds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from supsup.runtime.locks import ReadersWriter, new_lock
from supsup.runtime.process import no_garbage_collection

_CAPTURING = new_lock()  # all graphs are captured on one stream
# Whether waiting for a GPU is an error is a setting of the whole process: code that may wait holds the read lock, code
# that changes the setting the write lock.
WAITING = ReadersWriter()


@contextmanager
def capture() -> Iterator[torch.cuda.CUDAGraph]:
    """Launches inside become the graph and are not run.

    Torch keeps one scratch buffer for matrix products per stream, and captures all graphs on one stream. Graphs would
    share the buffer: two that run at the same time would corrupt each other's sums, and deleting one would free the
    other's memory. So the buffer is dropped before, and the graph allocates its own; and after, so that no other graph
    uses it. Garbage collection is off: a graph that is deleted during a capture makes the capture fail. Other threads
    may use the GPU meanwhile, but only one captures at a time.
    """
    drop_scratch: Callable[[], None] = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
    with _CAPTURING:
        graph = torch.cuda.CUDAGraph()
        drop_scratch()
        try:
            with no_garbage_collection(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                yield graph
        finally:
            drop_scratch()


def repeat_in_graph(step: Callable[[], object], times: int = 1, warm_up: int = 1) -> Callable[[], None]:
    """A function that runs `times` steps as one launch; first `warm_up` steps run one by one, for one-time set-up.

    `step` must read and write the same tensors each time and never wait for the host. Their contents are overwritten.
    """
    torch.cuda.synchronize()  # the warm-up may get memory that another stream still uses
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            step()
    torch.cuda.current_stream().wait_stream(side)
    with capture() as graph:
        for _ in range(times):
            step()
    return graph.replay


class Replays:
    """Captured computations by key. A graph reads the tensors it was captured with: `clear` when they change."""

    def __init__(self) -> None:
        # A graph, the image it reads and the result it writes; None: computed once, without a graph.
        self._by_key: dict[Hashable, tuple[torch.cuda.CUDAGraph, Tensor, Tensor] | None] = {}
        self._lock = new_lock()  # a graph has one buffer for its image and one for its result

    def clear(self) -> None:
        """Delete all graphs."""
        self._by_key.clear()

    def answer(
        self, key: Hashable, compute: Callable[[Tensor], Tensor], x: Tensor, capturable: Callable[[], bool]
    ) -> Tensor:
        """compute(x); for one image on a GPU, from the second call with the same key on, the replay of a graph.

        The first call does one-time set-up. `capturable` says whether the computation can be captured.
        """
        if len(x) > 1 or not x.is_cuda:
            return compute(x)
        with self._lock:
            if key not in self._by_key:
                if capturable():
                    self._by_key[key] = None
                return compute(x)
            replay = self._by_key[key]
            if replay is None:
                given = x.clone()
                with capture() as graph:
                    result = compute(given)
                replay = self._by_key[key] = graph, given, result
            graph, given, result = replay
            given.copy_(x)
            graph.replay()
            return result.clone()
