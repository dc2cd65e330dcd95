"""What the frozen network without any mask makes of images: the same numbers for every task, from one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d, adaptive_avg_pool2d

from supsup.errors import SupSupError
from supsup.frozen import FrozenNet

MOST = 512  # numbers of one layer; where it has more, neighbours are averaged


@torch.no_grad()
def features(net: FrozenNet, x: Tensor) -> Tensor:
    """[n, numbers] for images [n, …] as the network sees them.

    What enters the last masked layer; for weights from a seed also what leaves the first one, since random layers lose
    more of an image the deeper they are.
    """
    return torch.cat([_of_piece(net, piece) for piece in net.pieces(x)])


def _of_piece(net: FrozenNet, x: Tensor) -> Tensor:
    seen, out = _seen(net, x)
    unclear = any(len(x) in value.shape[1:] for value in seen.values())  # images may lie along another dimension
    if unclear:
        seen, out = _seen(net, torch.cat([x, x[-1:]]))
    found = [_few(seen[name][: len(x)]) for name in ("first", "last") if name in seen] or [_few(out[: len(x)])]
    numbers = torch.cat(found, 1)
    if not bool(numbers.isfinite().all()):
        raise SupSupError("the network without a mask gives numbers that are not finite; give the task: task=…")
    return numbers


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


def _few(values: Tensor) -> Tensor:
    """At most `MOST` numbers of each image."""
    if values.ndim == 4 and values[0].numel() > MOST:
        side = max(1, int((MOST / values.shape[1]) ** 0.5))
        values = adaptive_avg_pool2d(values, (min(side, values.shape[2]), min(side, values.shape[3])))
    flat = values.flatten(1)
    return flat if flat.shape[1] <= MOST else adaptive_avg_pool1d(flat[:, None], MOST)[:, 0]
