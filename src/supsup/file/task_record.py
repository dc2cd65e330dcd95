"""The record of one task: what a model file keeps of it, how it is written and how it is read.

A record is a row of the table `tasks`. Its columns are position, name, time, number of classes, number of weights kept,
codec and bytes of the mask (`codec.py`), a checksum over all of these, and `extras`: one safetensors blob (or nothing)
for everything else. The blob has four parts:

    tensors   any other name  the user's tensors (`model.extras`)
              statistics/…    the task's normalisation statistics, and its last layer where each task has one;
                              none where all are the network's own and it has fixed layers
              supsup/trace/…  the task's profile (`inference/profiles`)
    metadata  "task"          the task's `TaskInfo` as JSON, if there is any
              "network"       which network it is, as JSON: with it `repair` rescues a task when both headers are lost

Files of earlier versions may lack any part. Nothing read here is trusted: checksums can be forged, so types, sizes and
ranges are checked.

A task has two forms: `LearnedTask` in memory, without its mask, and `TaskRecord` as a row. CONTRIBUTING.md says how to
keep one more field.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
import safetensors
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from supsup.data.inputs import Inputs
from supsup.data.task import NO_INFO, Label, Names, TaskInfo, check_names
from supsup.file import codec, limits
from supsup.file.codec import Bytes, Reference, decode_mask
from supsup.file.header import Header
from supsup.inference.profiles import TaskProfile
from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet
from supsup.runtime.clock import now
from supsup.runtime.errors import Damaged, SupSupError, printable

COLUMNS = "position, name, created, classes, kept, codec, checksum, extras, mask"
MOST_CLASSES = 1 << 31
STATISTICS = "statistics/"  # prefix of the normalisation statistics
PROFILE = "supsup/trace/"  # prefix of the tensors of the task's profile
EXAMPLES = "examples"  # one of the user's tensors by convention: a few small images of the task, uint8, to look at
INFO, NETWORK = "task", "network"  # keys of the metadata
_METADATA = "__metadata__"
_LENGTH = 8  # bytes before the JSON header of safetensors, which give its length
_ALIGNED = 8
_WRITABLE = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
}  # fmt: skip


@dataclass
class LearnedTask:
    """A learned task, without its mask.

    learned_at  UTC, as `now` writes it
    extras      tensors that the user keeps with the task
    profile     statistics that identify the task's inputs, where the model keeps them
    """

    name: str
    classes: int
    learned_at: str = field(default_factory=now)
    extras: dict[str, Tensor] = field(default_factory=dict)
    info: TaskInfo = NO_INFO
    profile: TaskProfile | None = None


class TaskRecord(NamedTuple):
    """A row of the table `tasks`; only the types have been checked.

    position  in the file, which sets it
    kept      how many weights the mask keeps
    """

    position: int
    name: str
    created: str
    classes: int
    kept: int
    codec: str
    checksum: bytes
    extras: bytes
    mask: bytes

    @classmethod
    def of(cls, values: Sequence[Any]) -> Self:
        if tuple(map(type, values)) != (int, str, str, int, int, str, bytes, bytes, bytes):
            raise Damaged(f"task {printable(repr(values[1]))} is damaged (a value has the wrong type)")
        record = cls(*values)
        if not 0 <= record.position < limits.MOST_POSITION or not 0 <= record.classes < MOST_CLASSES:
            raise Damaged(f"task {printable(repr(record.name))} is damaged (a number is out of range)")
        return record

    @classmethod
    def encoded(cls, header: Header, name: str, created: str, classes: int, packed: Bytes, extras: bytes) -> Self:
        """A task with its mask as the bank packs it."""
        if name != name.encode(errors="replace").decode():
            raise SupSupError(f"the name {name!r} is not text that can be written; use another")
        kind, mask = codec.encode(packed, header.sizes)
        kept = int(np.bitwise_count(packed).sum())
        extras = with_metadata(extras, NETWORK, describe_network(header))
        record = cls(0, name, created, classes, kept, kind, b"", extras, mask)
        return record._replace(checksum=_checksum(header, record, packed))

    def decoded(self, header: Header, reference: Reference | None) -> Bytes:
        """The packed mask, every bit as it was written, or an error."""
        try:
            packed = decode_mask(self.codec, self.mask, header.sizes, reference)
        except SupSupError as error:
            raise type(error)(f"task {printable(repr(self.name))} cannot be read: {error}") from error
        if _checksum(header, self, packed) != self.checksum:
            raise Damaged(f"task {printable(repr(self.name))} is damaged (its checksum differs)")
        return packed


def _checksum(header: Header, record: TaskRecord, packed: Bytes) -> bytes:
    """Over the decoded bits and all that belongs to them: which weights, which task."""
    about = [header.weights, record.name, record.created, record.classes, record.kept, len(record.extras)]
    digest = hashlib.blake2b(json.dumps(about).encode(errors="surrogatepass"), digest_size=16)
    digest.update(record.extras)
    digest.update(packed.tobytes())
    return digest.digest()


# Writing: a learned task → a record.


def pack_tasks(tasks: Iterable[LearnedTask], bank: Bank, header: Header) -> Iterator[TaskRecord]:
    """Every task of a bank, in order."""
    masks = (packed for block in bank.blocks() for packed in block.T.contiguous().cpu().numpy())
    for index, (task, packed) in enumerate(zip(tasks, masks, strict=True)):
        yield pack_task(task, bank, index, header, packed)


def pack_task(task: LearnedTask, bank: Bank, index: int, header: Header, packed: Bytes | None = None) -> TaskRecord:
    """One task, with its mask (if not given) and statistics from the bank."""
    packed = bank.packed(index).cpu().numpy() if packed is None else packed
    check_extras(task.extras)
    fixed = (header.architecture or {}).get("arguments", {}).get("masks_from")  # other files need all of them
    own = bank.own_statistics(index) if fixed else bank.statistics(index)
    statistics = {STATISTICS + name: value for name, value in own.items()}
    if statistics and not bool(bank.flat_statistics(index).isfinite().all()):
        raise SupSupError(
            f"the statistics of task {task.name!r} are not finite, so its training went wrong; "
            "forget it, and learn it again with a smaller learning rate"
        )
    profile = {} if task.profile is None else {PROFILE + name: value for name, value in task.profile.tensors().items()}
    tensors = task.extras | statistics | profile
    extras = tensors_to_bytes(tensors) if tensors else b""
    text = info_to_text(task.info, task.classes)
    extras = with_metadata(extras, INFO, text) if text else extras
    return TaskRecord.encoded(header, task.name, task.learned_at, task.classes, packed, extras)


def check_extras(tensors: object) -> None:
    """An error unless these are tensors by name that can be saved with a task."""
    if not isinstance(tensors, dict):
        raise SupSupError(f"the extras of a task are a dict of tensors by name, not {type(tensors).__name__}")
    for name, value in tensors.items():
        if not isinstance(name, str) or not name or name == _METADATA or name.startswith((STATISTICS, PROFILE)):
            raise SupSupError(
                f"extras cannot have the name {printable(repr(name))}: it must be text, not empty, not "
                f'"{_METADATA}", and not begin with "{STATISTICS}" or "{PROFILE}"'
            )
        if name != name.encode(errors="replace").decode():
            raise SupSupError(f"the name {printable(repr(name))} of an extra is not text that can be written")
        dense = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta
        if not dense or value.dtype not in _WRITABLE:
            raise SupSupError(
                f"the extra {printable(repr(name))} must be a dense tensor of ordinary numbers, not "
                f"{getattr(value, 'dtype', type(value).__name__)}"
            )


# Reading: a record → its parts.


def unpack_task(task: TaskRecord, header: Header, net: FrozenNet) -> tuple[LearnedTask, dict[str, Tensor]]:
    """The learned task on the network's device, and its statistics by name."""
    tensors = {name: value.to(net.device) for name, value in tensors_of(task).items()}
    statistics, info = _statistics(net, task.name, tensors), info_of(task, header)
    stored = {name.removeprefix(PROFILE): value for name, value in tensors.items() if name.startswith(PROFILE)}
    try:
        profile = TaskProfile.from_tensors(stored, task.classes) if stored else None
    except SupSupError as error:
        raise Damaged(f"task {printable(repr(task.name))} is damaged: {printable(error)}") from error
    extras = {name: value for name, value in tensors.items() if not name.startswith((STATISTICS, PROFILE))}
    return LearnedTask(task.name, task.classes, task.created, extras, info, profile), statistics


def tensors_of(task: TaskRecord) -> dict[str, Tensor]:
    """All tensors of a task: the user's, its statistics and its profile."""
    tensors = holds_tensors(task.extras)
    return tensors_from_bytes(task.extras, f"task {printable(repr(task.name))} has extras that") if tensors else {}


def info_of(task: TaskRecord, header: Header) -> TaskInfo:
    """The metadata of a task."""
    try:
        return info_from_text(metadata(task.extras, INFO), task.classes, header.image_shape)
    except SupSupError as error:
        raise Damaged(f"task {printable(repr(task.name))} is damaged: {printable(error)}") from error


def impossible_statistics(name: str, statistics: Tensor) -> Tensor:
    """Which numbers no training can give: all must be finite, and variances not negative."""
    return ~(statistics.isfinite() & (statistics >= 0)) if name.endswith("running_var") else ~statistics.isfinite()


def _statistics(net: FrozenNet, task: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The task's statistics among its tensors: exactly those that the network needs."""
    stored = {n.removeprefix(STATISTICS): value for n, value in tensors.items() if n.startswith(STATISTICS)}
    if not stored and net.described:
        return {name: value.clone() for name, value in net.statistics.items()}
    for name in stored.keys() | net.statistics.keys():
        here, there = net.statistics.get(name), stored.get(name)
        if here is None or there is None or (here.shape, here.dtype) != (there.shape, there.dtype):
            shapes = ["missing" if value is None else list(value.shape) for value in (here, there)]
            raise SupSupError(
                f"the network does not fit: {name!r}, which is stored per task, is {shapes[0]}, "
                f"but in the file, for task {task!r}, {shapes[1]}"
            )
    return stored


# The safetensors blob: 8 bytes with the length of a JSON header, the header, the bytes of the tensors.


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors by name as a file holds them."""
    try:
        return save_tensors({name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()})
    except (safetensors.SafetensorError, RuntimeError, KeyError, ValueError, AttributeError, TypeError) as error:
        raise SupSupError(f"these tensors cannot be written: {printable(error)}") from error


def tensors_from_bytes(content: bytes, what: str) -> dict[str, Tensor]:
    """The tensors that `tensors_to_bytes` wrote; an error says `what` cannot be read."""
    try:
        return load_tensors(content)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise Damaged(f"{what} cannot be read ({error})") from error


def with_metadata(extras: bytes, key: str, text: str) -> bytes:
    """A blob (or nothing) with a text in its metadata, which replaces an older one under this key."""
    header, tensors = _parts(extras)
    others = {name: value for name, value in (header.get(_METADATA) or {}).items() if name != key}
    header = {_METADATA: {key: text} | others} | {name: value for name, value in header.items() if name != _METADATA}
    content = json.dumps(header, separators=(",", ":")).encode()
    content += b" " * (-len(content) % _ALIGNED)
    return len(content).to_bytes(_LENGTH, "little") + content + tensors


def metadata(extras: bytes, key: str) -> str | None:
    """A text in the metadata of a blob; None if there is none."""
    texts = _parts(extras)[0].get(_METADATA)
    found = texts.get(key) if isinstance(texts, dict) else None
    if found is not None and not isinstance(found, str):
        raise Damaged("its extras cannot be read (metadata that is not text)")
    return found


def holds_tensors(extras: bytes) -> bool:
    """Whether a blob holds more than metadata."""
    follows = len(extras) > _LENGTH + int.from_bytes(extras[:_LENGTH], "little")
    return follows or any(name != _METADATA for name in _parts(extras)[0])


def _parts(extras: bytes) -> tuple[dict[str, Any], bytes]:
    """The JSON header of a blob, and what follows it."""
    if not extras:
        return {}, b""
    end = _LENGTH + int.from_bytes(extras[:_LENGTH], "little")
    return _blob_header(extras[_LENGTH:end]), extras[end:]


@lru_cache(maxsize=16)
def _blob_header(content: bytes) -> dict[str, Any]:
    """Not to be changed by the caller; cached, as the next task mostly has the same one."""
    try:
        header = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"its extras cannot be read ({error})") from error
    if not isinstance(header, dict):
        raise Damaged("its extras cannot be read (no header of safetensors)")
    return header


# The metadata "network".


def describe_network(header: Header) -> str:
    """What identifies the network; for a user's own module, enough to check the one that the user gives."""
    keys = ["seed", "weights", "pretrained", "architecture", "image_shape"]
    keys += [] if header.profile_size == "default" else ["profile_size"]
    return json.dumps({key: getattr(header, key) for key in keys}, separators=(",", ":"))


def network_description(extras: bytes) -> dict[str, Any] | None:
    """What `describe_network` wrote; None if it is missing, as in files of earlier versions."""
    try:
        found = json.loads(_parts(extras)[0][_METADATA][NETWORK])
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


# The metadata "task": `TaskInfo` as JSON.


def info_to_text(info: TaskInfo, classes: int) -> str:
    """The metadata of a task as text; empty if there is none."""
    inputs, normalisation = info.inputs, info.normalisation
    flags = {} if inputs is None else {"channels_last": inputs.channels_last, "tokens": inputs.tokens}
    written = {
        "names": info.names if info.names is not None and len(info.names) == classes else None,
        "inputs": None if inputs is None else _scale_to_text(inputs) | flags,
        "recipe": None if info.recipe is None else dict(info.recipe),
        "self_labels": "rotations" if info.rotated else None,
        "normalisation": None if normalisation is None else [*_scale_to_text(normalisation).values()],
    }
    values = {key: value for key, value in written.items() if value is not None}
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False) if values else ""
    if len(text) > limits.LONGEST_INFO:
        raise SupSupError(f"the metadata of the task has {len(text):,} characters; give its classes shorter names")
    return text


def info_from_text(text: str | None, classes: int, image_shape: list[int] | None) -> TaskInfo:
    """What `info_to_text` wrote, or an error if a task with these classes and images cannot have it."""
    if text is None:
        return NO_INFO
    if len(text) > limits.LONGEST_INFO:
        raise Damaged(f"its metadata has {len(text):,} characters; at most {limits.LONGEST_INFO:,} are read")
    try:
        values = _mapping(json.loads(text))
        limits.check_depth(values)
        names, inputs, recipe = values.get("names"), values.get("inputs"), values.get("recipe")
        self_labels, scale = values.get("self_labels"), values.get("normalisation")
        if recipe is not None:
            limits.check_settings(_mapping(recipe), "recipe")
        square = image_shape is not None and len(image_shape) >= 2 and image_shape[-1] == image_shape[-2]
        if self_labels is not None and (self_labels != "rotations" or not square):
            raise ValueError("its self-labels are not for images of this shape")
        if inputs is not None:
            both = [inputs["gain"], inputs["offset"]]
            inputs = Inputs(*_read_scale(both, image_shape), inputs["channels_last"], inputs["tokens"])
        return TaskInfo(
            names=None if names is None else _read_names(names, classes),
            inputs=inputs,
            recipe=recipe,
            rotated=self_labels is not None,
            normalisation=None if scale is None else Inputs(*_read_scale(scale, image_shape)),
        )
    except (TypeError, ValueError, KeyError, RecursionError, OverflowError) as error:
        raise Damaged(f"its metadata cannot be read ({error})") from error


def _read_names(values: Any, classes: int) -> Names:
    if not isinstance(values, list) or len(values) != classes:
        raise ValueError(f"no names for {classes:,} classes")
    return check_names([_label(value) for value in values], "names")


def _label(value: Any) -> Label:
    """JSON writes tuples as lists."""
    return tuple(map(_label, value)) if isinstance(value, list) else value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("no mapping")
    return value


def _scale_to_text(inputs: Inputs) -> dict[str, Any]:
    """float32 in base64; in a list if there is one number per channel."""
    numbers = {"gain": inputs.gain, "offset": inputs.offset}
    texts = {name: base64.b64encode(value.cpu().numpy().astype("<f4").tobytes()) for name, value in numbers.items()}
    return {name: [text.decode()] if numbers[name].ndim else text.decode() for name, text in texts.items()}


def _read_scale(values: Any, image_shape: list[int] | None) -> tuple[Tensor, Tensor]:
    if not isinstance(values, list) or len(values) != 2:
        raise TypeError("its normalisation is not a pair")
    gain, offset = map(_numbers_from_text, values)
    if gain.ndim and (not image_shape or gain.numel() != image_shape[0]):
        raise ValueError("its normalisation is not for images of this shape")
    return gain, offset


def _numbers_from_text(value: Any) -> Tensor:
    several = isinstance(value, list) and len(value) == 1
    text = value[0] if several else value
    if not isinstance(text, str):
        raise TypeError("its normalisation is not text")
    array = np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)
    if not several and len(array) != 1:
        raise ValueError("its normalisation is not one number")
    return torch.from_numpy(array if several else array.reshape(()).copy())
