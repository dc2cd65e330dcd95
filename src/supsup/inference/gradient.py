"""The query of task inference: −W ⊙ ∂Obj/∂W_eff at a superposition of masks, one row for each decision.

Its inner product with mask i is −∂Obj/∂αᵢ, so no mask is ever needed as floats. `WAYS` are tried in order, and each
says what it takes by what the module holds. The last, `any_query`, takes every module and defines what is right.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from supsup.inference import objectives
from supsup.inference.search import Outer, Query
from supsup.kernels import available
from supsup.masks.frozen import ATTENTION, FrozenNet
from supsup.nets import FullyConnected, HopMLP, ResNet
from supsup.nets.resnet import BasicBlock, Bottleneck
from supsup.nets.structure import untouched
from supsup.runtime.interrupts import uninterrupted

if available.NUMBA:
    from supsup.kernels import numba_query
if available.TRITON:
    from supsup.kernels import triton_query

_IN_KERNELS = ("H", "G")  # objectives whose gradients kernels compute
_SIDE_BY_SIDE = 128  # images whose rows are taken together by `vectorised_query`
# Modules that neither read a number back from the GPU nor let it decide what is done next.
_CAPTURABLE = (
    *(nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.ReLU, nn.Flatten, nn.Identity),
    *(nn.Sequential, nn.ModuleList, FullyConnected, HopMLP, ResNet, BasicBlock, Bottleneck),
)
# By network and layers, whether rows can be computed at once: always, never, or with another kernel of attention.
_VECTORISED: WeakKeyDictionary[FrozenNet, dict[tuple[str, ...], Literal["always", "never", "attention"]]]
_VECTORISED = WeakKeyDictionary()


@dataclass(frozen=True)
class Goal:
    """What is minimised: an objective's name and the number of real classes."""

    objective: str
    classes: int

    def values(self, outputs: Tensor) -> Tensor:
        """One value per image."""
        return objectives.OBJECTIVES[self.objective](outputs, self.classes)

    def gradient(self, outputs: Tensor) -> Tensor:
        """The derivative of each image's value by its outputs."""
        return objectives.gradient(self.objective, outputs, self.classes)


def query(net: FrozenNet, x: Tensor, superposed: Mapping[str, Tensor], goal: Goal, layers: Sequence[str]) -> Query:
    """For images [r, b, …]: a mapping from each weight named in `layers` to [r, *shape], the mean over b images."""
    for way in WAYS:
        if way.takes(net, x, layers):
            rows = way.query(net, x, superposed, goal, layers)
            if rows is not None:
                return rows
    raise AssertionError("the last way takes every module")


def can_be_captured(net: FrozenNet) -> bool:
    """Whether a query of this network can be captured in a CUDA graph: all its parts are known to allow it."""
    return all(type(part) in _CAPTURABLE and untouched(part) for part in net.module.modules())


@dataclass(frozen=True)
class Way:
    """One way to a query: what it takes, and how; None where only running the module shows that it cannot."""

    takes: Callable[[FrozenNet, Tensor, Sequence[str]], bool]
    query: Callable[[FrozenNet, Tensor, Mapping[str, Tensor], Goal, Sequence[str]], Query | None]


def any_query(net: FrozenNet, x: Tensor, superposed: Mapping[str, Tensor], goal: Goal, layers: Sequence[str]) -> Query:
    """Autograd with respect to the effective weights, row by row."""
    effective = net.masked(superposed)
    chosen = [effective[name].requires_grad_() for name in layers]
    rows = []
    for images in x:
        with torch.enable_grad():
            value = goal.values(net.run(images, effective)).mean()
        rows.append(torch.autograd.grad(value, chosen))
    return {name: -net.weights[name] * torch.stack(grads) for name, grads in zip(layers, zip(*rows))}


def vectorised_query(
    net: FrozenNet, x: Tensor, superposed: Mapping[str, Tensor], goal: Goal, layers: Sequence[str]
) -> Query | None:
    """The same for several rows at a time.

    None where the module does what torch cannot do for several rows, or only slowly.
    """
    effective = net.masked(superposed)
    chosen = {name: effective.pop(name) for name in layers}

    def value(weights: dict[str, Tensor], images: Tensor) -> Tensor:
        return goal.values(net.run(images, effective | weights)).mean()

    together = max(1, _SIDE_BY_SIDE // x.shape[1])
    rows = several(net, layers, lambda: vmap(grad(value), in_dims=(None, 0), chunk_size=together)(chosen, x))
    return None if rows is None else {name: -net.weights[name] * rows[name] for name in layers}


def several(
    net: FrozenNet, layers: Sequence[str], compute: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor] | None:
    """What torch computes for several rows of a network at once; None where it cannot, or only slowly.

    Most kernels of attention are not for several rows. Which one is used is a setting of the whole process, as is what
    becomes of torch's warning that it is slow: both are changed alone, and only for networks that need it.
    """
    known = _VECTORISED.setdefault(net, {})
    way = known.get(tuple(layers))
    if way == "never" or (way != "always" and ATTENTION.held):  # inside a pass that relies on the setting
        return None
    if way == "always":
        with suppress(RuntimeError, UserWarning), uninterrupted():  # torch would stay at a level of its own
            return compute()
        return None
    with ATTENTION.writing(), warnings.catch_warnings():
        warnings.filterwarnings("error", "There is a performance drop")
        if way is None:
            with suppress(RuntimeError, UserWarning):
                rows = compute()
                known[tuple(layers)] = "always"
                return rows
        with suppress(RuntimeError, UserWarning), sdpa_kernel(SDPBackend.MATH):
            rows = compute()
            known[tuple(layers)] = "attention"
            return rows
    known.setdefault(tuple(layers), "never")
    return None


def linear_query(
    net: FrozenNet, x: Tensor, superposed: Mapping[str, Tensor], goal: Goal, layers: Sequence[str]
) -> Query | None:
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

    with net.borrowed() as module, torch.enable_grad():
        hooks = [_layer(module, name).register_forward_hook(watch(name)) for name in layers]
        try:
            effective = net.masked(superposed)
            for name in layers:
                effective[name].requires_grad_()
            total = goal.values(net.run(x.flatten(0, 1), effective, module)).sum() / images
        finally:
            for handle in hooks:
                handle.remove()
    if any(len(calls) != 1 or calls[0][0].shape[:-1] != (rows * images,) for calls in seen.values()):
        return None
    gradients = torch.autograd.grad(-total, [seen[name][0][1] for name in layers])
    return {
        name: Outer(net.weights[name], gradient.view(rows, images, -1), seen[name][0][0].view(rows, images, -1))
        for name, gradient in zip(layers, gradients)
    }


def fully_connected_query(
    net: FrozenNet, x: Tensor, superposed: Mapping[str, Tensor], goal: Goal, layers: Sequence[str]
) -> Query:
    """Forward and backward by hand, down to the lowest layer asked for."""
    rows, images = x.shape[:2]
    effective = net.masked(superposed)
    names = list(effective)
    inputs = [x.reshape(rows * images, -1)]
    for name in names[:-1]:
        inputs.append((inputs[-1] @ effective[name].T).relu_())
    delta = goal.gradient(inputs[-1] @ effective[names[-1]].T).div_(-images)
    out: dict[str, Tensor | Outer] = {}
    lowest = min(names.index(name) for name in layers)
    for i in reversed(range(lowest, len(names))):
        if names[i] in layers:
            d, h = delta.view(rows, images, -1), inputs[i].view(rows, images, -1)
            out[names[i]] = Outer(net.weights[names[i]], d, h)
        if i > lowest:
            delta = (delta @ effective[names[i]]).mul_(inputs[i] > 0)
    return {name: out[name] for name in layers}


def lone_query(
    net: FrozenNet, x: Tensor, superposed: Mapping[str, Tensor], goal: Goal, layers: Sequence[str]
) -> Query | None:
    """The same for one image on a GPU, by kernels; None for an objective that they do not know."""
    return _by_kernels(triton_query.lone_query, net, x, superposed, goal, layers)


def compiled_query(
    net: FrozenNet, x: Tensor, superposed: Mapping[str, Tensor], goal: Goal, layers: Sequence[str]
) -> Query | None:
    """The same for one image on a CPU, by compiled loops."""
    return _by_kernels(numba_query.lone_query, net, x, superposed, goal, layers)


def _by_kernels(
    kernels: Callable[..., tuple[list[Tensor], list[Tensor]]],
    net: FrozenNet,
    x: Tensor,
    superposed: Mapping[str, Tensor],
    goal: Goal,
    layers: Sequence[str],
) -> Query | None:
    if goal.objective not in _IN_KERNELS:
        return None
    names, weights = list(net.weights), list(net.weights.values())
    if goal.objective == "G":
        objectives.need_superfluous(len(weights[-1]), goal.classes)
    lowest = min(names.index(name) for name in layers)
    means = [superposed[name] for name in names]
    deltas, inputs = kernels(x.flatten(), weights, means, goal.objective, goal.classes, lowest)
    factors = dict(zip(names[lowest:], zip(weights[lowest:], deltas, inputs)))
    return {name: Outer(factors[name][0], *(each.view(1, 1, -1) for each in factors[name][1:])) for name in layers}


def _is_lone(net: FrozenNet, x: Tensor, kind: str) -> bool:
    return x.device.type == kind and x.shape[:2] == (1, 1) and net.is_fully_connected


def _layer(module: nn.Module, weight: str) -> nn.Module:
    return module.get_submodule(weight.rpartition(".")[0])


def _plain_product(layer: nn.Module) -> bool:
    """Whether a layer's output is its input times its weight, with at most a bias."""
    return isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward and untouched(layer)


WAYS: tuple[Way, ...] = (
    Way(lambda net, x, layers: available.TRITON and _is_lone(net, x, "cuda"), lone_query),
    Way(lambda net, x, layers: available.NUMBA and _is_lone(net, x, "cpu"), compiled_query),
    Way(lambda net, x, layers: net.is_fully_connected, fully_connected_query),
    Way(lambda net, x, layers: all(_plain_product(_layer(net.module, name)) for name in layers), linear_query),
    Way(lambda net, x, layers: len(x) > 1 and x.shape[1] <= _SIDE_BY_SIDE // 2, vectorised_query),
    Way(lambda net, x, layers: True, any_query),
)
