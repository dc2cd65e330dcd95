"""What the masks take in memory, against one bit per weight and task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from supsup.bank import Bank
from supsup.frozen import FrozenNet


def bench_memory(net: nn.Module, counts: Sequence[int], device: torch.device) -> list[dict[str, Any]]:
    """Bytes of a bank of k masks: added one by one (as tasks come), and all at once."""
    shapes = FrozenNet(net, 0, torch.device("cpu")).shapes
    weights = sum(shape.numel() for shape in shapes.values())
    rows = []
    for count in counts:
        grown, filled = Bank(shapes, device), Bank(shapes, device)
        packed = torch.randint(256, (sum(b - a for a, b in grown.spans.values()), 1), dtype=torch.uint8, device=device)
        for _ in range(count):
            grown.add_packed(packed)
        filled.add_packed(packed.expand(-1, count))
        bits = count * weights / 8
        rows.append(
            {
                "k": count,
                "one bit per weight and task": bits,
                "one by one": grown.memory,
                "all at once": filled.memory,
                "float masks": 4 * count * weights,
                "one by one / bits": grown.memory / bits,
            }
        )
    return rows
