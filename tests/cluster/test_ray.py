"""A real Ray cluster of three nodes: a worker, a node and the driver are killed, and every task is there."""

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest
import torch

from supsup import SupSupError, load
from supsup.cluster.workers import RayWorkers
from supsup.file.modelfile import ModelFile

pytest.importorskip("ray", reason="Ray is not installed: pip install 'supsup[cluster]'")
TASKS, PATIENCE = 60, 240.0  # seconds, after which a cluster that does not go on is a failure
MEMORY = 80 << 20  # bytes of a node's object store
Value = TypeVar("Value")
DRIVER = Path(__file__).with_name("driver.py")


def _driver() -> ModuleType:
    spec = spec_from_file_location("driver", DRIVER)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes of one core each, which ask nothing outside this machine."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": MEMORY, "include_dashboard": False}
        started = Cluster(initialize_head=True, head_node_args=node)
        try:
            for _ in range(2):
                started.add_node(**node)
            yield started
        finally:
            started.shutdown()


def start(address: str, path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, DRIVER, address, path, str(TASKS)], start_new_session=True)


def committed(path: Path) -> int:
    with ModelFile(path) as file:
        return len(file.names)


def wait_for(condition: Callable[[], Value | None], driver: subprocess.Popen[bytes]) -> Value:
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert driver.poll() is None, "the driver ended early"
        assert time.monotonic() < end, "the cluster does not go on"
        time.sleep(0.02)
    return value


def raylet_of(node: Any) -> int:
    pid: int = node.all_processes["raylet"][0].process.pid
    return pid


def busy_worker(nodes: list[Any]) -> int | None:
    """The process of one of these nodes that trains a group at this moment."""
    raylets = {raylet_of(node) for node in nodes}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent in raylets and b"ray::_on_node" in (folder / "cmdline").read_bytes():
                return int(folder.name)
        except OSError:
            continue
    return None


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are found in /proc")
def test_a_worker_a_node_and_the_driver_are_killed(cluster: Any, tmp_path: Path) -> None:
    ours, path = _driver(), tmp_path / "model.supsup"
    ours.new_model().save(path)
    others = list(cluster.worker_nodes)

    first = start(cluster.address, path)
    try:
        wait_for(lambda: committed(path) >= 4, first)
        os.kill(wait_for(lambda: busy_worker(others), first), signal.SIGKILL)
        wait_for(lambda: committed(path) >= 12, first)
        cluster.remove_node(others[0], allow_graceful=False)
        wait_for(lambda: committed(path) >= 24, first)
    finally:
        first.kill()
        first.wait()
    kept = committed(path)
    assert 24 <= kept < TASKS

    second = start(cluster.address, path)
    assert second.wait(PATIENCE) == 0
    alone, learned = ours.new_model(), load(path, device="cpu")
    alone.learn_many(ours.stream_of(TASKS))
    assert sorted(learned.tasks) == sorted(alone.tasks)
    for name in alone.tasks:
        assert all(torch.equal(bits, learned.mask(name)[weight]) for weight, bits in alone.mask(name).items())


def test_where_no_cluster_is_says_so() -> None:
    """Ray itself would end the whole program."""
    with pytest.raises(SupSupError, match="ray start --head"):
        RayWorkers("127.0.0.1:1")
