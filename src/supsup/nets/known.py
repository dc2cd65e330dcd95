"""Layers of which it is known what running them does: who runs others must expect anything."""

from __future__ import annotations

from torch import nn

from supsup.nets.fully_connected import FullyConnected
from supsup.nets.hop_mlp import HopMLP
from supsup.nets.imagenet import ImageNetwork, InvertedResidual, PaddedAtTheEnd
from supsup.nets.resnet import BasicBlock, Bottleneck, ResNet
from supsup.nets.structure import untouched

# Layers that draw no random numbers, use no attention and keep nothing between two passes but statistics.
_KNOWN = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Flatten, nn.Unflatten, nn.Identity, nn.Sequential, nn.ModuleList),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Tanh, nn.Sigmoid, nn.Softmax),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
    *(FullyConnected, HopMLP, ResNet, BasicBlock, Bottleneck, ImageNetwork, InvertedResidual, PaddedAtTheEnd),
)


def known_throughout(module: nn.Module) -> bool:
    """Whether every part is a known layer or network with nothing added: running it does nothing but compute."""
    return all(type(part) in _KNOWN and untouched(part) for part in module.modules())
