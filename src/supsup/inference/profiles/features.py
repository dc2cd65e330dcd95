"""The numbers that tasks are told apart by: the same for every task, from one pass over an image, no mask in it.

Of pictures, what random filters see (`filters.py`), or what a pretrained network makes of them; of anything else, what
the frozen network without any mask does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d, adaptive_avg_pool2d

from supsup.inference.profiles.filters import PLACES, is_picture, seen_by_filters
from supsup.masks.frozen import FrozenNet
from supsup.runtime.errors import SupSupError


@dataclass(frozen=True)
class Limits:
    """How many features there are, and of how many images and directions what a task keeps of them is made.

    layer, trained_layer  numbers of one layer; where it has more, neighbours are averaged
    filters, directions   fewest and most: more for a larger network
    images                fewest and most that are looked at, where there are as many: more for a larger network
    """

    layer: int = 512
    trained_layer: int = 2048
    filters: tuple[int, int] = (48, 400)
    directions: tuple[int, int] = (32, 128)
    images: tuple[int, int] = (2000, 5000)


LIMITS = Limits()
_BYTES = 20  # of a mask, for each image


@torch.no_grad()
def features(net: FrozenNet, x: Tensor) -> Tensor:
    """[n, numbers] for images [n, …] as the network sees them; an error where one is not finite."""
    found = unchecked_features(net, x)
    if not bool(found.isfinite().all()):
        raise SupSupError("the network without a mask gives numbers that are not finite; give the task: task=…")
    return found


@torch.no_grad()
def unchecked_features(net: FrozenNet, x: Tensor) -> Tensor:
    """`features`, finite or not, so that a GPU is not waited for.

    Of a pretrained network: what enters its last layer. Of pictures: what filters see, more filters for a larger
    network. Of anything else: what enters the last masked layer and what leaves the first, since random layers lose
    more of an input the deeper they are.
    """
    if not net.pretrained and x.is_floating_point() and is_picture(x.shape[1:]):
        filters = _within(LIMITS.filters, _mask_bytes(net) // (80 * PLACES) // 8 * 8)
        return torch.cat([seen_by_filters(piece, filters) for piece in net.pieces(x)])
    return torch.cat([_of_piece(net, piece) for piece in net.pieces(x)])


def directions_for(net: FrozenNet, numbers: int) -> int:
    """In how many directions a task remembers how its images vary: about as many bytes as a mask has."""
    return _within(LIMITS.directions, _mask_bytes(net) // numbers)


def images_for(net: FrozenNet) -> int:
    """How many images a task looks at for that: more where training takes so long that they do not matter."""
    return _within(LIMITS.images, _mask_bytes(net) // _BYTES)


def _within(limits: tuple[int, int], wanted: int) -> int:
    fewest, most = limits
    return max(fewest, min(most, wanted))


def _mask_bytes(net: FrozenNet) -> int:
    return sum(shape.numel() for shape in net.shapes.values()) // 8


def _of_piece(net: FrozenNet, x: Tensor) -> Tensor:
    seen, out = _seen(net, x)
    unclear = any(len(x) in value.shape[1:] for value in seen.values())  # images may lie along another dimension
    if unclear:
        seen, out = _seen(net, torch.cat([x, x[-1:]]))
    most = LIMITS.trained_layer if net.pretrained else LIMITS.layer
    layers = [seen[name] for name in ("first", "last") if name in seen] or [out]
    numbers = torch.cat([_few(layer[: len(x)], most) for layer in layers], 1)
    return numbers.sign() * numbers.abs().sqrt() if net.pretrained else numbers


def _seen(net: FrozenNet, x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """What leaves the first layer and enters the last, where that has a row for each image; the outputs."""
    seen: dict[str, Tensor] = {}
    owners = [name.rpartition(".")[0] for name in net.weights]

    def enters(_: nn.Module, given: tuple[Any, ...]) -> None:
        _take(seen, "last", given, len(x))

    def leaves(_: nn.Module, __: tuple[Any, ...], out: Any) -> None:
        _take(seen, "first", out if isinstance(out, tuple) else (out,), len(x))

    with net.borrowed() as module:
        hooks = [module.get_submodule(owners[-1]).register_forward_pre_hook(enters)]
        if not net.pretrained:
            hooks.append(module.get_submodule(owners[0]).register_forward_hook(leaves))
        try:
            out = net.run(x, net.weights, module)
        finally:
            for hook in hooks:
                hook.remove()
    return seen, out


def _take(seen: dict[str, Tensor], name: str, values: tuple[Any, ...], images: int) -> None:
    """Keep the first value if it has a row for each image; of a layer that runs several times, the last run."""
    if values and isinstance(values[0], Tensor) and values[0].ndim > 1 and len(values[0]) == images:
        value = values[0].detach().float()
        seen[name] = value.relu() if name == "first" else value


def _few(values: Tensor, most: int) -> Tensor:
    """At most so many numbers of each image."""
    if values.ndim == 4 and values[0].numel() > most:
        side = max(1, int((most / values.shape[1]) ** 0.5))
        values = adaptive_avg_pool2d(values, (min(side, values.shape[2]), min(side, values.shape[3])))
    flat = values.flatten(1)
    return flat if flat.shape[1] <= most else adaptive_avg_pool1d(flat[:, None], most)[:, 0]
