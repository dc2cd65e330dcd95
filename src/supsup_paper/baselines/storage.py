"""How the paper counts bytes, found from its figures for SplitCIFAR100 (docs/baselines.md): 4 for every trained number.

What comes from a seed is free. Normalisation counts 4 bytes per channel and task.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor, nn

_BYTES = 4


def weight_bytes(
    state: Mapping[str, Tensor], without: Collection[str] = (), keep: Collection[str] | None = None
) -> int:
    """Bytes of the named tensors of a state: all but some, or some only."""
    chosen = [value for name, value in state.items() if name not in without and (keep is None or name in keep)]
    return _BYTES * sum(value.numel() for value in chosen)


def statistics_bytes(net: nn.Module) -> int:
    """Bytes of one set of running statistics, as the paper counts them for the baselines: one number a channel."""
    norms = [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    return _BYTES * sum(m.num_features for m in norms)
