"""Workers that train groups of tasks: processes of this machine, a Ray cluster, or any executor with `submit`."""

from __future__ import annotations

import logging
import multiprocessing
import os
import platform
import re
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from supsup.cluster.worker import GroupResult
from supsup.runtime.errors import SupSupError, printable
from supsup.runtime.process import tune_process
from supsup.runtime.validation import quoted

_MOST = 1024  # processes on one machine
_PATIENCE = 10.0  # seconds for a Ray cluster to answer
_RETRIES = 10  # of a group whose worker or node is gone, by Ray itself


class GivenExecutor:
    """An executor given by the user. Its workers must be able to read the file of shared tensors (see TMPDIR).

    lost    errors of a future whose worker is gone: its work is to be submitted again, after `renew`
    device  the kind of device that workers train on; None: that of the model
    """

    lost: tuple[type[BaseException], ...] = (BrokenExecutor,)
    device: str | None = None

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._folder = tempfile.TemporaryDirectory(prefix="supsup-")
        self._waiting: set[Future[Any]] = set()

    @property
    def count(self) -> int:
        """How many workers there are at this moment."""
        return max(1, int(getattr(self._executor, "_max_workers", 1)))

    def share(self, tensors: Mapping[str, Tensor]) -> Any:
        """What to submit in place of these tensors, so that they reach each node once."""
        path = Path(self._folder.name) / "shared.safetensors"
        save_file(dict(tensors), path)
        return str(path)

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Call a function on a worker."""
        future = self._executor.submit(function, *arguments)
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    def renew(self) -> bool:
        """Go on without workers that are gone, or an error; whether all submitted work is lost with them."""
        raise SupSupError("the executor has lost its workers; make a new one and learn the tasks that are missing")

    def close(self) -> None:
        """Stop all submitted work and release what was shared."""
        for future in list(self._waiting):
            future.cancel()
        self._folder.cleanup()


class LocalProcesses(GivenExecutor):
    """Processes on this machine, which share its cores or take its GPUs in turn; they end with this one."""

    _executor: ProcessPoolExecutor

    def __init__(self, workers: int) -> None:
        _check_main()
        self._workers = workers
        super().__init__(self._start())

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        end, self._life = context.Pipe(duplex=False)
        threads = max(1, torch.get_num_threads() // self._workers)
        return ProcessPoolExecutor(self._workers, context, _begin, (end, context.Value("i", 0), threads))

    def renew(self) -> bool:
        self._end()
        self._executor = self._start()
        return True

    def close(self) -> None:
        super().close()
        self._end()

    def _end(self) -> None:
        """End all processes, also those that are about to start or in the middle of a group."""
        processes = list(self._executor._processes.values())
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        self._life.close()


def _check_main() -> None:
    """An error where new processes could not import the main module: Python names it "<stdin>" if it was piped in."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is None and path is not None and not Path(path).exists():
        raise SupSupError(
            f'processes of "local:N" import the main program, but this one was read from {printable(path)}; put it in '
            'a file, with the call that learns under `if __name__ == "__main__":`'
        )


def _begin(life: Connection, started: Any, threads: int) -> None:
    """Set up a worker process: it ignores Ctrl-C, and ends when its parent closes the pipe or dies."""
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
    """End this process when the other end of the pipe closes; nothing is ever sent."""
    try:
        life.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


class RayWorkers:
    """Workers of the Ray cluster at an address ("auto": on this machine), for each GPU, or core where there is none.

    Ray notices when a worker or a node is gone and gives its work to others; nodes may join and leave at any time.
    """

    def __init__(self, address: str) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            raise SupSupError(
                f"cluster={printable(address)!r} is the address of a Ray cluster: pip install 'supsup[cluster]', or "
                'give "local:4" for processes of this machine'
            ) from error
        self._ray = ray
        self._own = not ray.is_initialized()
        if self._own:
            try:
                _reach(address)
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, ValueError, RuntimeError) as error:
                raise SupSupError(
                    f"there is no Ray cluster at {printable(address)} ({printable(error)}); start one: ray start --head"
                ) from error
        errors = ray.exceptions
        self.lost: tuple[type[BaseException], ...] = (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.ObjectLostError,
            errors.OutOfMemoryError,
            errors.RaySystemError,
        )
        self._unit = "GPU" if ray.cluster_resources().get("GPU", 0) >= 1 else "CPU"
        self.device = "cuda" if self._unit == "GPU" else "cpu"
        self._call = ray.remote(max_retries=_RETRIES, **{f"num_{self._unit.lower()}s": 1})(_on_node)
        self._waiting: dict[Future[Any], Any] = {}

    @property
    def count(self) -> int:
        return max(1, int(self._ray.cluster_resources().get(self._unit, 0)))

    def share(self, tensors: Mapping[str, Tensor]) -> Any:
        return self._ray.put({name: tensor.numpy() for name, tensor in tensors.items()})

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        reference = self._call.remote(function, *arguments)
        future: Future[Any] = reference.future()
        self._waiting[future] = reference
        future.add_done_callback(lambda done: self._waiting.pop(done, None))
        return future

    def renew(self) -> bool:
        """Ray replaces workers itself, and the others go on."""
        return False

    def close(self) -> None:
        for reference in list(self._waiting.values()):
            self._ray.cancel(reference, force=True)
        if self._own:
            self._ray.shutdown()


def _reach(address: str) -> None:
    """An error if nothing listens there: Ray itself would end the whole program after a while."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()


def _on_node(function: Callable[..., Any], /, *arguments: Any) -> Any:
    """Call a function on a worker and add the name of its node."""
    import ray

    result = function(*arguments)
    node = ray.get_runtime_context().get_node_id()[:6]
    return replace(result, node=f"{platform.node()} {node}") if isinstance(result, GroupResult) else result


def workers_of(cluster: str | Executor) -> GivenExecutor | RayWorkers:
    """Workers for what the user gives: "local:N" processes, the address of a Ray cluster, or an executor."""
    if not isinstance(cluster, str):
        if not callable(getattr(cluster, "submit", None)):
            raise SupSupError(
                f'cluster={quoted(cluster)} is not a cluster: give "local:4", the address of a Ray cluster, or an '
                "executor with submit, like those of concurrent.futures"
            )
        return GivenExecutor(cluster)
    if not cluster.startswith("local"):
        return RayWorkers(cluster)
    local = re.fullmatch(r"local:(\d{1,6})", cluster)
    if local is None:
        raise SupSupError(f'cluster={quoted(cluster)} does not say how many processes: "local:4"')
    if not 1 <= int(local[1]) <= _MOST:
        raise SupSupError(f"cluster={quoted(cluster)} asks for {local[1]} processes; give 1 to {_MOST:,}")
    return LocalProcesses(int(local[1]))
