"""Architectures by name: which call built a network, so that a model file can build it again.

Also what builders need: limits on sizes, checked before memory is allocated, and whether a network still is what its
builder makes.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.nn.modules import module as torch_modules
from torch.nn.modules.module import register_module_parameter_registration_hook

from supsup.runtime.errors import SupSupError, printable
from supsup.runtime.interrupts import uninterrupted
from supsup.runtime.validation import listed, whole

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])
_BUILDERS: dict[str, Callable[..., nn.Module]] = {}
_MOST_WEIGHTS = 1 << 36  # of one layer: 256 GiB
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
_SETTING_TYPES = (bool, int, float, str, tuple, type(None))
_FREE_SETTINGS = {"training", "eps", "momentum"}  # executors read them from the module

check_size = whole(1, _MOST_WEIGHTS)


@dataclass(frozen=True)
class Architecture:
    """The name of a registered function or class, and the arguments it was called with (JSON values)."""

    name: str
    arguments: dict[str, Any]

    def build(self) -> nn.Module:
        """The network again, with fresh weights."""
        if self.name not in _BUILDERS:
            raise SupSupError(f"unknown architecture {self.name!r}; known: {', '.join(sorted(_BUILDERS))}")
        try:
            return _BUILDERS[self.name](**self.arguments)
        except SupSupError:
            raise
        except Exception as error:  # a builder may raise anything for arguments from a file
            raise SupSupError(
                f"architecture {self.name!r} does not take {printable(self.arguments)}: {printable(error)}"
            ) from error

    def build_on_meta(self, most: int) -> nn.Module:
        """The network without values, on "meta"; an error as soon as it has more than `most` parameters.

        So a file cannot take memory or time before the size of its network is known.
        """
        thread, count = threading.get_ident(), 0

        def count_parameter(*_: object) -> None:
            nonlocal count
            if threading.get_ident() == thread:
                count += 1
                if count > most:
                    raise SupSupError(f"architecture {printable(repr(self.name))} has more than {most:,} parameters")

        # an interrupt must not leave torch on "meta" or with this hook
        with uninterrupted(), register_module_parameter_registration_hook(count_parameter), torch.device("meta"):
            return self.build()


def architecture(build: Builder) -> Builder:
    """Decorate a function or class that builds a network: what it builds can be saved and loaded by name."""
    name, signature, is_class = build.__name__, inspect.signature(build), isinstance(build, type)
    call: Callable[..., Any] = build.__init__ if is_class else build

    @functools.wraps(call)
    def build_and_record(*args: Any, **kwargs: Any) -> Any:
        try:
            built = call(*args, **kwargs)
        except (MemoryError, RuntimeError) as error:
            raise SupSupError(f"{name} cannot be built in these sizes: {printable(error)}") from error
        module, *given = args if is_class else (built, *args)
        if not is_class or type(module) is build:  # a subclass may compute something else
            bound = signature.bind(*given, **kwargs)
            bound.apply_defaults()
            with suppress(TypeError, ValueError):  # other arguments than JSON values: only the owner can build it again
                arguments = json.loads(json.dumps(bound.arguments))
                object.__setattr__(module, "_architecture", Architecture(name, arguments))
        return built

    if is_class:
        build.__init__ = build_and_record  # type: ignore[method-assign]
    _BUILDERS[name] = build if is_class else build_and_record
    return cast(Builder, _BUILDERS[name])


def architecture_of(module: nn.Module) -> Architecture | None:
    """The call that built a network, or None for one that only its owner can build."""
    found = getattr(module, "_architecture", None)
    return found if isinstance(found, Architecture) else None


def matches_architecture(module: nn.Module) -> bool:
    """Whether a registered network has the layers, settings and tensor shapes of a fresh one, and nothing added.

    A user may have given a layer a bias, a hook or another parametrisation, or replaced it. Values of weights, and ε
    and momentum of normalisation layers, may be anything. Code that computes without calling the module checks this.
    """
    built_by = architecture_of(module)
    if built_by is None:
        return False
    with uninterrupted(), torch.device("meta"):  # an interrupt would leave torch on "meta"
        fresh = built_by.build()
    layers, expected = dict(module.named_modules()), dict(fresh.named_modules())
    return list(layers) == list(expected) and all(
        has_plain_forward(layer) and type(layer) is type(same) and _settings(layer) == _settings(same)
        for layer, same in zip(layers.values(), expected.values())
    )


def has_plain_forward(module: nn.Module) -> bool:
    """Whether one layer runs the forward pass of its class, without hooks."""
    hooked = any(getattr(module, name) for name in _HOOKS) or any(getattr(torch_modules, n) for n in _GLOBAL_HOOKS)
    return "forward" not in vars(module) and not hooked


def _settings(layer: nn.Module) -> dict[str, Any]:
    """The settings of one layer, and the shapes of its parameters and buffers."""
    settings: dict[str, Any] = {
        name: value
        for name, value in vars(layer).items()
        if not name.startswith("_") and name not in _FREE_SETTINGS and isinstance(value, _SETTING_TYPES)
    }
    tensors = [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
    return settings | {name: value.shape for name, value in tensors}


def check_sizes(values: Any, name: str) -> tuple[int, ...]:
    """Positive whole numbers."""
    return tuple(check_size(value, f"{name}[{i}]") for i, value in enumerate(listed(values, name, "whole numbers")))


def check_widths(values: Any, least: int) -> tuple[int, ...]:
    """The widths of a chain of linear layers, inputs first, at least `least` of them."""
    widths = check_sizes(values, "widths")
    if len(widths) < least:
        raise SupSupError(f"widths must be at least {least} numbers, inputs first; got {list(widths)}")
    for a, b in pairwise(widths):
        check_weights(a, b)
    return widths


def check_weights(*shape: int) -> None:
    """An error if one layer has more weights than any supported machine can hold."""
    if math.prod(shape) > _MOST_WEIGHTS:
        product = " × ".join(f"{number:,}" for number in shape)
        raise SupSupError(f"a layer of {product} weights is too large; the most are {_MOST_WEIGHTS:,}")
