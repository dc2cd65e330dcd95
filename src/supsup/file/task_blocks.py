"""The tasks of a file, many at a time: masks decoded into memory, or mapped from a folder beside the model file.

That folder (`MODEL-masks`) holds decoded masks in blocks of [bytes, tasks], as a search reads them. Processes share
them through the page cache. It is derived from the model file and may be removed at any time. A block names its tasks
by a digest of all that the model file has of them; one that does not match the model file is written anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from json.encoder import encode_basestring_ascii
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from supsup.data.task import TaskInfo
from supsup.file.codec import Bytes
from supsup.file.modelfile import ModelFile
from supsup.file.paths import MASK_FOLDER, beside, new_part
from supsup.file.sqlite import explain_errors
from supsup.file.task_record import LearnedTask, TaskRecord, impossible_statistics, unpack_task
from supsup.masks.bank import tally
from supsup.masks.frozen import FrozenNet
from supsup.runtime.errors import Damaged, SupSupError

_TASKS = 256  # that are read together
_PAGE = 4096  # bytes of a block file before its bits
_BLOCK = 32 << 20  # bytes of bits in a block file, about
_NARROWEST, _WIDEST = 8, 4096  # tasks in a block file


@dataclass(frozen=True)
class TaskBlock:
    """Some tasks of a file, their masks as bytes [bytes, tasks] and their statistics [tasks, …] by name."""

    tasks: list[LearnedTask]
    packed: Tensor
    statistics: dict[str, Tensor]


def read_blocks(file: ModelFile, net: FrozenNet, first: int = 0) -> Iterator[TaskBlock]:
    """The tasks of a file from an index on, checked, on the network's device; trust none before the last has come."""
    records = file.records_from(first)
    while some := list(islice(records, _TASKS)):
        masks = np.stack([file.decoded(record) for record in some])
        learned, statistics = _unpack(some, file, net)
        columns = torch.from_numpy(masks).T.to(net.device)
        yield TaskBlock(learned, columns, statistics)


def map_blocks(file: ModelFile, net: FrozenNet) -> Iterator[tuple[TaskBlock, Tensor]]:
    """The tasks whose masks stay on disk, as many as fill whole blocks, and how many masks of a block have each bit."""
    length = sum(-(-size // 8) for size in file.header.sizes)  # bytes of a mask
    width = max(_NARROWEST, min(_WIDEST, _BLOCK // length // _NARROWEST * _NARROWEST))
    records = list(file.records(masks=False))
    for number in range(len(records) // width):
        some = records[number * width : (number + 1) * width]
        path, about = beside(file.path, MASK_FOLDER) / f"{number:06}.block", _about(some, length)
        found = _map(path, about) or _write(path, about, _masks(file, some))
        if found is None:
            raise SupSupError(f'{path}: what was written cannot be read back; load the model with masks="memory"')
        learned, statistics = _unpack(some, file, net)
        yield TaskBlock(learned, found[0], statistics), found[1]


def _unpack(some: Sequence[TaskRecord], file: ModelFile, net: FrozenNet) -> tuple[list[LearnedTask], dict[str, Tensor]]:
    """The tasks, and their statistics by name."""
    tasks: list[LearnedTask] = []
    statistics: list[dict[str, Tensor]] = []
    without_tensors: dict[tuple[bytes, int], TaskInfo] = {}  # of which many are the same
    with explain_errors(file.path):
        for task in some:
            key = task.extras, task.classes
            if key in without_tensors:
                tasks.append(LearnedTask(task.name, task.classes, task.created, {}, without_tensors[key]))
                continue
            learned, found = unpack_task(task, file.header, net)
            tasks.append(learned)
            statistics.append(found)
            if not found and not learned.extras and learned.profile is None:
                without_tensors[key] = learned.info
        stacked = {name: torch.stack([each[name] for each in statistics]) for name in net.statistics}
        for name, values in stacked.items():
            wrong = impossible_statistics(name, values)
            if bool(wrong.any()):
                first = tasks[int(wrong.flatten(1).any(1).nonzero()[0])]
                raise Damaged(f"task {first.name!r} has statistics that no training gives ({name})")
    return tasks, stacked


def _masks(file: ModelFile, records: Sequence[TaskRecord]) -> Bytes:
    """The masks [bytes, tasks] of records that were read without them."""
    found = list(islice(file.records(records[0].position), len(records)))
    if [record.checksum for record in found] != [record.checksum for record in records]:
        raise SupSupError(f"{file.path}: another process has changed it; load it again")
    return np.stack([file.decoded(record) for record in found], 1)


def _write(path: Path, about: dict[str, str | int], packed: Bytes) -> tuple[Tensor, Tensor] | None:
    """Write a block of masks [bytes, tasks], complete or not at all, and map it."""
    kept = torch.zeros(8 * len(packed), dtype=torch.int32)
    tally(kept, torch.from_numpy(packed), sign=1)
    sums = kept.numpy().astype("<u2").tobytes()
    header = json.dumps(about | {"sums": hashlib.blake2b(sums, digest_size=16).hexdigest()}).encode()
    try:
        path.parent.mkdir(exist_ok=True)
        part = new_part(path)
        with part.open("xb") as out:
            out.write(header.ljust(_PAGE))
            out.write(np.ascontiguousarray(packed).data)
            out.write(sums)
            out.flush()
            os.fsync(out.fileno())
        os.replace(part, path)
    except OSError as error:
        raise SupSupError(
            f"{path.parent}: masks cannot be written there ({error.strerror or error}); free some space, make it "
            'writable, or load the model with masks="memory"'
        ) from error
    return _map(path, about)


def _map(path: Path, about: dict[str, str | int]) -> tuple[Tensor, Tensor] | None:
    """The masks of a block as bytes [bytes, tasks], read from disk when needed, and how many of them have each bit.

    None unless the block is there and holds these tasks.
    """
    length, width = int(about["bytes"]), int(about["tasks"])
    try:
        content = np.memmap(path, np.uint8, "r")
        header = json.loads(content[:_PAGE].tobytes())
        sums = content[_PAGE + length * width :].tobytes()
        found = hashlib.blake2b(sums, digest_size=16).hexdigest()
        if header != about | {"sums": found} or len(sums) != 16 * length:
            return None
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    packed: NDArray[np.uint8] = content[_PAGE : _PAGE + length * width].reshape(length, width)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tensor is read-only, and nobody writes to it
        return torch.from_numpy(packed), torch.from_numpy(np.frombuffer(sums, "<u2").astype(np.int32))


def _about(records: Sequence[TaskRecord], length: int) -> dict[str, str | int]:
    """What identifies a block: all that the model file has of its tasks, the masks by their checksums."""
    digest = hashlib.blake2b(digest_size=16)
    for record in records:
        name, created = encode_basestring_ascii(record.name), encode_basestring_ascii(record.created)
        words = f"[{name}, {created}, {record.classes}, {record.kept}, {len(record.extras)}]"  # JSON, but faster
        digest.update(words.encode() + record.checksum + record.extras)
    return {"format": 1, "bytes": length, "tasks": len(records), "digest": digest.hexdigest()}
