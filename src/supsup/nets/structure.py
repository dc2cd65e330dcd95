"""Whether a network still is what its constructor makes: what works by hand, without calling it, asks this first."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as every_module

from supsup.nets.registry import architecture_of
from supsup.runtime.interrupts import uninterrupted

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
_SETTINGS = (bool, int, float, str, tuple, type(None))  # what layers keep their settings in
_FREE = {"training", "eps", "momentum"}  # settings that executors read off the module


def as_built(module: nn.Module) -> bool:
    """Whether a registered network has the layers, settings and tensors of a fresh one, and nothing added.

    Somebody may have given a layer a bias, a hook or another parametrisation, or put another layer in its place.
    Values of weights, and ε and momentum of normalisation layers, may be anything.
    """
    architecture = architecture_of(module)
    if architecture is None:
        return False
    with uninterrupted(), torch.device("meta"):  # torch would stay with this device
        fresh = architecture.build()
    present, expected = dict(module.named_modules()), dict(fresh.named_modules())
    return list(present) == list(expected) and all(_alike(present[path], expected[path]) for path in expected)


def untouched(module: nn.Module) -> bool:
    """Whether one layer runs the forward pass of its class, and nothing is called before or after it."""
    hooked = any(getattr(module, name) for name in _HOOKS) or any(getattr(every_module, n) for n in _GLOBAL_HOOKS)
    return "forward" not in vars(module) and not hooked


def _alike(module: nn.Module, fresh: nn.Module) -> bool:
    return untouched(module) and type(module) is type(fresh) and _settings(module) == _settings(fresh)


def _settings(module: nn.Module) -> dict[str, Any]:
    """The settings of one layer, and the shapes of its own parameters and buffers."""
    settings: dict[str, Any] = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and name not in _FREE and isinstance(value, _SETTINGS)
    }
    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    return settings | {name: value.shape for name, value in tensors}
