"""The query of task inference: −W ⊙ ∂Obj/∂W_eff at a superposition of masks, one row for each decision.

Its inner product with mask i is −∂Obj/∂αᵢ, so no mask is ever needed as floats. `any_query` works for every module and
defines what is right; `linear_query` is the same for layers that are plain matrix products, without per-row autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from supsup.frozen import FrozenNet

Score = Callable[[Tensor], Tensor]  # outputs [images, s] → one value per image


def query(
    net: FrozenNet, x: Tensor, superposed: Mapping[str, Tensor], score: Score, layers: Sequence[str]
) -> dict[str, Tensor]:
    """For images [r, b, …]: a mapping from each weight named in `layers` to [r, *shape], the mean over b images."""
    if all(isinstance(net.module.get_submodule(name.rpartition(".")[0]), nn.Linear) for name in layers):
        rows = linear_query(net, x, superposed, score, layers)
        if rows is not None:
            return rows
    return any_query(net, x, superposed, score, layers)


def any_query(
    net: FrozenNet, x: Tensor, superposed: Mapping[str, Tensor], score: Score, layers: Sequence[str]
) -> dict[str, Tensor]:
    """Autograd with respect to the effective weights, row by row."""
    effective = net.masked(superposed)
    chosen = [effective[name].requires_grad_() for name in layers]
    rows = []
    for images in x:
        with torch.enable_grad():
            value = score(net.run(images, effective)).mean()
        rows.append(torch.autograd.grad(value, chosen))
    return {name: -net.weights[name] * torch.stack(grads) for name, grads in zip(layers, zip(*rows))}


def linear_query(
    net: FrozenNet, x: Tensor, superposed: Mapping[str, Tensor], score: Score, layers: Sequence[str]
) -> dict[str, Tensor] | None:
    """One pass for all rows: a linear layer's gradient is the product of its output's gradient and its input.

    None where a layer is used more than once or sees anything but one vector per image.
    """
    rows, images = x.shape[:2]
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}

    def watch(name: str) -> Callable[..., Tensor]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            seen[name].append((inputs[0].detach(), output))
            return output.clone()  # what follows may work in place

        return hook

    hooks = [net.module.get_submodule(n.rpartition(".")[0]).register_forward_hook(watch(n)) for n in layers]
    try:
        with torch.enable_grad():
            effective = {name: weight.requires_grad_() for name, weight in net.masked(superposed).items()}
            total = score(net.run(x.flatten(0, 1), effective)).sum() / images
    finally:
        for handle in hooks:
            handle.remove()
    if any(len(calls) != 1 or calls[0][0].shape[:-1] != (rows * images,) for calls in seen.values()):
        return None
    gradients = torch.autograd.grad(total, [seen[name][0][1] for name in layers])
    return {
        name: torch.bmm(gradient.view(rows, images, -1).transpose(1, 2), seen[name][0][0].view(rows, images, -1)).mul_(
            -net.weights[name]
        )
        for name, gradient in zip(layers, gradients)
    }
