"""Data as users have it (arrays, frames, data sets, batches) → a `Task`.

Frames and data sets are recognised by their methods, so no library of theirs is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from supsup.data.inputs import (
    Inputs,
    channels_first,
    has_channels_last,
    is_compatible,
    measure_normalisation,
    pixel_inputs,
)
from supsup.data.task import LABEL_KINDS, Label, Names, Part, Task, check_names, label_key, plain_label
from supsup.nets.published import Colours
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import flag, plain_tensor, quoted

Normalise = bool | Literal["own"]
FORMS = (
    "a pair (inputs, labels) of arrays, a pandas or polars frame with label=COLUMN, a torch Dataset or DataLoader, "
    "a data set of pairs or of dicts, or an iterator of batches"
)
LABEL_NAMES = ("label", "labels", "target", "targets", "class", "y")
_INPUT_NAMES = ("image", "images", "img", "pixel_values", "input", "inputs", "input_ids", "features", "x")
_MOST_ENTRIES = 10**7  # samples or batches
_NESTED = (list, int, float, str, np.number, type(None))  # entries of a list that numpy reads at once
_ROW = (np.ndarray, list, tuple)  # an array in each row of a column
RawData = tuple[Tensor, Any]  # inputs [n, …], uint8, int64 or float32, and one label of any kind for each


def task(
    data: Any,
    name: str,
    *,
    test: Any = None,
    label: Any = None,
    layout: str | None = None,
    normalise: Normalise = True,
    tokens: bool = False,
) -> Task:
    """A task from arrays, frames, data sets or batches (docs/own-data.md), to learn with others by `learn_many`.

    test       test data of the same form; the training data by default
    label      the column or key of the labels, where data has names
    layout     "NCHW" or "NHWC", where the shape is ambiguous
    normalise  True: by this data's mean and standard deviation, or by those of the model's first task where they fit;
               "own": always by this data's own; False: not at all
    tokens     whole numbers reach the network unchanged, for an embedding
    """
    raw, raw_labels = read_data(data, label)
    (labels,), classes, names = encode_parts([raw_labels], ["labels"])
    last = has_channels_last(raw, layout)
    images = _part_images(raw, last, flag(tokens, "tokens"))
    inputs = replace(_choose_inputs(images, normalise), channels_last=last)
    train = Part(images, labels, inputs.gain, inputs.offset)
    if test is None:
        return Task(name, train, train, classes, names, inputs)
    raw, raw_labels = read_data(test, label)
    test_images = _part_images(raw, has_channels_last(raw, layout), tokens)
    if test_images.shape[1:] != images.shape[1:]:
        raise SupSupError(
            f"test inputs have shape {list(test_images.shape[1:])}, those to learn {list(images.shape[1:])}"
        )
    test_labels = encode_with(raw_labels, names, classes, "test labels")
    return Task(name, train, Part(test_images, test_labels, inputs.gain, inputs.offset), classes, names, inputs)


def with_model_normalisation(task: Task, model_inputs: Inputs | None, always: bool = False) -> Task:
    """The task with the normalisation of a model's first task, if it fits and the user did not fix another one.

    model_inputs  None: the model takes inputs that are normalised already
    always        even if it does not fit
    """
    if task.inputs is None or not (always or (is_compatible(task.inputs, model_inputs) and not task.inputs.fixed)):
        return task
    scale = Inputs() if model_inputs is None else model_inputs
    return _with_inputs(task, replace(task.inputs, gain=scale.gain, offset=scale.offset))


def with_pretrained_normalisation(task: Task, pixels: Colours) -> Task:
    """The task with the normalisation that pretrained weights expect, unless the user fixed another one."""
    if task.inputs is None or task.inputs.fixed:
        return task
    return _with_inputs(task, pixel_inputs(task.train.images, pixels, task.inputs))


def _with_inputs(task: Task, inputs: Inputs) -> Task:
    train, test = (replace(part, gain=inputs.gain, offset=inputs.offset) for part in (task.train, task.test))
    return replace(task, train=train, test=test, inputs=inputs)


def _part_images(raw: Tensor, last: bool, tokens: bool) -> Tensor:
    """Inputs as a part holds them: channels first; int64 only for tokens."""
    if tokens and raw.is_floating_point():
        raise SupSupError("tokens are whole numbers; the inputs are real ones")
    images = channels_first(raw) if last else raw.contiguous()
    kept = images.long() if tokens else images if images.dtype == torch.uint8 else images.float()
    return kept.view(kept.shape)  # a new tensor object: tasks that share one are normalised together


def _choose_inputs(images: Tensor, normalise: Any) -> Inputs:
    if images.dtype == torch.int64:
        return Inputs(tokens=True)
    if isinstance(normalise, str) and normalise == "own":
        return Inputs(*measure_normalisation(images), fixed=True)
    if not isinstance(normalise, bool):
        raise SupSupError(f"normalise is {quoted(normalise)}; give True, False or 'own'")
    return Inputs(*measure_normalisation(images)) if normalise else Inputs(fixed=True)


def read_data(data: Any, label: Any = None) -> RawData:
    """Inputs and labels from any of the supported forms; `label` is the column or key of the labels."""
    two = isinstance(data, list) and len(data) == 2
    if isinstance(data, tuple) or (two and not all(isinstance(each, tuple | dict) for each in data)):  # no two samples
        if len(data) != 2:
            raise SupSupError(f"a tuple of {len(data)} was given; give {FORMS}")
        return _check_pair(*data)
    if _is_frame(data):
        return _from_columns({name: data[name] for name in data.columns}, label, _frame_inputs)
    if isinstance(data, Mapping):
        return _from_columns(data, label, lambda columns: input_tensor(columns[_input_key(list(columns))]))
    if isinstance(data, str | bytes | Tensor | np.ndarray) or hasattr(data, "to_numpy"):
        raise SupSupError(f"only a {type(data).__name__} was given, and no labels; give {FORMS}")
    return _concatenate(_entries(data), label)


def _is_frame(data: Any) -> bool:
    """Whether this is a table with named columns, as in pandas or polars."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy") and hasattr(data, "shape")


def _check_pair(inputs: Any, labels: Any) -> RawData:
    x = input_tensor(inputs)
    try:
        count = len(labels)
    except Exception as error:  # user-defined labels may raise anything
        raise SupSupError(f"labels are {quoted(labels)}; give one label for each input") from error
    if len(x) != count:
        raise SupSupError(f"there are {len(x)} inputs and {count} labels; give one label each")
    return x, labels


def _from_columns(columns: Mapping[Any, Any], label: Any, gather: Callable[[Mapping[Any, Any]], Tensor]) -> RawData:
    chosen = _label_key(list(columns), label)
    return _check_pair(gather({name: values for name, values in columns.items() if name != chosen}), columns[chosen])


def _label_key(names: Sequence[Any], label: Any) -> Any:
    if label is not None:
        if not any(isinstance(name, type(label)) and name == label for name in names):
            raise SupSupError(f"there is no column or key {quoted(label)}; there are {quoted(list(names))}")
        return label
    found = [name for name in names if isinstance(name, str) and name.lower() in LABEL_NAMES]
    if len(found) != 1:
        raise SupSupError(f"say which of {quoted(list(names))} holds the labels: label=NAME")
    return found[0]


def _input_key(names: Sequence[Any]) -> Any:
    """The key of the inputs among all keys except the label's."""
    usual = [name for name in names if isinstance(name, str) and name.lower() in _INPUT_NAMES]
    found = usual if len(usual) == 1 else list(names)
    if len(found) != 1:
        raise SupSupError(
            f"say which of {quoted(list(names))} holds the inputs: leave the others out, or call one of them 'image'"
        )
    return found[0]


def _frame_inputs(columns: Mapping[Any, Any]) -> Tensor:
    """The features of a frame, [rows, columns]; a single column may hold whole images."""
    if not columns:
        raise SupSupError("the frame has no column but the labels; give one for each feature")
    gathered = [_to_numbers(column, f"column {quoted(name)}") for name, column in columns.items()]
    if len(gathered) == 1 and gathered[0].ndim > 1:
        return gathered[0]
    nested = next((name for name, values in zip(columns, gathered) if values.ndim != 1), None)
    if nested is not None:
        raise SupSupError(f"column {quoted(nested)} holds arrays beside other features; give it alone with the labels")
    real = any(values.is_floating_point() for values in gathered)
    return torch.stack([values.float() if real else values.long() for values in gathered], 1)


def _entries(data: Any) -> Iterator[Any]:
    """The samples or batches of a data set, a loader or an iterator."""
    try:
        if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, DataLoader):
            return (data[index] for index in range(len(data)))
        if isinstance(data, Iterable) and not isinstance(data, type):
            return iter(data)
    except Exception as error:  # a user-defined data set may raise anything
        raise SupSupError(f"{quoted(data)} cannot be read ({type(error).__name__}); give {FORMS}") from error
    raise SupSupError(f"data is {quoted(data)} ({type(data).__name__}); give {FORMS}")


def _concatenate(entries: Iterator[Any], label: Any) -> RawData:
    """All samples, or all batches, in order."""
    try:
        pairs = [_split_entry(entry, label) for entry in islice(entries, _MOST_ENTRIES + 1)]
        batches = {_is_batch(*pair) for pair in pairs}
    except (SupSupError, MemoryError):
        raise
    except Exception as error:  # a user-defined data set may raise anything
        raise SupSupError(f"the data could not be read: {type(error).__name__}: {error}") from error
    if not pairs:
        raise SupSupError("the data holds no input")
    if len(pairs) > _MOST_ENTRIES:
        raise SupSupError(f"the data does not end after {_MOST_ENTRIES:,} batches")
    if len(batches) > 1:
        raise SupSupError("some entries of the data are batches and others single inputs; give all in one form")
    inputs, labels = zip(*pairs)
    if batches == {False}:
        return _check_pair(inputs, labels)
    tensors = [_check_pair(*pair)[0] for pair in pairs]
    lists = [each.tolist() if hasattr(each, "tolist") else list(each) for each in labels]
    return _join(tensors), list(chain.from_iterable(lists))


def _split_entry(entry: Any, label: Any) -> tuple[Any, Any]:
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


def input_tensor(inputs: Any) -> Tensor:
    """Raw inputs [n, …] of any form as uint8, int64 or float32, every number finite."""
    if _is_frame(inputs):
        found = _frame_inputs({name: inputs[name] for name in inputs.columns})
    elif isinstance(inputs, list | tuple) and inputs and not isinstance(inputs[0], _NESTED):
        found = _join([_to_numbers(each, "an input")[None] for each in inputs])
    else:
        found = _to_numbers(inputs, "inputs")
    if found.ndim < 2 or not found.numel():
        raise SupSupError(
            f"inputs have shape {list(found.shape)}; give a batch [n, …] of at least one image, row or sequence"
        )
    if found.is_floating_point() and not bool(found.sum().isfinite()):  # fast; a finite sum may also overflow
        bad = int((~found.isfinite()).flatten(1).any(1).sum())
        if bad:
            raise SupSupError(
                f"{bad} of {len(found)} inputs hold NaN or infinite numbers, or numbers too large for float32; remove "
                "or repair them"
            )
    return found


def _to_numbers(values: Any, what: str) -> Tensor:
    """An array of any library, an image or nested lists as uint8, int64 or float32, on the CPU."""
    array: Any = values
    try:
        if not isinstance(values, Tensor | np.ma.MaskedArray):
            array = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
            if array.dtype.kind == "O" and array.ndim == 1 and len(array) and isinstance(array[0], _ROW):
                rows = [np.asarray(row) for row in array]
                _check_shapes([row.shape for row in rows])
                array = np.stack(rows)
            if array.dtype.kind not in "biuf":
                raise SupSupError(
                    f"{what} must be an array of numbers, not of {array.dtype}; turn text and dates into numbers, fill "
                    "what is missing, or leave it out"
                )
    except SupSupError:
        raise
    except Exception as error:  # numpy raises nearly anything for what is not an array
        if isinstance(error, ValueError) and isinstance(values, list | tuple):
            raise SupSupError(f"{what} differ in shape ({error}); bring them to one: resize, cut, pad") from error
        raise SupSupError(f"{what} cannot be read as an array of numbers: {type(error).__name__}: {error}") from error
    numbers = plain_tensor(array, what).cpu()
    if numbers.dtype in (torch.uint8, torch.float32):
        return numbers
    return numbers.float() if numbers.is_floating_point() or numbers.dtype == torch.bool else numbers.long()


def _join(inputs: Sequence[Tensor]) -> Tensor:
    """Batches joined in the narrowest type that holds all of them."""
    _check_shapes([tuple(each.shape[1:]) for each in inputs])
    kinds = {each.dtype for each in inputs}
    kind = kinds.pop() if len(kinds) == 1 else torch.float32 if torch.float32 in kinds else torch.int64
    return torch.cat([each.to(kind) for each in inputs])


def _check_shapes(shapes: Iterable[tuple[int, ...]]) -> None:
    different = sorted(map(str, set(shapes)))
    if len(different) > 1:
        some = ", ".join(different[:3])
        raise SupSupError(f"inputs differ in shape ({some}, …); bring them to one: resize, cut or pad them")


def encode_parts(parts: Sequence[Any], what: Sequence[str]) -> tuple[list[Tensor], int, Names | None]:
    """Labels of the parts of a data set as int64 0 … classes − 1, the number of classes, and their names.

    Names are sorted where they can be compared, else in the order of first appearance; None: they are the numbers.
    """
    columns = [_column(values, name) for values, name in zip(parts, what)]
    kinds = {column.dtype.kind for column in columns}
    if len(kinds) > 1 and not kinds <= {"i", "u"}:
        columns = [column.astype(object) for column in columns]
    column, all_parts = np.concatenate(columns), " and ".join(what)
    if column.dtype.kind in "iubU":
        found, positions = np.unique(column, return_inverse=True)
        names: list[Label] = [value.item() for value in found]
    else:
        values = [plain_label(value, all_parts) for value in column.tolist()]
        names = list({label_key(value): value for value in values}.values())
        if len({type(name) for name in names}) == 1 and not isinstance(names[0], tuple):
            names.sort(key=lambda name: name)
        numbers = {label_key(name): number for number, name in enumerate(names)}
        positions = np.array([numbers[label_key(value)] for value in values])
    ordered = check_names(names, all_parts)
    if len(ordered) < 2:
        raise SupSupError(f"all {all_parts} are {quoted(ordered[0])}; give at least two classes to tell apart")
    labels = torch.from_numpy(np.ascontiguousarray(positions, dtype=np.int64)).split([len(each) for each in columns])
    are_numbers = all(type(name) is int and name == number for number, name in enumerate(ordered))
    return list(labels), len(ordered), None if are_numbers else ordered


def encode_with(values: Any, names: Names | None, classes: int, what: str = "labels") -> Tensor:
    """Labels as the numbers of known classes."""
    labels = _column(values, what).tolist()
    numbers = {label_key(name): number for number, name in enumerate(range(classes) if names is None else names)}
    found = [numbers.get(label_key(plain_label(label, what))) for label in labels]
    if None in found:
        first = labels[found.index(None)]
        raise SupSupError(f"{what} hold {quoted(first)}, which is no class of the training data; leave such inputs out")
    return torch.tensor(found, dtype=torch.int64)


def _column(values: Any, what: str) -> np.ndarray[Any, Any]:
    """Labels [n] as an array of whole numbers, booleans, text, or objects that are not checked yet."""
    if isinstance(values, np.ma.MaskedArray):
        raise SupSupError(f"{what} are a masked array; fill its holes first, with filled(…)")
    if isinstance(values, str | bytes | dict) or not hasattr(values, "__len__"):
        raise SupSupError(f"{what} are {quoted(values)}; give one label for each input")
    try:
        array: np.ndarray[Any, Any]
        if isinstance(values, list | tuple):
            array = _object_array(values, what)
        elif isinstance(values, Tensor):
            tensor = plain_tensor(values, what).cpu()
            array = np.asarray(tensor.float() if tensor.is_floating_point() else tensor)
        else:
            array = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    except SupSupError:
        raise
    except Exception as error:  # numpy raises nearly anything for what is not an array
        raise SupSupError(f"{what} cannot be read as labels: {error}") from error
    if array.dtype.kind == "f":
        raise SupSupError(
            f"{what} are real numbers ({array.dtype}); give classes: whole numbers (y.astype(int)) or names"
        )
    if array.dtype.kind not in "biuUO":
        raise SupSupError(f"{what} are of kind {array.dtype}; give {LABEL_KINDS}, such as y.astype(str)")
    if array.ndim != 1 or not len(array):
        raise SupSupError(f"{what} have shape {list(array.shape)}; give one label for each input")
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
