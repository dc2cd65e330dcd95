"""Networks for the command line: one of supsup's by name, or a user's by import path."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated

from torch import nn
from typer import Option

from supsup import SupSupError, nets
from supsup.cli.console import escape_for_terminal, say
from supsup.data import Task
from supsup.data.files import TaskFile
from supsup.file.modelfile import ModelFile
from supsup.nets.imagenet import MOBILENET_V2
from supsup.nets.published import ensure_published
from supsup.runtime.errors import printable

UserNet = Annotated[str | None, Option(help="module:function, if the model was learned on your own network.")]
OUTPUTS = 100  # the default of a new network
OUTPUTS_NOTE = "outputs"  # in the notes of a file: the outputs of a user's network
KNOWN = ("lenet_300_100", "fc_1024", "small_resnet", "gem_resnet18", "resnet50")
PRETRAINED = {"mobilenet_v2": 19, "efficientnet_lite0": 18}  # with published weights; the first block with masks
PHOTOGRAPHS, _LEAST_SIZE = 224, 32  # pixels along a side
_SILENCE, _WITHIN = 5.0, 120.0  # seconds to download weights that the user did not ask for


def default_network_name(found: TaskFile) -> str | None:
    """The network of a new model whose first task these image files are; None: it depends on the inputs' shape.

    Photographs get a pretrained network if its weights are on this machine or can be downloaded quickly.
    """
    if not found.has_photographs():
        return None
    try:
        ensure_published(MOBILENET_V2, _SILENCE, _WITHIN)
    except SupSupError as error:
        say(f"using small_resnet instead of the pretrained mobilenet_v2: {escape_for_terminal(error, 1000)}")
        return None
    return "mobilenet_v2"


def default_network(task: Task, outputs: int) -> nn.Module:
    """A small network for the shape of a task's inputs."""
    shape = task.train.shape
    if len(shape) == 3:
        return nets.small_resnet(outputs, shape[0])
    if len(shape) == 1:
        return nets.lenet_300_100(outputs, shape[0])
    raise SupSupError(f"no default network for inputs of shape {list(shape)}; use your own: --net module:function")


def network_from_name(name: str, outputs: int, size: int | None = None) -> nn.Module:
    """Build one of supsup's networks, or the result of `package.module:function`.

    The function (or class) is called with outputs=… if it accepts that; modules in the current folder are found.
    size  of images, for pretrained networks
    """
    if ":" in name:
        build = _import_function(*name.split(":", 1))
        build = partial(build, outputs=outputs) if _accepts_outputs(build) else build
    elif name in PRETRAINED:
        build = partial(getattr(nets, name), outputs, True, max(size or PHOTOGRAPHS, _LEAST_SIZE), PRETRAINED[name])
    elif name in KNOWN:
        build = partial(getattr(nets, name), outputs)
    else:
        known = ", ".join((*KNOWN, *PRETRAINED))
        raise SupSupError(f"unknown network {name!r}; use {known}, or module:function for your own")
    try:
        network = build()
    except SupSupError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise SupSupError(f"{name} failed to build a network: {type(error).__name__}: {printable(error)}") from error
    if not isinstance(network, nn.Module):
        raise SupSupError(f"{name} must return an nn.Module, got {type(network).__name__}")
    return network


def check_same_network(name: str, file: Path) -> None:
    """Raise an error if a file uses another of supsup's networks than this one."""
    with ModelFile(file) as model:
        used = (model.header.architecture or {}).get("name")
    if ":" not in name and name != used:
        raise SupSupError(
            f"{file} uses {used or 'your own network'}, which all of its tasks share; omit --net {name}, or learn "
            "into a new file"
        )


def user_network(name: str | None, file: Path) -> nn.Module | None:
    """Build the user's network that a file needs, with the outputs it was created with."""
    if name is None:
        return None
    with ModelFile(file) as model:
        outputs = model.header.notes.get(OUTPUTS_NOTE)
    return network_from_name(name, outputs if isinstance(outputs, int) else OUTPUTS)


def _accepts_outputs(make: Callable[..., object]) -> bool:
    try:
        inspect.signature(make).bind_partial(outputs=OUTPUTS)
    except (TypeError, ValueError):  # no such parameter; or a function in C, which may have no signature
        return False
    return True


def _import_function(path: str, function: str) -> Callable[..., object]:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(path)
    except Exception as error:  # a user's module may raise anything
        raise SupSupError(f"module {path!r} cannot be imported from {here}: {printable(error)}") from error
    make: Callable[..., object] | None = getattr(module, function, None)
    if not callable(make):
        raise SupSupError(f"module {path!r} has no function or class {function!r}")
    return make
