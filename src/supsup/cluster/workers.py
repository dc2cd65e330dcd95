"""Who trains groups of tasks: processes of this machine, a Ray cluster, or any executor with `submit`."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor

from supsup.runtime.errors import SupSupError
from supsup.runtime.process import tune_process
from supsup.runtime.validation import quoted

_MOST = 1024  # processes on one machine


class Executor(Protocol):
    """As in `concurrent.futures`: what a user may hand in."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Have a function called by a worker."""


class Workers(Executor, Protocol):
    """What a run needs of them.

    lost  the errors of a future whose worker is gone: its work is to be submitted again, after `renew`
    """

    lost: tuple[type[BaseException], ...]

    @property
    def count(self) -> int:
        """How many there are at this moment."""

    def share(self, tensors: Mapping[str, Tensor]) -> Any:
        """Something to submit in place of these tensors, which reach each node once."""

    def renew(self) -> bool:
        """Go on without workers that are gone, or an error; whether all that was under way is lost with them."""

    def close(self) -> None:
        """Stop what is under way and let go of what was shared."""


class GivenExecutor:
    """A user's own executor; what tasks share lies in a file that its workers must see (TMPDIR says where)."""

    lost: tuple[type[BaseException], ...] = (BrokenExecutor,)

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._folder = tempfile.TemporaryDirectory(prefix="supsup-")
        self._waiting: set[Future[Any]] = set()

    @property
    def count(self) -> int:
        return max(1, int(getattr(self._executor, "_max_workers", 1)))

    def share(self, tensors: Mapping[str, Tensor]) -> str:
        path = Path(self._folder.name) / "shared.safetensors"
        save_file(dict(tensors), path)
        return str(path)

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        future = self._executor.submit(function, *arguments)
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    def renew(self) -> bool:
        raise SupSupError("the executor has lost its workers; make a new one and learn the tasks that are not there")

    def close(self) -> None:
        for future in list(self._waiting):
            future.cancel()
        self._folder.cleanup()


class LocalProcesses(GivenExecutor):
    """So many processes on this machine, which share its cores or take its GPUs in turn; they end with this one."""

    _executor: ProcessPoolExecutor

    def __init__(self, workers: int) -> None:
        self._workers = workers
        super().__init__(self._start())

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        end, self._life = context.Pipe(duplex=False)
        threads = max(1, torch.get_num_threads() // self._workers)
        arguments = (end, context.Value("i", 0), threads)
        return ProcessPoolExecutor(self._workers, context, _begin, arguments)

    def renew(self) -> bool:
        self._end()
        self._executor = self._start()
        return True

    def close(self) -> None:
        super().close()
        self._end()

    def _end(self) -> None:
        """Also of processes that are about to start, or in the middle of a group."""
        processes = list(self._executor._processes.values())
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        self._life.close()


def _begin(life: Connection, started: Any, threads: int) -> None:
    """A worker process: Ctrl-C is for its parent, and it ends when that one lets go of it or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    tune_process()
    with started.get_lock():
        number = started.value
        started.value += 1
    if torch.cuda.is_available():
        torch.cuda.set_device(number % torch.cuda.device_count())
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()


def _end_with(life: Connection) -> None:
    """Nothing is ever sent: the other end closes."""
    try:
        life.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def workers_of(cluster: str | Executor) -> Workers:
    """ "local:N" processes, the Ray cluster at an address, or an executor of the user's own."""
    if not isinstance(cluster, str):
        if not callable(getattr(cluster, "submit", None)):
            raise SupSupError(
                f'cluster={quoted(cluster)} is none: give "local:4", the address of a Ray cluster, or an executor '
                "with submit, as those of concurrent.futures"
            )
        return GivenExecutor(cluster)
    local = re.fullmatch(r"local:(\d{1,6})", cluster)
    if local is None and cluster.startswith("local"):
        raise SupSupError(f'cluster={quoted(cluster)} does not say how many processes: "local:4"')
    if local is None:
        from supsup.cluster.ray import RayWorkers

        return RayWorkers(cluster)
    if not 1 <= int(local[1]) <= _MOST:
        raise SupSupError(f"cluster={quoted(cluster)} asks for {local[1]} processes; give 1 to {_MOST:,}")
    return LocalProcesses(int(local[1]))
