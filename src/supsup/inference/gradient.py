"""Gradients of task inference: the query −W ⊙ ∂Obj/∂W_eff at a superposition of masks, and −∂Obj/∂α.

−∂Obj/∂αᵢ is the inner product of the query with mask i, so no mask is ever needed as floats. `query_functions` are
tried in order. The last, `any_query`, takes every module and defines what is right.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from supsup.inference import objectives, search
from supsup.inference.search import Outer, Query
from supsup.kernels import available
from supsup.masks.bank import Bank
from supsup.masks.frozen import ATTENTION, FrozenNet
from supsup.nets import FullyConnected, HopMLP, ResNet
from supsup.nets.architecture import has_plain_forward
from supsup.nets.resnet import BasicBlock, Bottleneck
from supsup.runtime.errors import SupSupError
from supsup.runtime.interrupts import uninterrupted

ONE_IMAGE_KERNELS: dict[str, Callable[..., tuple[list[Tensor], list[Tensor]]]] = {}  # by type of device
if available.NUMBA:
    from supsup.kernels.numba_search import numba_lone_query

    ONE_IMAGE_KERNELS["cpu"] = numba_lone_query
if available.TRITON:
    from supsup.kernels.triton_search import triton_lone_query

    ONE_IMAGE_KERNELS["cuda"] = triton_lone_query

_IN_KERNELS = ("H", "G")  # objectives whose gradients the kernels compute
_VECTORISED_IMAGES = 128  # images per chunk of `vectorised_query`
# Modules that neither read a number back from the GPU nor branch on one.
_CAPTURABLE = (
    *(nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.ReLU, nn.Flatten, nn.Identity),
    *(nn.Sequential, nn.ModuleList, FullyConnected, HopMLP, ResNet, BasicBlock, Bottleneck),
)
# By network and layers: can torch vectorise the rows? Always, never, or only with the plain kernel for attention.
_VECTORISED: WeakKeyDictionary[FrozenNet, dict[tuple[str, ...], Literal["always", "never", "attention"]]]
_VECTORISED = WeakKeyDictionary()
_SLOW = "There is a performance drop"  # how torch's warning begins where it vectorises by a loop
_NOT_THE_MODULE = re.compile("out of memory|can't allocate memory|CUDA error|CUBLAS|cuDNN error")


class Goal(NamedTuple):
    """What is minimised: an objective's name and the number of real classes."""

    objective: str
    classes: int

    def values(self, outputs: Tensor) -> Tensor:
        """One value per image."""
        return objectives.OBJECTIVES[self.objective](outputs, self.classes)


# An implementation of `query`; it may give None where only running the module shows that it cannot answer.
QueryFunction = Callable[[FrozenNet, Tensor, Mapping[str, Tensor], Goal, Sequence[str]], Query | None]


def choose_layers(net: FrozenNet, layers: str | Sequence[str]) -> list[str]:
    """Names of the weights whose gradients count."""
    names = list(net.weights)
    if isinstance(layers, str):
        known = {"all": names, "first": names[:1], "last": names[-1:]}
        if layers not in known:
            raise SupSupError(f"unknown layers {layers!r}; use 'all', 'first', 'last' or names from {names}")
        return known[layers]
    unknown = set(layers) - set(names)
    if unknown or not layers:
        raise SupSupError(f"unknown layers {sorted(unknown)}; the network's weights are {names}")
    return [name for name in names if name in set(layers)]


def alpha_gradient(
    net: FrozenNet, bank: Bank, x: Tensor, alpha: Tensor | None, goal: Goal, layers: Sequence[str]
) -> Tensor:
    """−∂Obj/∂αᵢ at the superposition with coefficients α [k] (None: 1/k each), for each decision: [r, k]."""
    superposed = bank.superposition(alpha)
    pieces = x.split(search.rows_at_once(bank, layers))
    return torch.cat([search.inner(query(net, piece, superposed, goal, layers), bank) for piece in pieces])


def query(net: FrozenNet, x: Tensor, superposed: Mapping[str, Tensor], goal: Goal, layers: Sequence[str]) -> Query:
    """For images [r, b, …]: by weight in `layers`, the mean over b images as [r, *shape] or as factors."""
    tried = (function(net, x, superposed, goal, layers) for function in query_functions(net, x, layers))
    return next(rows for rows in tried if rows is not None)


def query_functions(net: FrozenNet, x: Tensor, layers: Sequence[str]) -> Iterator[QueryFunction]:
    """The implementations of `query` for these images, the fastest first; where one gives None, the next answers."""
    if net.is_fully_connected and x.device.type in ONE_IMAGE_KERNELS and x.shape[:2] == (1, 1):
        yield kernel_query
    if net.is_fully_connected:
        yield fully_connected_query
    if all(_is_plain_product(_layer(net.module, name)) for name in layers):
        yield linear_query
    if len(x) > 1 and x.shape[1] <= _VECTORISED_IMAGES // 2:
        yield vectorised_query
    yield any_query


def can_be_captured(net: FrozenNet) -> bool:
    """Whether a CUDA graph can capture a query: every part of the module is known to allow it."""
    return all(type(part) in _CAPTURABLE and has_plain_forward(part) for part in net.module.modules())


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
    """Several rows at a time by `vmap`; None for a module that torch cannot vectorise, or only slowly.

    torch has no error class for that: GRU, for one, fails with a plain RuntimeError about shapes. So the error means
    "cannot vectorise" only where row by row works. An error of the module itself comes up again there and is raised.
    Errors of memory or of the device are raised at once.
    """
    effective = net.masked(superposed)
    chosen = {name: effective.pop(name) for name in layers}

    def value(weights: dict[str, Tensor], images: Tensor) -> Tensor:
        return goal.values(net.run(images, effective | weights)).mean()

    def compute() -> dict[str, Tensor]:
        chunk = max(1, _VECTORISED_IMAGES // x.shape[1])
        rows: dict[str, Tensor] = vmap(grad(value), in_dims=(None, 0), chunk_size=chunk)(chosen, x)
        return {name: -net.weights[name] * rows[name] for name in layers}

    known, key = _VECTORISED.setdefault(net, {}), tuple(layers)
    mode = known.get(key)
    if mode == "never" or (mode != "always" and ATTENTION.held):  # inside a pass that relies on the setting
        return None
    if mode == "always":
        with uninterrupted():  # an interrupt would leave torch inside the transform
            return _if_vectorised(compute)
    # Most kernels for attention cannot be vectorised. Which kernel is used, and whether torch's warning is an error,
    # are settings of the whole process: they are changed under a lock, and only for networks that need it.
    with ATTENTION.writing(), warnings.catch_warnings():
        warnings.filterwarnings("error", _SLOW)
        if mode is None and (rows := _if_vectorised(compute)) is not None:
            known[key] = "always"
            return rows
        with sdpa_kernel(SDPBackend.MATH):
            if (rows := _if_vectorised(compute)) is not None:
                known[key] = "attention"
                return rows
    plain = any_query(net, x, superposed, goal, layers)  # an error here is the module's own
    known.setdefault(key, "never")
    return plain


def _if_vectorised(compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor] | None:
    """The result; None for an error that may come from vectorising. Others, as those of memory, are raised."""
    try:
        return compute()
    except UserWarning as warning:
        if not str(warning).startswith(_SLOW):
            raise
    except RuntimeError as error:
        if type(error) not in (RuntimeError, NotImplementedError) or _NOT_THE_MODULE.search(str(error)):
            raise
    return None


def linear_query(
    net: FrozenNet, x: Tensor, superposed: Mapping[str, Tensor], goal: Goal, layers: Sequence[str]
) -> Query | None:
    """One pass for all rows: a linear layer's gradient is the product of its output's gradient and its input.

    None where a layer is used more than once or gets anything but one vector per image.
    """
    rows, images = x.shape[:2]
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}

    def record(name: str, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        calls[name].append((inputs[0].detach(), output))
        return output.clone()  # the next layer may work in place

    with net.borrowed() as module, torch.enable_grad(), ExitStack() as hooks:
        effective = net.masked(superposed)
        for name in layers:
            hooks.enter_context(_layer(module, name).register_forward_hook(partial(record, name)))
            effective[name].requires_grad_()
        total = goal.values(net.run(x.flatten(0, 1), effective, module)).sum() / images
    if any(len(each) != 1 or each[0][0].shape[:-1] != (rows * images,) for each in calls.values()):
        return None
    gradients = torch.autograd.grad(-total, [calls[name][0][1] for name in layers])
    return {
        name: Outer(net.weights[name], gradient.view(rows, images, -1), calls[name][0][0].view(rows, images, -1))
        for name, gradient in zip(layers, gradients)
    }


def fully_connected_query(
    net: FrozenNet, x: Tensor, superposed: Mapping[str, Tensor], goal: Goal, layers: Sequence[str]
) -> Query:
    """Forward and backward by hand, down to the lowest layer in `layers`."""
    rows, images = x.shape[:2]
    effective = net.masked(superposed)
    names = list(effective)
    inputs = [x.reshape(rows * images, -1)]
    for name in names[:-1]:
        inputs.append((inputs[-1] @ effective[name].T).relu_())
    outputs = inputs[-1] @ effective[names[-1]].T
    delta = objectives.gradient(goal.objective, outputs, goal.classes).div_(-images)
    out: dict[str, Tensor | Outer] = {}
    lowest = min(names.index(name) for name in layers)
    for i in reversed(range(lowest, len(names))):
        if names[i] in layers:
            d, h = delta.view(rows, images, -1), inputs[i].view(rows, images, -1)
            out[names[i]] = Outer(net.weights[names[i]], d, h)
        if i > lowest:
            delta = (delta @ effective[names[i]]).mul_(inputs[i] > 0)
    return {name: out[name] for name in layers}


def kernel_query(
    net: FrozenNet, x: Tensor, superposed: Mapping[str, Tensor], goal: Goal, layers: Sequence[str]
) -> Query | None:
    """One image, by compiled kernels; None for an objective that they do not know."""
    if goal.objective not in _IN_KERNELS:
        return None
    names, weights = list(net.weights), list(net.weights.values())
    if goal.objective == "G":
        objectives.need_superfluous(len(weights[-1]), goal.classes)
    lowest = min(names.index(name) for name in layers)
    means, kernels = [superposed[name] for name in names], ONE_IMAGE_KERNELS[x.device.type]
    deltas, inputs = kernels(x.flatten(), weights, means, goal.objective, goal.classes, lowest)
    factors = dict(zip(names[lowest:], zip(weights[lowest:], deltas, inputs)))
    return {name: Outer(factors[name][0], *(each.view(1, 1, -1) for each in factors[name][1:])) for name in layers}


def _layer(module: nn.Module, weight: str) -> nn.Module:
    return module.get_submodule(weight.rpartition(".")[0])


def _is_plain_product(layer: nn.Module) -> bool:
    """Whether a layer's output is its input times its weight, with at most a bias."""
    return isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward and has_plain_forward(layer)
