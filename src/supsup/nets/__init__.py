"""Networks as plain modules, without masks or tasks: the paper's, a small one and pretrained ones."""

from supsup.nets.fully_connected import FullyConnected, HopMLP, fc_1024, hop_mlp, lenet_300_100
from supsup.nets.imagenet import ImageNetwork, efficientnet_lite0, mobilenet_v2, resnet50
from supsup.nets.resnet import ResNet, gem_resnet18, small_resnet

__all__ = [
    "FullyConnected",
    "HopMLP",
    "ImageNetwork",
    "ResNet",
    "efficientnet_lite0",
    "fc_1024",
    "gem_resnet18",
    "hop_mlp",
    "lenet_300_100",
    "mobilenet_v2",
    "resnet50",
    "small_resnet",
]
