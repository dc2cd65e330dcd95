"""Workers of a Ray cluster: one for each GPU, or for each core where there is none.

Ray notices when a worker or a node is gone and gives its work to others; nodes may join and leave at any time.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from torch import Tensor

from supsup.cluster.worker import GroupResult
from supsup.runtime.errors import SupSupError, printable

_PATIENCE = 10.0  # seconds for a cluster to answer
_RETRIES = 10  # of a group whose worker or node is gone, by Ray itself


class RayWorkers:
    """The cluster at an address ("auto": the one that runs on this machine)."""

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
        needs = {"num_gpus": 1} if self._unit == "GPU" else {"num_cpus": 1}
        self._call = ray.remote(max_retries=_RETRIES, **needs)(_on_node)
        self._waiting: dict[Future[Any], Any] = {}

    @property
    def device(self) -> str:
        """The kind of device that they train on."""
        return "cuda" if self._unit == "GPU" else "cpu"

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
