"""Task inference among masks of which nothing is known but their number of classes: a bank without a table of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from supsup.data.task import NO_INFO, TaskInfo
from supsup.inference.candidates import Candidates, KnownTask, TaskNetworks, TaskView
from supsup.inference.methods import Inference, choose_tasks
from supsup.inference.profiles import TaskProfile
from supsup.inference.search import CANDIDATES, wanted_bytes
from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet


@dataclass
class _Mask:
    classes: int
    name: str = ""
    info: TaskInfo = NO_INFO
    profile: TaskProfile | None = None


class BareMasks:
    """The table of such masks."""

    version = None

    def __init__(self, count: int, classes: int) -> None:
        self._count, self._mask = count, _Mask(classes)

    def __len__(self) -> int:
        return self._count

    def at(self, index: int) -> KnownTask:
        """The same for each."""
        return self._mask


def infer_indices(
    net: FrozenNet, bank: Bank, x: Tensor, members: Sequence[int] | None, classes: int, how: Inference
) -> Tensor:
    """The index of the mask that each decision of images [r, b, …] falls on."""
    networks = TaskNetworks(net, bank, BareMasks(len(bank), classes))
    return choose_tasks(Candidates(networks, [TaskView(x)], how, members)).chosen


def bytes_read(bank: Bank, layers: Sequence[str], coordinates: int | None = None) -> int:
    """The bytes of masks that a search for one query reads: over these weights, or from few coordinates."""
    size = sum(stop - start for start, stop in (bank.spans[name] for name in layers))
    if coordinates is None:
        return len(bank) * size
    scanned = sum(count for _, _, count in wanted_bytes(bank, layers, coordinates))
    return len(bank) * scanned + min(CANDIDATES, len(bank)) * size
