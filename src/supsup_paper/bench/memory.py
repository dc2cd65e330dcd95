"""What the masks take in memory, against one bit per weight and task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import nn

from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet


@dataclass(frozen=True)
class MemoryMeasurement:
    """Bytes of a bank of so many masks."""

    tasks: Annotated[int, "k"]
    bits: Annotated[float, "one bit per weight and task"]
    one_by_one: Annotated[int, "one by one"]
    all_at_once: Annotated[int, "all at once"]
    float_masks: Annotated[int, "float masks"]
    one_by_one_by_bits: Annotated[float, "one by one / bits"]


def bench_memory(net: nn.Module, counts: Sequence[int], device: torch.device) -> list[MemoryMeasurement]:
    """Bytes of a bank of k masks: added one by one (as tasks come), and all at once."""
    shapes = FrozenNet(net, 0, torch.device("cpu")).shapes
    weights = sum(shape.numel() for shape in shapes.values())
    measurements = []
    for count in counts:
        grown, filled = Bank(shapes, device), Bank(shapes, device)
        packed = torch.randint(256, (sum(b - a for a, b in grown.spans.values()), 1), dtype=torch.uint8, device=device)
        for _ in range(count):
            grown.add_packed(packed)
        filled.add_packed(packed.expand(-1, count))
        bits = count * weights / 8
        measurements.append(
            MemoryMeasurement(
                tasks=count,
                bits=bits,
                one_by_one=grown.memory,
                all_at_once=filled.memory,
                float_masks=4 * count * weights,
                one_by_one_by_bits=grown.memory / bits,
            )
        )
    return measurements
