"""CUDA graphs: what a GPU is to do again and again, as one launch instead of dozens or hundreds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from supsup.concurrency.collecting import no_collecting
from supsup.concurrency.locks import ReadersWriter, new_lock

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
        with no_collecting(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
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
