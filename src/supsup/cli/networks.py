"""A network from what a user types: one of ours by name, or anybody's by import path."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated

from torch import nn
from typer import Option

from supsup import nets
from supsup.errors import SupSupError
from supsup.file.modelfile import ModelFile

OwnNet = Annotated[str | None, Option(help="module:function, if the model was learned on a network of your own.")]
OUTPUTS = 100  # of a network that nobody said more about
NOTED = "outputs"  # among the notes of a file: how many a network of the user's own was made with
KNOWN = ("lenet_300_100", "fc_1024", "small_resnet", "gem_resnet18", "resnet50")


def network_named(name: str, outputs: int) -> nn.Module:
    """A network with so many outputs: a name of `KNOWN`, or `package.module:function` that makes or is a module class.

    The function is called with outputs=… where it takes that; modules in the present folder are found.
    """
    if ":" not in name:
        if name not in KNOWN:
            raise SupSupError(f"unknown network {name!r}; use {', '.join(KNOWN)}, or module:function for your own")
        built: object = getattr(nets, name)(outputs)
    else:
        make = _imported(*name.split(":", 1))
        takes = _parameters(make)
        open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
        built = make(outputs=outputs) if "outputs" in takes or open_ended else make()
    if not isinstance(built, nn.Module):
        raise SupSupError(f"{name} gave a {type(built).__name__}, not an nn.Module")
    return built


def own_network(name: str | None, file: Path) -> nn.Module | None:
    """The network that a file needs beside it, with the outputs it was made with."""
    if name is None:
        return None
    with ModelFile(file) as model:
        noted = model.header.notes.get(NOTED)
    return network_named(name, noted if isinstance(noted, int) else OUTPUTS)


def _parameters(make: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):  # what is written in C may have no signature
        return {}


def _imported(path: str, function: str) -> Callable[..., object]:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(path)
    except (ImportError, ValueError) as error:
        raise SupSupError(f"module {path!r} cannot be imported from {here}: {error}") from error
    make = getattr(module, function, None)
    if not callable(make):
        raise SupSupError(f"module {path!r} has no function or class {function!r}")
    made: Callable[..., object] = make
    return made
