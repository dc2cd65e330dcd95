"""Checks of values: numbers, words, names, paths, arrays. A check takes a value and its name for error messages.

It returns the value in a plain type (a numpy integer becomes an int, an array a dense tensor of real numbers without a
gradient), or raises an error that says what to give.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from supsup.runtime.errors import SupSupError, printable

T = TypeVar("T")
Check = Callable[[Any, str], T]
_MOST = 10**7  # entries of a list; a generator may be endless


class CheckedFields:
    """The base of frozen dataclasses whose fields are checked by their types, and stored as plain values.

    A type `Annotated[float, real(above=0)]` names its check, a `Literal` its words, and a bool takes True or False;
    other types are not checked. With `| None` a field may be None, too.
    """

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, check in _checks(kind).items():
            object.__setattr__(self, name, check(getattr(self, name), f"{kind.__name__}.{name}"))


@cache
def _checks(kind: type[Any]) -> dict[str, Check[Any]]:
    """By field, in order; types are evaluated once for each class."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: check for field in fields(kind) if (check := _check_of(hints[field.name])) is not None}


def _check_of(hint: Any) -> Check[Any] | None:
    first, *others = get_args(hint) or (hint,)
    if others == [type(None)]:
        check = _check_of(first)
        return None if check is None else optional(check)
    if get_origin(hint) is Literal:
        return choice(first, *others)
    if get_origin(hint) is Annotated:
        return cast(Check[Any], others[0])
    return flag if hint is bool else None


def whole(least: float = -math.inf, most: float = math.inf) -> Check[int]:
    """A whole number within bounds; no float, no bool."""
    wanted = f"a whole number{_bounds(least, most)}"

    def check(value: Any, name: str) -> int:
        try:
            is_bool = isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))
            if is_bool or getattr(value, "shape", ()) != ():
                raise TypeError
            number = operator.index(value)
        except Exception:  # from a user's __index__
            raise wrong(value, name, wanted) from None
        if not least <= number <= most:
            raise wrong(value, name, wanted)
        return number

    return check


def real(
    least: float = -math.inf, most: float = math.inf, *, above: float = -math.inf, below: float = math.inf
) -> Check[float]:
    """A finite number within bounds; `above` and `below` are exclusive."""
    wanted = f"a number{_bounds(least, most, above, below)}"

    def check(value: Any, name: str) -> float:
        try:
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise wrong(value, name, wanted) from None
        if not (least <= number <= most and above < number < below):  # so neither infinite nor NaN
            raise wrong(value, name, wanted)
        return number

    return check


def choice(*known: str) -> Check[str]:
    """One of these words."""

    def check(value: Any, name: str) -> str:
        if not isinstance(value, str) or value not in known:
            word = name.rpartition(".")[2]
            raise SupSupError(f"unknown {word} {quoted(value)}; known: {', '.join(known)}")
        return str.__str__(value)

    return check


def flag(value: Any, name: str) -> bool:
    """True or False, of Python or of numpy."""
    if not isinstance(value, bool | np.bool_):
        raise wrong(value, name, "True or False")
    return bool(value)


def text(value: Any, name: str) -> str:
    """Text that is not empty and can be written to a file."""
    if not isinstance(value, str):
        raise wrong(value, name, "text")
    plain = str.__str__(value)
    if not plain:
        raise SupSupError(f"{name} is empty; give text that is not empty")
    try:
        plain.encode()
    except UnicodeEncodeError as error:
        raise SupSupError(
            f"{name} is {quoted(value)}, which is not valid text ({error.reason}); give another"
        ) from error
    return plain


def optional(check: Check[T]) -> Check[T | None]:
    """None, or a value that passes another check."""
    return lambda value, name: None if value is None else check(value, name)


def path(value: Any, name: str) -> Path:
    """A path that the operating system accepts."""
    try:
        given_path = os.fspath(value)
    except Exception:
        raise wrong(value, name, "a path as text or a pathlib.Path") from None
    if not isinstance(given_path, str) or not given_path or "\0" in given_path:
        raise wrong(value, name, "a path as text or a pathlib.Path")
    try:
        os.fsencode(given_path)
        return Path(given_path).expanduser()
    except (UnicodeEncodeError, RuntimeError) as error:
        raise SupSupError(f"{name} is {quoted(value)}, which is not a valid path ({error}); give another") from error


def listed(value: Any, name: str, of: str) -> list[Any]:
    """The entries of any iterable but text or a mapping; the error says that it should be a list of `of`."""
    try:
        if isinstance(value, str | bytes | Mapping):
            raise TypeError
        entries = iter(value)
    except Exception:  # from a user's __iter__
        raise wrong(value, name, f"a list of {of}") from None
    found = list(islice(entries, _MOST + 1))
    if len(found) > _MOST:
        raise SupSupError(f"{name} has more than {_MOST:,} entries; give a list of {of}")
    return found


def names(value: Any, name: str) -> list[str]:
    """Names of tasks, from any iterable of them."""
    return [text(entry, f"{name}[{i}]") for i, entry in enumerate(listed(value, name, "names of tasks"))]


def given(value: Any, kind: type[T], name: str, *others: type[Any]) -> T:
    """A value of one of these classes, or an error that names them."""
    if not isinstance(value, (kind, *others)):
        raise wrong(value, name, " or ".join(f"a {each.__name__}" for each in (kind, *others)))
    return cast(T, value)


def quoted(value: Any) -> str:
    """A value for an error message: short, and safe to print."""
    try:
        return printable(repr(value), 80)
    except Exception:  # from a user's __repr__
        return f"a {type(value).__name__}"


def wrong(value: Any, name: str, wanted: str) -> SupSupError:
    """The error for a wrong value."""
    kind = "" if value is None or isinstance(value, str | bool | int | float) else f" ({type(value).__name__})"
    return SupSupError(f"{name} is {quoted(value)}{kind}; give {wanted}")


def _bounds(least: float, most: float, above: float = -math.inf, below: float = math.inf) -> str:
    pairs = ((least, "at least"), (most, "at most"), (above, "above"), (below, "below"))
    finite = [f"{words} {bound:,}" for bound, words in pairs if math.isfinite(bound)]
    return f", {' and '.join(finite)}" if finite else ""


def plain_tensor(values: Any, what: str) -> Tensor:
    """An array of numbers as a dense tensor of real numbers without a gradient; memory is shared where possible."""
    try:
        tensor = values if isinstance(values, Tensor) else _from_array(values, what)
        fault = _fault(tensor)
    except SupSupError:
        raise
    except Exception as error:  # for other objects numpy and torch raise nearly anything
        raise SupSupError(f"{what} must be a tensor or an array of numbers, not {quoted(values)}: {error}") from error
    if fault is not None:
        raise SupSupError(f"{what} must be a tensor or an array of real numbers; got one {fault}")
    tensor = tensor.detach() if tensor.requires_grad else tensor
    return tensor.clone() if tensor.is_inference() else tensor  # a tensor made in inference mode cannot be trained on


def _fault(tensor: Tensor) -> str | None:
    if tensor.is_meta:
        return "on 'meta', which has no values"
    if tensor.is_nested or tensor.layout != torch.strided:
        return "that is sparse, nested or in a layout of its own: make it dense first, with to_dense()"
    if tensor.is_quantized:
        return "that is quantised: dequantize() it first"
    if tensor.is_complex():
        return f"of {tensor.dtype}"
    return None


def _from_array(values: Any, what: str) -> Tensor:
    if isinstance(values, np.ma.MaskedArray):
        raise SupSupError(f"{what} are a masked array; fill its holes first, with filled(…)")
    if not isinstance(values, np.ndarray):
        return torch.as_tensor(values)
    if values.dtype.kind not in "biuf":
        raise SupSupError(f"{what} must be an array of numbers, not of {values.dtype}")
    if values.dtype.itemsize > 8:
        values = values.astype(np.float64)
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if not values.flags.writeable or any(step < 0 for step in values.strides):
        values = values.copy()  # torch can share neither kind of memory
    return torch.from_numpy(values)
