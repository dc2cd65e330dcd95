"""A network from what a user types: one of ours by name, or anybody's by import path."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated

from torch import nn
from typer import Option

from supsup import nets
from supsup.cli.console import escape_for_terminal, say
from supsup.data import Task
from supsup.data.discovery import Found, Reading
from supsup.file.modelfile import ModelFile
from supsup.nets.imagenet import MOBILENET_V2
from supsup.nets.published import provide
from supsup.runtime.errors import SupSupError, printable

OwnNet = Annotated[str | None, Option(help="module:function, if the model was learned on a network of your own.")]
OUTPUTS = 100  # of a network that nobody said more about
NOTED = "outputs"  # among the notes of a file: how many a network of the user's own was made with
KNOWN = ("lenet_300_100", "fc_1024", "small_resnet", "gem_resnet18", "resnet50")
PRETRAINED = ("mobilenet_v2", "efficientnet_lite0")  # with published weights
_LEAST_SIZE, _PHOTOGRAPHS = 32, 64  # pixels along a side, for pretrained networks: see docs/pretrained.md
_SILENCE, _WITHIN = 5.0, 120.0  # seconds for weights that nobody has asked for by name


def name_for(found: Found) -> str | None:
    """The name of the network for image files that a new model begins with; None: what they are decides.

    Photographs get a pretrained network where its weights are on this machine or come without long waiting.
    """
    if not found.shows_photographs():
        return None
    try:
        provide(MOBILENET_V2, _SILENCE, _WITHIN)
    except SupSupError as error:
        say(f"small_resnet is taken in place of the pretrained mobilenet_v2: {escape_for_terminal(error, 1000)}")
        return None
    return "mobilenet_v2"


def reading_for(name: str | None, reading: Reading) -> Reading:
    """How images are read for a new model on this network."""
    return replace(reading, usual=_PHOTOGRAPHS) if name in PRETRAINED else reading


def network_for(task: Task, outputs: int) -> nn.Module:
    """A network by the shape of a task's inputs."""
    shape = task.train.shape
    if len(shape) == 3:
        return nets.small_resnet(outputs, shape[0])
    if len(shape) == 1:
        return nets.lenet_300_100(outputs, shape[0])
    raise SupSupError(f"no network is known for inputs of shape {list(shape)}; give your own: --net module:function")


def network_named(name: str, outputs: int, size: int | None = None) -> nn.Module:
    """A network with so many outputs: one of ours, or `package.module:function` that makes or is a module class.

    The function is called with outputs=… where it takes that; modules in the present folder are found.
    size  of images, for pretrained networks
    """
    if ":" in name:
        make = _imported(*name.split(":", 1))
        takes = _parameters(make)
        open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
        build = partial(make, outputs=outputs) if "outputs" in takes or open_ended else make
    elif name in PRETRAINED:
        build = partial(getattr(nets, name), outputs, True, max(size or _PHOTOGRAPHS, _LEAST_SIZE))
    elif name in KNOWN:
        build = partial(getattr(nets, name), outputs)
    else:
        known = ", ".join((*KNOWN, *PRETRAINED))
        raise SupSupError(f"unknown network {name!r}; use {known}, or module:function for your own")
    try:
        built = build()
    except SupSupError:
        raise
    except Exception as error:  # what is the user's own may raise anything
        raise SupSupError(f"{name} makes no network: {type(error).__name__}: {printable(error)}") from error
    if not isinstance(built, nn.Module):
        raise SupSupError(f"{name} gave a {type(built).__name__}, not an nn.Module")
    return built


def check_same(name: str, file: Path) -> None:
    """An error unless a network of ours is the one that a file has."""
    with ModelFile(file) as model:
        has = (model.header.architecture or {}).get("name")
    if ":" not in name and name != has:
        raise SupSupError(
            f"{file} is on {has or 'a network of its own'}, which all of its tasks share; leave out --net {name}, or "
            "learn into a new file"
        )


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
    except Exception as error:  # the user's own code runs, which may raise anything
        raise SupSupError(f"module {path!r} cannot be imported from {here}: {printable(error)}") from error
    make = getattr(module, function, None)
    if not callable(make):
        raise SupSupError(f"module {path!r} has no function or class {function!r}")
    made: Callable[..., object] = make
    return made
