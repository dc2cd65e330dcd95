"""The header of a model file: everything about a model but its tasks, and the network that it describes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from types import UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

import numpy as np
from torch import nn

from supsup.file import limits
from supsup.masks.frozen import FrozenNet
from supsup.nets.architecture import Architecture, architecture_of
from supsup.nets.imagenet import has_published_weights
from supsup.runtime.errors import Damaged, SupSupError, printable

FORMATS = {"SupSup": 1, "HopSupSup": 2}  # by kind of model


@dataclass(frozen=True)
class Header:
    """Everything about a model but its tasks; JSON values only.

    weights     checksum of the frozen weights
    shapes      of the masked weights, in order
    allocation  the fields of `NewTaskRule`
    pretrained  the weights are the user's, not drawn from the seed
    profile_size  of the tasks; older versions know only "default", and open files that do not say it
    kind        of model: "SupSup" has one record per task, "HopSupSup" one state for all tasks
    details     what only this kind of model needs
    """

    seed: int
    weights: str
    shapes: dict[str, list[int]]
    architecture: dict[str, Any] | None
    recipe: dict[str, Any]
    inference: dict[str, Any]
    allocation: dict[str, Any]
    image_shape: list[int] | None
    notes: dict[str, Any]
    created: str
    library: str
    pretrained: bool = False
    profile_size: str = "default"
    kind: str = "SupSup"
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def format(self) -> int:
        """The version of the file format for this kind of model."""
        return FORMATS[self.kind]

    def to_json(self) -> str:
        """Format 1 has one kind of model only, so it leaves out `kind` and `details`."""
        values = asdict(self)
        if self.kind == "SupSup":
            del values["kind"], values["details"]
        if self.profile_size == "default":
            del values["profile_size"]
        return json.dumps(values, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The header, its types and values checked."""
        if len(text) > limits.LONGEST_HEADER:
            raise Damaged(f"the header has {len(text):,} characters, and at most {limits.LONGEST_HEADER:,} are read")
        try:
            values = json.loads(text)
            limits.check_depth(values)
            header = cls(**values)
        except (TypeError, ValueError, RecursionError) as error:
            raise Damaged(f"the header cannot be read ({error})") from error
        wrong = [name for name, types in _TYPES.items() if not isinstance(getattr(header, name), types)]
        if wrong or header.kind not in FORMATS or isinstance(header.seed, bool):
            raise Damaged(f"the header cannot be read ({', '.join(wrong or ['kind or seed'])} of the wrong type)")
        limits.check_shapes(header.shapes, header.image_shape)
        for kind in ("recipe", "inference", "allocation"):
            limits.check_settings(getattr(header, kind), kind)
        limits.check_architecture(header.architecture)
        if header.kind != "SupSup":
            limits.check_details(header.details, list(header.shapes.values())[-1][0])
        return header

    @property
    def sizes(self) -> list[int]:
        """The number of weights in each masked tensor."""
        return [math.prod(shape) for shape in self.shapes.values()]

    @property
    def learned_shape(self) -> tuple[int, ...] | None:
        """The shape of the learned images; None before the first task."""
        return None if self.image_shape is None else tuple(self.image_shape)


def _types(hint: Any) -> tuple[Any, ...]:
    """What `isinstance` takes: dict and None for `dict[str, Any] | None`."""
    return tuple(get_origin(each) or each for each in (get_args(hint) if isinstance(hint, UnionType) else (hint,)))


_TYPES = {name: _types(hint) for name, hint in get_type_hints(Header).items()}


def build_header(net: FrozenNet, **values: Any) -> Header:
    """The header of a model on a frozen network; `values` are the fields that do not come from the network."""
    from supsup import __version__

    check_notes(values["notes"])
    rebuildable = not net.pretrained or has_published_weights(net.module)
    architecture = architecture_of(net.module) if rebuildable else None
    return Header(
        seed=_plain(net.seed),
        weights=net.checksum,
        shapes={name: list(shape) for name, shape in net.shapes.items()},
        architecture=asdict(architecture) if architecture is not None else None,
        library=__version__,
        pretrained=net.pretrained,
        profile_size=net.profile_size,
        **_plain(values),
    )


def check_notes(notes: Any) -> dict[str, Any]:
    """The notes, or an error unless they can be saved and loaded: a dict of JSON values."""
    if not isinstance(notes, dict):
        raise SupSupError(f'notes are a dict of JSON values, not {type(notes).__name__}: model.notes["name"] = value')
    try:
        limits.check_depth(notes)
        plain = _plain(notes)
        same = json.loads(json.dumps(plain, allow_nan=False)) == plain
    except (TypeError, ValueError, RecursionError) as error:
        raise SupSupError(f"the model's notes must be JSON values ({printable(error)})") from error
    if not same:
        raise SupSupError("the model's notes must be JSON values, and their names text")
    return notes


@contextmanager
def explain_unknown_settings() -> Iterator[None]:
    """Explain errors of code that makes settings from a header: a later version may have written it."""
    try:
        yield
    except SupSupError:
        raise
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
        raise SupSupError(
            f"its settings are not known to this version ({printable(error)}): pip install -U supsup"
        ) from error


def network_from_header(header: Header) -> nn.Module:
    """The network that the header names; its shapes are compared with the header before any memory is allocated."""
    if header.architecture is None:
        raise SupSupError("the model was built from your own module; give it: load(path, net=your_module)")
    return build_architecture(Architecture(**header.architecture), header)


def build_architecture(architecture: Architecture, header: Header | None = None) -> nn.Module:
    """Build a network that a file names, once its size is within the limits and its shapes are those of the header."""
    most = limits.MOST_PARAMETERS if header is None else 1000 + 10 * len(header.shapes)  # those of fixed layers too
    sketch = architecture.build_on_meta(most)  # shapes before memory: a file may claim anything
    if header is not None:
        _check_shapes({name: list(p.shape) for name, p in sketch.named_parameters() if name in header.shapes}, header)
    values = sum(value.numel() for value in [*sketch.parameters(), *sketch.buffers()])
    limits.check_bytes(limits.PER_WEIGHT * values, "the network in the file")
    return architecture.build()


def check_network(net: FrozenNet, header: Header) -> None:
    """An error unless the frozen network is the one that the file was written for."""
    _check_shapes({name: list(shape) for name, shape in net.shapes.items()}, header)
    if net.checksum != header.weights:
        others = [name for name, value in net.module.named_parameters() if name not in net.weights and value.any()]
        raise SupSupError(
            "the network does not fit: its masked weights have the right shapes, but their values or those of other "
            f"parameters and buffers differ (checksum {net.checksum}, in the file {header.weights})"
            + (f"; what is not drawn from the seed must be unchanged: {', '.join(others[:5])}" if others else "")
        )


def _check_shapes(shapes: dict[str, list[int]], header: Header) -> None:
    for name in [*header.shapes, *shapes]:
        here, there = shapes.get(name, "missing"), header.shapes.get(name, "missing")
        if here != there:
            raise SupSupError(f"the network does not fit: weight {name!r} is {here}, but in the file {there}")
    if list(shapes) != list(header.shapes):
        raise SupSupError(f"the network does not fit: its weights come as {list(shapes)}, not {list(header.shapes)}")


def _plain(value: Any) -> Any:
    """JSON values instead of tuples and numpy numbers."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value
