"""Networks as plain modules, without masks or tasks: the paper's, a small one and pretrained ones."""

from supsup.nets.fully_connected import FullyConnected as FullyConnected
from supsup.nets.fully_connected import HopMLP as HopMLP
from supsup.nets.fully_connected import fc_1024 as fc_1024
from supsup.nets.fully_connected import hop_mlp as hop_mlp
from supsup.nets.fully_connected import lenet_300_100 as lenet_300_100
from supsup.nets.imagenet import ImageNetwork as ImageNetwork
from supsup.nets.imagenet import efficientnet_lite0 as efficientnet_lite0
from supsup.nets.imagenet import mobilenet_v2 as mobilenet_v2
from supsup.nets.imagenet import resnet50 as resnet50
from supsup.nets.resnet import ResNet as ResNet
from supsup.nets.resnet import gem_resnet18 as gem_resnet18
from supsup.nets.resnet import small_resnet as small_resnet
