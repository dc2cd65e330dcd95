"""Timing, the limits of the machine, and how a measurement is written to tables and JSON files.

A measurement is a frozen dataclass. A field `lone_ms: Annotated[float, "lone image ms"]` is written under the words
given, any other field under its name.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, get_type_hints

import torch

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def as_record(measurement: DataclassInstance) -> dict[str, object]:
    """The figures of a measurement by their words, in order, without those that are None."""
    hints = get_type_hints(type(measurement), include_extras=True)
    record = {}
    for entry in fields(measurement):
        words: str = getattr(hints[entry.name], "__metadata__", (entry.name,))[0]
        value = getattr(measurement, entry.name)
        if value is not None:
            record[words] = value
    return record


@dataclass(frozen=True)
class Machine:
    """Ceilings of a device: bytes moved and operations done per second."""

    bytes_per_second: float  # of a large copy, bytes read plus bytes written
    operations_per_second: float  # of a large matrix product in the precision that training uses

    def floor(self, moved: float, operations: float) -> float:
        """The least seconds for moving so many bytes and doing so many operations, whichever takes longer."""
        return max(moved / self.bytes_per_second, operations / self.operations_per_second)


def measure_machine(device: torch.device) -> Machine:
    """Copy and multiply on this device."""
    gpu = device.type == "cuda"
    source = torch.rand((1 << 31 if gpu else 1 << 28) // 4, device=device)
    target = torch.empty_like(source)
    copied = seconds(lambda: target.copy_(source), device)
    size = 8192 if gpu else 1024
    left, right = (torch.randn(size, size, device=device).to(product_precision(device)) for _ in range(2))
    multiplied = seconds(lambda: left @ right, device)
    return Machine(2 * 4 * source.numel() / copied, 2 * size**3 / multiplied)


def product_precision(device: torch.device) -> torch.dtype:
    """What matrix products of training are taken in on this device."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def seconds(work: Callable[[], object], device: torch.device, repeats: int = 7) -> float:
    """The median time of a piece of work, warmed up."""
    work()
    return statistics.median(once(work, device) for _ in range(repeats))


def once(work: Callable[[], object], device: torch.device) -> float:
    """The time of a piece of work, waiting for the device before and after."""
    _wait(device)
    begin = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - begin


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
