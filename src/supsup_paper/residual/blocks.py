"""The blocks of a residual network that computes what its class says."""

from __future__ import annotations

from torch import nn

from supsup.nets.architecture import matches_architecture
from supsup.nets.resnet import BasicBlock, Bottleneck, ResNet


def unmodified_blocks(module: nn.Module) -> list[BasicBlock | Bottleneck] | None:
    """The blocks of a `ResNet` that computes what its class says; None for any other module."""
    if not isinstance(module, ResNet) or not matches_architecture(module):
        return None
    return [block for block in module.stages.modules() if isinstance(block, BasicBlock | Bottleneck)]
