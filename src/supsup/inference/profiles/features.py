"""Features, by which tasks are recognised: numbers that describe an input, the same for every task, without a mask.

Vectors (rows of a table, embeddings, hashed text) are taken as they are.
Pictures are described by random filters, or by what a pretrained network makes of them; any other input by what the
frozen network without a mask does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d, adaptive_avg_pool2d, avg_pool2d, conv2d, interpolate, pad

from supsup.kernels import available
from supsup.masks import philox
from supsup.masks.frozen import FrozenNet
from supsup.nets.trained import MOST_TRAINED, trained_features
from supsup.runtime.devices import on_device
from supsup.runtime.errors import SupSupError

if available.NUMBA:
    from supsup.kernels import numba_filters

_PLACES = 8  # features of a filter: its positive and its negative responses in each quarter of the picture
_LARGEST_SIDE, _SMALLEST_SIDE = 32, 12  # pixels along a side of pictures, after resizing
_FILTERS = Path(__file__).with_name("filters.safetensors")  # made by `python -m benchmarks make_filters`
_GREY_MARGIN = 2  # pixels that are repeated around grey pictures
_FAINT, _THRESHOLD = 0.1, 1.0  # contrast that counts as little; threshold of a response, in deviations
_CPU_RESPONSES, _GPU_FACTOR = 1 << 20, 256  # responses in memory: about a CPU's cache; this many times more on a GPU


@dataclass(frozen=True)
class ProfileSize:
    """How large profiles are: how many features and directions they have, and how many images they are made of.

    layer, trained        most numbers: of one layer, of a larger one neighbours are averaged; of a pretrained network,
                          those of its last layers
    filled                random features join those of a pretrained network, until there are so many
    filters, directions   fewest and most: more for a larger network
    images                fewest and most that are used, if there are as many: more for a larger network
    mirrored              features of coloured pictures are averaged with those of their mirror images
    masks                 most bytes, in coded masks; class means are kept in any case
    """

    layer: int = 512
    trained: int = MOST_TRAINED
    filled: int = 0
    filters: tuple[int, int] = (96, 400)
    directions: tuple[int, int] = (32, 128)
    images: tuple[int, int] = (2000, 5000)
    mirrored: bool = False
    masks: float = 2.0


SIZES = {
    "small": ProfileSize(trained=1600, directions=(0, 128), masks=0.4),
    "default": ProfileSize(),
    "large": ProfileSize(filled=16_384, filters=(400, 1600), directions=(128, 512), mirrored=True, masks=math.inf),
}


@torch.no_grad()
def extract_features(net: FrozenNet, x: Tensor, *, check: bool = True) -> Tensor:
    """[n, features] for preprocessed images [n, …], or for what `FrozenNet.describe` makes of them.

    Of a pretrained network: the inputs of its last layers. Of vectors: themselves. Of pictures: responses of filters,
    more filters for a larger network. Of anything else: the input of the last masked layer and the output of the first,
    since random layers lose more of an input the deeper they are.

    check  an error where one is not finite; False: nothing waits for a GPU
    """
    found = x.float() if is_vector(net, x) else torch.cat([_features(net, piece) for piece in net.pieces(x)])
    if check and not bool(found.isfinite().all()):
        raise SupSupError("the network without a mask gives numbers that are not finite; give the task: task=…")
    return found


def _features(net: FrozenNet, x: Tensor) -> Tensor:
    size = profile_size(net)
    if net.pretrained:
        return filled(_trained_features(net, x)[:, -size.trained :], size.filled)
    if not (x.is_floating_point() and is_picture(x.shape[1:])):
        return _layer_features(net, x)
    return picture_features(x, filter_count(net), size.mirrored)


def is_vector(net: FrozenNet, x: Tensor) -> bool:
    """Whether these inputs [n, …] are vectors for a network without trained weights."""
    return not net.pretrained and x.is_floating_point() and x.ndim == 2


def profile_size(net: FrozenNet) -> ProfileSize:
    """How large the profiles of a network's tasks are."""
    return SIZES[net.profile_size]


def filter_count(net: FrozenNet) -> int:
    """How many filters describe pictures: more for a larger network."""
    return within(mask_bytes(net) // (80 * _PLACES) // 8 * 8, profile_size(net).filters)


def within(value: int, limits: tuple[int, int]) -> int:
    """The number, or the limit that it is beyond."""
    fewest, most = limits
    return max(fewest, min(most, value))


def mask_bytes(net: FrozenNet) -> int:
    """Bytes of one mask, on which the size of a profile depends."""
    return sum(shape.numel() for shape in net.shapes.values()) // 8


def _trained_features(net: FrozenNet, x: Tensor) -> Tensor:
    if net.described:
        return net.describe(x)[:, : net.described]
    with net.borrowed() as module:
        return trained_features(module, partial(net.run, x, net.weights, module))


def filled(features: Tensor, most: int) -> Tensor:
    """Features [n, d], then random ones until there are so many: absolute values of their sums with random signs.

    Of the labels of held-back images of SplitCIFAR100, EfficientNet-Lite0's 6,976 found 74.1 %, with these 75.9.
    """
    count = most - features.shape[1]
    if count <= 0:
        return features
    signs = on_device(_random_signs(features.shape[1], count), features.device)
    return torch.cat([features, (features @ signs).abs() / features.shape[1] ** 0.5], 1)


@cache
def _random_signs(rows: int, columns: int) -> Tensor:
    """The same matrix of +1 and −1 everywhere: for a pretrained network about 260 MB."""
    words = philox.words(0, ["profile features"], -(-rows * columns // 32))[0]
    bits = torch.stack([words >> bit & 1 for bit in range(32)], 1).flatten()[: rows * columns]
    return 1 - 2 * bits.view(rows, columns).float()


def _layer_features(net: FrozenNet, x: Tensor) -> Tensor:
    layers, out = _first_and_last(net, x)
    unclear = any(len(x) in value.shape[1:] for value in layers.values())  # images may lie along another dimension
    if unclear:
        layers, out = _first_and_last(net, torch.cat([x, x[-1:]]))
    used = [layers[name] for name in ("first", "last") if name in layers] or [out]
    return torch.cat([_pooled(layer[: len(x)], profile_size(net).layer) for layer in used], 1)


def _first_and_last(net: FrozenNet, x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The first layer's output and the last one's input, if they have a row for each image; and the outputs."""
    found: dict[str, Tensor] = {}
    owners = [name.rpartition(".")[0] for name in net.weights]

    def take(name: str, _: nn.Module, *passed: Any) -> None:  # of a layer that runs several times, the last run
        values = passed[-1] if isinstance(passed[-1], tuple) else passed[-1:]  # all inputs or, after it, all outputs
        if values and isinstance(values[0], Tensor) and values[0].ndim > 1 and len(values[0]) == len(x):
            value = values[0].detach().float()
            found[name] = value.relu() if name == "first" else value

    with (
        net.borrowed() as module,
        module.get_submodule(owners[-1]).register_forward_pre_hook(partial(take, "last")),
        module.get_submodule(owners[0]).register_forward_hook(partial(take, "first")),
    ):
        return found, net.run(x, net.weights, module)


def _pooled(values: Tensor, most: int) -> Tensor:
    """At most this many numbers of each image."""
    if values.ndim == 4 and values[0].numel() > most:
        side = max(1, int((most / values.shape[1]) ** 0.5))
        values = adaptive_avg_pool2d(values, (min(side, values.shape[2]), min(side, values.shape[3])))
    flat = values.flatten(1)
    return flat if flat.shape[1] <= most else adaptive_avg_pool1d(flat[:, None], most)[:, 0]


def is_picture(shape: torch.Size | tuple[int, ...]) -> bool:
    """Whether filters can be used on inputs of this shape, [channels, height, width]."""
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= _SMALLEST_SIDE


def picture_features(pictures: Tensor, filters: int, mirrored: bool) -> Tensor:
    """Responses of filters; `mirrored`: for coloured pictures the mean with those of their mirror images."""
    found = filter_features(pictures, filters)
    if not mirrored or pictures.shape[1] == 1:
        return found
    return (found + filter_features(pictures.flip(-1), filters)) / 2


def filter_features(pictures: Tensor, filters: int) -> Tensor:
    """Responses of fixed filters for pictures [n, channels, height, width]: [n, 8 · filters].

    One layer of small patches, nothing of it learned: patches of synthetic pen strokes for grey pictures, of synthetic
    leaves for coloured ones. They are whitened, so edges and colours count and brightness does not. Scaling pixels
    hardly matters.
    """
    height, width = pictures.shape[-2:]
    if max(height, width) > _LARGEST_SIDE:
        shrunk = [max(_SMALLEST_SIDE, round(side * _LARGEST_SIDE / max(height, width))) for side in (height, width)]
        pictures = interpolate(pictures.float(), shrunk, mode="area")
    grey = pictures.shape[1] == 1
    pictures = pad(pictures.float(), (_GREY_MARGIN,) * 4, mode="replicate") if grey else pictures.float()
    weights = on_device(_filters("grey" if grey else "colours", filters), pictures.device)
    if torch.compiler.is_compiling():  # exported as ONNX
        return _responses(pictures, weights).flatten(1).sqrt()
    at_once = max(1, _CPU_RESPONSES // (filters * pictures[0, 0].numel()))
    if pictures.device.type != "cpu":
        at_once *= _GPU_FACTOR
    if available.NUMBA and pictures.device.type == "cpu" and grey:
        lines = pictures.detach()[:, 0].contiguous()
        found = numba_filters.numba_filter_responses(lines, weights[:, 0], _FAINT, _THRESHOLD, at_once)
    else:
        found = torch.cat([_responses(piece, weights) for piece in pictures.split(at_once)])
    return found.flatten(1).sqrt()


def _responses(x: Tensor, weights: Tensor) -> Tensor:
    """[n, 2 · filters, 2, 2]: mean response above the threshold in each quarter, positive ones and negative ones."""
    side = weights.shape[-1]
    level, square = (avg_pool2d(part.mean(1, keepdim=True), side, stride=1) for part in (x, x.square()))
    contrast = ((square - level.square()).clamp(min=0) + _FAINT**2).sqrt()
    responses = conv2d(x, weights).div_(contrast)
    positive = adaptive_avg_pool2d((responses - _THRESHOLD).relu_(), 2)
    negative = adaptive_avg_pool2d(responses.neg_().sub_(_THRESHOLD).relu_(), 2)
    return torch.cat([positive, negative], 1)


@cache
def _filters(kind: str, count: int) -> Tensor:
    """[count, channels, side, side], whose responses to synthetic pictures have deviation 1."""
    found = load_file(_FILTERS)
    weights = found[kind][:count].float()
    weights = weights - weights.mean((1, 2, 3), keepdim=True)
    return weights / found[f"{kind} deviations"][:count, None, None, None]
