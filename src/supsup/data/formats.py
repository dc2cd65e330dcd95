"""Data as people have it → raw inputs as one tensor, and labels as they are: arrays, frames, data sets, batches.

Nothing is imported for it: a frame or a data set is known by what it can do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import plain_tensor, quoted

FORMS = (
    "a pair (inputs, labels) of arrays, a pandas or polars frame with label=COLUMN, a torch Dataset or DataLoader, "
    "a data set of pairs or of dicts, or an iterator of batches"
)
LABELS = ("label", "labels", "target", "targets", "class", "y")
_INPUTS = ("image", "images", "img", "pixel_values", "input", "inputs", "input_ids", "features", "x")
_MOST = 10**7  # samples or batches


class Read(NamedTuple):
    """Raw inputs [n, …], uint8, int64 or float32, and one label for each, of any kind."""

    inputs: Tensor
    labels: Any


def read(data: Any, label: Any = None) -> Read:
    """Inputs and labels from any of the forms; `label` is the column or key of the labels where there are names."""
    if isinstance(data, tuple) or _is_pair(data):
        if len(data) != 2:
            raise SupSupError(f"a tuple of {len(data)} was given; give {FORMS}")
        return _read(*data)
    if is_frame(data):
        return _of_columns({name: data[name] for name in data.columns}, label, _frame_inputs)
    if isinstance(data, Mapping):
        return _of_columns(data, label, _dict_inputs)
    if isinstance(data, str | bytes | Tensor | np.ndarray) or _is_series(data):
        raise SupSupError(f"only a {type(data).__name__} was given, and no labels; give {FORMS}")
    return _joined(_entries(data), label)


def is_frame(data: Any) -> bool:
    """Whether this is a table with named columns, of pandas or polars or alike."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy") and hasattr(data, "shape")


def _is_series(data: Any) -> bool:
    return hasattr(data, "to_numpy") and not is_frame(data)


def _is_pair(data: Any) -> bool:
    """A list of two is a pair, unless it is a list of two samples."""
    return isinstance(data, list) and len(data) == 2 and not all(isinstance(each, tuple | dict) for each in data)


def _read(inputs: Any, labels: Any) -> Read:
    x = tensor(inputs)
    try:
        count = len(labels)
    except Exception as error:  # of labels of the user's own
        raise SupSupError(f"labels are {quoted(labels)}; give one label for each input") from error
    if len(x) != count:
        raise SupSupError(f"there are {len(x)} inputs and {count} labels; give one label each")
    return Read(x, labels)


def _of_columns(columns: Mapping[Any, Any], label: Any, gather: Any) -> Read:
    chosen = _label_key(list(columns), label)
    return _read(gather({name: values for name, values in columns.items() if name != chosen}), columns[chosen])


def _label_key(names: Sequence[Any], label: Any) -> Any:
    if label is not None:
        if not any(isinstance(name, type(label)) and name == label for name in names):
            raise SupSupError(f"there is no column or key {quoted(label)}; there are {quoted(list(names))}")
        return label
    found = [name for name in names if isinstance(name, str) and name.lower() in LABELS]
    if len(found) != 1:
        raise SupSupError(f"say which of {quoted(list(names))} holds the labels: label=NAME")
    return found[0]


def _frame_inputs(columns: Mapping[Any, Any]) -> Tensor:
    """The features of a frame, [rows, columns]; a single column may hold whole images."""
    if not columns:
        raise SupSupError("the frame has no column but the labels; give one for each feature")
    gathered = [_numbers(column, f"column {quoted(name)}") for name, column in columns.items()]
    if len(gathered) == 1 and gathered[0].ndim > 1:
        return gathered[0]
    flat = next((name for name, values in zip(columns, gathered) if values.ndim != 1), None)
    if flat is not None:
        raise SupSupError(f"column {quoted(flat)} holds arrays beside other features; give it alone with the labels")
    whole = all(not values.is_floating_point() for values in gathered)
    return torch.stack([values.long() if whole else values.float() for values in gathered], 1)


def _dict_inputs(columns: Mapping[Any, Any]) -> Tensor:
    return tensor(columns[_input_key(list(columns))])


def _input_key(names: Sequence[Any]) -> Any:
    """The key of the inputs, of those that are not the labels."""
    known = [name for name in names if isinstance(name, str) and name.lower() in _INPUTS]
    found = known if len(known) == 1 else list(names)
    if len(found) != 1:
        raise SupSupError(
            f"say which of {quoted(list(names))} holds the inputs: leave the others out, or call one of them 'image'"
        )
    return found[0]


def _entries(data: Any) -> Iterator[Any]:
    """The samples or batches of a data set, a loader or an iterator."""
    try:
        if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, DataLoader):
            return (data[index] for index in range(len(data)))
        if isinstance(data, Iterable) and not isinstance(data, type):
            return iter(data)
    except Exception as error:  # of a data set of the user's own
        raise SupSupError(f"{quoted(data)} cannot be read ({type(error).__name__}); give {FORMS}") from error
    raise SupSupError(f"data is {quoted(data)} ({type(data).__name__}); give {FORMS}")


def _joined(entries: Iterator[Any], label: Any) -> Read:
    """Samples or batches, all of one kind, end to end."""
    inputs: list[Any] = []
    labels: list[Any] = []
    batches: list[bool] = []
    try:
        for entry in islice(entries, _MOST + 1):
            x, y = _pair_of(entry, label)
            inputs.append(x)
            labels.append(y)
            batches.append(_is_batch(x, y))
    except (SupSupError, MemoryError):
        raise
    except Exception as error:  # of a data set of the user's own
        raise SupSupError(f"the data could not be read: {type(error).__name__}: {error}") from error
    if not inputs or len(inputs) > _MOST:
        raise SupSupError("the data holds no input" if not inputs else f"the data does not end after {_MOST:,} batches")
    if any(batches) != all(batches):
        raise SupSupError("some entries of the data are batches and others single inputs; give all in one form")
    if not batches[0]:
        return _read(inputs, labels)
    read = [_read(x, y) for x, y in zip(inputs, labels)]
    shapes = {tuple(each.inputs.shape[1:]) for each in read}
    if len(shapes) > 1:
        raise _ragged(shapes)
    plain = [each.tolist() if hasattr(each, "tolist") else list(each) for each in labels]
    return Read(_cat([each.inputs for each in read]), list(chain.from_iterable(plain)))


def _pair_of(entry: Any, label: Any) -> tuple[Any, Any]:
    """Inputs and labels of one sample or batch."""
    if isinstance(entry, Mapping):
        chosen = _label_key(list(entry), label)
        return entry[_input_key([name for name in entry if name != chosen])], entry[chosen]
    if isinstance(entry, tuple | list) and len(entry) == 2:
        return entry[0], entry[1]
    raise SupSupError(f"an entry of the data is a {type(entry).__name__}, neither a pair nor a dict; give {FORMS}")


def _is_batch(inputs: Any, labels: Any) -> bool:
    """Whether these are the labels of several inputs; a tuple may be one label."""
    if isinstance(labels, Tensor | np.ndarray):
        return labels.ndim > 0
    if isinstance(labels, tuple):
        return isinstance(inputs, Tensor | np.ndarray) and inputs.ndim > 1 and len(inputs) == len(labels)
    return isinstance(labels, list) or hasattr(labels, "to_numpy")


def tensor(inputs: Any) -> Tensor:
    """Raw inputs [n, …] of any form as uint8, int64 or float32, every number finite."""
    if is_frame(inputs):
        found = _frame_inputs({name: inputs[name] for name in inputs.columns})
    elif isinstance(inputs, list | tuple) and inputs and not _nested(inputs):
        found = _stacked([_numbers(each, "an input") for each in inputs])
    else:
        found = _numbers(inputs, "inputs")
    if found.ndim < 2 or not found.numel():
        raise SupSupError(
            f"inputs have shape {list(found.shape)}; give a batch [n, …] of at least one image, row or sequence"
        )
    return check_finite(found)


def check_finite(found: Tensor, leading: int = 1) -> Tensor:
    """The inputs, or an error if some hold what no network can be trained on."""
    if found.is_floating_point() and not bool(found.sum().isfinite()):  # quick; good numbers may overflow as well
        bad = int((~found.isfinite()).flatten(0, leading - 1).flatten(1).any(1).sum())
        if bad:
            raise SupSupError(
                f"{bad} of {found.shape[:leading].numel()} inputs hold NaN or infinite numbers, or such as float32 "
                "cannot hold; remove or repair them"
            )
    return found


def _nested(values: Sequence[Any]) -> bool:
    """Whether a list holds plain numbers or lists of them, which numpy reads at once."""
    return isinstance(values[0], list | int | float | str | np.number | None)


def _numbers(values: Any, what: str) -> Tensor:
    """An array of any library, an image or nested lists as uint8, int64 or float32, on the CPU."""
    try:
        if isinstance(values, Tensor):
            array: Any = values
        elif hasattr(values, "to_numpy"):
            array = _of_objects(values.to_numpy())
        else:
            array = values if isinstance(values, np.ma.MaskedArray) else _of_objects(np.asarray(values))
    except SupSupError:
        raise
    except Exception as error:  # what is no array makes numpy raise nearly anything
        if isinstance(error, ValueError) and isinstance(values, list | tuple):
            raise SupSupError(f"{what} differ in shape ({error}); bring them to one: resize, cut, pad") from error
        raise SupSupError(f"{what} cannot be read as an array of numbers: {type(error).__name__}: {error}") from error
    if not isinstance(array, Tensor) and array.dtype.kind not in "biuf" and not isinstance(array, np.ma.MaskedArray):
        raise SupSupError(
            f"{what} must be an array of numbers, not of {array.dtype}; turn text and dates into numbers, fill what is "
            "missing, or leave it out"
        )
    plain = plain_tensor(array, what).cpu()
    if plain.dtype in (torch.uint8, torch.float32):
        return plain
    return plain.float() if plain.is_floating_point() or plain.dtype == torch.bool else plain.long()


def _of_objects(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A column that holds an array in each row, as one array."""
    if array.dtype.kind != "O" or array.ndim != 1 or not len(array):
        return array
    if not isinstance(array[0], np.ndarray | list | tuple):
        return array
    rows = [np.asarray(row) for row in array]
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        raise _ragged(shapes)
    return np.stack(rows)


def _stacked(inputs: Sequence[Tensor]) -> Tensor:
    shapes = {tuple(each.shape) for each in inputs}
    if len(shapes) > 1:
        raise _ragged(shapes)
    return _common(inputs, torch.stack)


def _cat(inputs: Sequence[Tensor]) -> Tensor:
    return _common(inputs, torch.cat)


def _common(inputs: Sequence[Tensor], join: Any) -> Tensor:
    """Tensors joined in the narrowest type that holds all of them."""
    kinds = {each.dtype for each in inputs}
    kind = kinds.pop() if len(kinds) == 1 else torch.float32 if torch.float32 in kinds else torch.int64
    joined: Tensor = join([each.to(kind) for each in inputs])
    return joined


def _ragged(shapes: Iterable[tuple[int, ...]]) -> SupSupError:
    some = sorted(map(str, shapes))[:3]
    return SupSupError(f"inputs differ in shape ({', '.join(some)}, …); bring them to one: resize, cut or pad them")
