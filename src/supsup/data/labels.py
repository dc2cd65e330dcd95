"""Labels as users have them (names, numbers with gaps, True and False) ⇄ a task's class numbers 0 … classes − 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import listed, quoted

Label = str | int | bool | tuple[Any, ...]  # tuples hold labels
Names = tuple[Label, ...]
_LONGEST = 1000  # characters of a name
_DEEPEST = 4  # nested tuples
_LARGEST = 1 << 62  # number
_KINDS = "text, whole numbers, True and False, or tuples of them"


def encode_labels(values: Any, what: str = "labels") -> tuple[Tensor, int, Names | None]:
    """Labels as int64 0 … classes − 1, the number of classes and their names; None: the names are the numbers.

    Names are sorted where they can be compared, else in the order of first appearance.
    """
    return _encode(_column(values, what), what)


def encode_parts(parts: Sequence[Any], what: Sequence[str]) -> tuple[list[Tensor], int, Names | None]:
    """`encode_labels` for several parts of one data set, with the classes of all of them."""
    columns = [_column(values, name) for values, name in zip(parts, what)]
    kinds = {column.dtype.kind for column in columns}
    if len(kinds) > 1 and not kinds <= {"i", "u"}:
        columns = [column.astype(object) for column in columns]
    labels, classes, names = _encode(np.concatenate(columns), " and ".join(what))
    return list(labels.split([len(column) for column in columns])), classes, names


def encode_with(values: Any, names: Names | None, classes: int, what: str = "labels") -> Tensor:
    """Labels as the numbers of known classes."""
    labels = _column(values, what).tolist()
    numbers = {_key(name): number for number, name in enumerate(range(classes) if names is None else names)}
    found = [numbers.get(_key(plain_label(label, what))) for label in labels]
    if None in found:
        first = labels[found.index(None)]
        raise SupSupError(f"{what} hold {quoted(first)}, which is no class of the training data; leave such inputs out")
    return torch.tensor(found, dtype=torch.int64)


def _encode(column: np.ndarray[Any, Any], what: str) -> tuple[Tensor, int, Names | None]:
    if column.dtype.kind in "iubU":
        found, positions = np.unique(column, return_inverse=True)
        names: list[Label] = [value.item() for value in found]
    else:
        names, positions = _sort_labels([plain_label(value, what) for value in column.tolist()])
    ordered = check_names(names, what)
    if len(ordered) < 2:
        raise SupSupError(f"all {what} are {quoted(ordered[0])}; give at least two classes to tell apart")
    numbers = torch.from_numpy(np.ascontiguousarray(positions, dtype=np.int64))
    are_numbers = all(type(name) is int and name == number for number, name in enumerate(ordered))
    return numbers, len(ordered), None if are_numbers else ordered


def check_names(names: Any, what: str = "names") -> Names:
    """Class names in plain types, or an error unless they differ and a file can hold them."""
    plain = tuple(plain_label(name, what) for name in listed(names, what, "names of classes"))
    if len({_key(name) for name in plain}) < len(plain):
        raise SupSupError(f"two of the {what} are the same; give each class a name of its own")
    return plain


def plain_label(value: Any, what: str, depth: int = 0) -> Label:
    """One label in a plain type of Python, or an error that says what a label can be."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < _LARGEST:
        return int(value)
    if isinstance(value, str) and len(value) <= _LONGEST and value == value.encode(errors="replace").decode():
        return str.__str__(value)
    if isinstance(value, tuple) and depth < _DEEPEST and len(value) <= _LONGEST:
        return tuple(plain_label(each, what, depth + 1) for each in value)
    if value is None or (isinstance(value, float) and value != value):
        raise SupSupError(f"some {what} are missing ({quoted(value)}); remove those inputs or fill them in")
    if isinstance(value, float):
        raise SupSupError(f"{what} hold the real number {quoted(value)}; give classes: whole numbers or names")
    raise SupSupError(f"{what} hold {quoted(value)} ({type(value).__name__}); give {_KINDS}, such as str(label)")


def _column(values: Any, what: str) -> np.ndarray[Any, Any]:
    """Labels [n] as an array of whole numbers, booleans, text, or objects that are not checked yet."""
    column = _label_array(values, what)
    if column.ndim != 1 or not len(column):
        raise SupSupError(f"{what} have shape {list(column.shape)}; give one label for each input")
    return column


def _label_array(values: Any, what: str) -> np.ndarray[Any, Any]:
    if isinstance(values, Tensor):
        if values.is_meta or values.layout != torch.strided or values.is_quantized:
            raise SupSupError(f"{what} must be a dense tensor with values")
        values = values.detach().cpu()
        if values.is_floating_point() or values.is_complex():
            raise SupSupError(f"{what} are {values.dtype}; give classes: whole numbers or names")
        return np.asarray(values)
    if isinstance(values, np.ma.MaskedArray):
        raise SupSupError(f"{what} are a masked array; fill its holes first, with filled(…)")
    if isinstance(values, str | bytes | dict) or not hasattr(values, "__len__"):
        raise SupSupError(f"{what} are {quoted(values)}; give one label for each input")
    try:
        if isinstance(values, list | tuple):
            return _object_array(values, what)
        array: np.ndarray[Any, Any] = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    except SupSupError:
        raise
    except Exception as error:  # numpy raises nearly anything for what is not an array
        raise SupSupError(f"{what} cannot be read as labels: {error}") from error
    if array.dtype.kind == "f":
        raise SupSupError(
            f"{what} are real numbers ({array.dtype}); give classes: whole numbers (y.astype(int)) or names"
        )
    if array.dtype.kind not in "biuUO":
        raise SupSupError(f"{what} are of kind {array.dtype}; give {_KINDS}, such as y.astype(str)")
    return array


def _object_array(values: Sequence[Any], what: str) -> np.ndarray[Any, Any]:
    """A list as an array of its entries; tensors of one number become that number."""
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        if isinstance(value, Tensor | np.ndarray):
            if value.ndim:
                raise SupSupError(f"{what} hold arrays of shape {list(value.shape)}; give one label for each input")
            value = value.item()
        column[row] = value
    return column


def _sort_labels(values: Sequence[Label]) -> tuple[list[Label], np.ndarray[Any, Any]]:
    """The different labels in order, and the number of each value."""
    names = list({_key(value): value for value in values}.values())
    if len({type(name) for name in names}) == 1 and not isinstance(names[0], tuple):
        names.sort(key=lambda name: name)
    numbers = {_key(name): number for number, name in enumerate(names)}
    return names, np.array([numbers[_key(value)] for value in values])


def _key(label: Label) -> Any:
    """Distinguishes labels that Python takes for equal, such as True and 1."""
    return tuple(map(_key, label)) if isinstance(label, tuple) else (type(label), label)
