"""Which call built a network, so that a model file can name it and build it again."""

from __future__ import annotations

import functools
import inspect
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from supsup.runtime.errors import SupSupError, printable
from supsup.runtime.interrupts import uninterrupted

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])
_BUILDERS: dict[str, Callable[..., nn.Module]] = {}


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
        except Exception as error:  # with arguments that a file brings, a builder may raise anything
            raise SupSupError(
                f"architecture {self.name!r} does not take {printable(self.arguments)}: {printable(error)}"
            ) from error

    def sketch(self, most: int) -> nn.Module:
        """The network without values, on "meta"; an error as soon as it has more parameters than `most`.

        What a file asks for takes neither memory nor time before it is known how large it is.
        """
        thread, count = threading.get_ident(), 0

        def counted(*_: object) -> None:
            nonlocal count
            if threading.get_ident() == thread:
                count += 1
                if count > most:
                    raise SupSupError(f"architecture {printable(repr(self.name))} has more than {most:,} parameters")

        with uninterrupted():  # an interrupt must not leave torch on "meta" nor with this hook
            hook = register_module_parameter_registration_hook(counted)
            try:
                with torch.device("meta"):
                    return self.build()
            finally:
                hook.remove()


def architecture(build: Builder) -> Builder:
    """Decorate a function or class that builds a network: what it builds can be saved and loaded by name."""
    name, signature = build.__name__, inspect.signature(build)
    _BUILDERS[name] = build

    def record(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        try:
            arguments = json.loads(json.dumps(bound.arguments))
        except (TypeError, ValueError):
            return
        object.__setattr__(module, "_architecture", Architecture(name, arguments))

    if isinstance(build, type):
        create = build.__init__  # type: ignore[misc]

        @functools.wraps(create)
        def recording(self: nn.Module, *args: Any, **kwargs: Any) -> None:
            with _memory_permitting(name):
                create(self, *args, **kwargs)
            if type(self) is build:  # a subclass may compute something else
                record(self, *args, **kwargs)

        build.__init__ = recording  # type: ignore[misc]
        return build

    @functools.wraps(build)
    def recorded(*args: Any, **kwargs: Any) -> nn.Module:
        with _memory_permitting(name):
            module = build(*args, **kwargs)
        record(module, *args, **kwargs)
        return module

    _BUILDERS[name] = recorded
    return recorded  # type: ignore[return-value]


@contextmanager
def _memory_permitting(name: str) -> Iterator[None]:
    """While a network is built: one that does not fit into memory is an error that says so."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        raise SupSupError(f"{name} cannot be built in these sizes: {printable(error)}") from error


def architecture_of(module: nn.Module) -> Architecture | None:
    """How a network was built, or None for one that only its owner can build."""
    found = getattr(module, "_architecture", None)
    return found if isinstance(found, Architecture) else None
