"""Masks as a search reads them, beside the model file: derived from it, mapped into memory, read as they are needed.

The model file is what counts. A folder beside it (`MODEL-masks`) has its masks decoded, in blocks of [bytes, tasks]
that processes share through the page cache. A block says which tasks it is of, by a digest of their checksums and of
all that belongs to them; one that does not fit the model file is made anew. The folder may be removed at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from supsup.file.codec import Bytes
from supsup.file.format import TaskRecord
from supsup.file.modelfile import ModelFile
from supsup.file.paths import beside, new_part
from supsup.masks.bank import tally
from supsup.runtime.errors import SupSupError

_PAGE = 4096  # bytes of a block before its bits
_BLOCK = 32 << 20  # bytes of a block's bits, about
_NARROWEST, _WIDEST = 8, 4096  # tasks of a block


class MappedBlock(NamedTuple):
    """Masks as bytes [bytes, tasks], read from the disk as they are needed, and how many of them have each bit."""

    packed: Tensor
    kept: Tensor


class MaskFolder:
    """The blocks beside a model file; only whole blocks are there, and what is left over is in the model file alone."""

    def __init__(self, path: Path, length: int) -> None:
        self._folder = beside(path, ENDING)
        self._length = length  # bytes of a mask
        wanted = _BLOCK // max(1, length) // _NARROWEST * _NARROWEST
        self.width = max(_NARROWEST, min(_WIDEST, wanted))

    def blocks(self, file: ModelFile, records: Sequence[TaskRecord]) -> Iterator[MappedBlock]:
        """The blocks of a file whose tasks are these, in order, made where they are not there."""
        for number in range(len(records) // self.width):
            some = records[number * self.width : (number + 1) * self.width]
            about = _about(some, self._length)
            block = self._mapped(number, about)
            if block is None:
                found = list(file.records_between(some[0].position, some[-1].position))
                if [record.checksum for record in found] != [record.checksum for record in some]:
                    raise SupSupError(f"{file.path}: another process has changed it meanwhile; load it again")
                block = self._write(number, about, np.stack([file.decoded(record).packed for record in found], 1))
            yield block

    def _write(self, number: int, about: dict[str, str | int], packed: Bytes) -> MappedBlock:
        """Write one block, masks [bytes, tasks], whole or not at all."""
        path, columns = self._path(number), torch.from_numpy(packed)
        kept = torch.zeros(8 * self._length, dtype=torch.int32)
        tally(kept, columns, sign=1)
        sums = kept.numpy().astype("<u2").tobytes()
        header = json.dumps(about | {"sums": hashlib.blake2b(sums, digest_size=16).hexdigest()}).encode()
        try:
            self._folder.mkdir(exist_ok=True)
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
                f"{self._folder}: masks cannot be written there ({error.strerror or error}); make room, make it "
                'writable, or load the model with masks="memory"'
            ) from error
        block = self._mapped(number, about)
        if block is None:
            raise SupSupError(f'{path}: what was written cannot be read again; load the model with masks="memory"')
        return block

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06}.block"

    def _mapped(self, number: int, about: dict[str, str | int]) -> MappedBlock | None:
        """A block, None where there is none of these tasks."""
        path, bits = self._path(number), self._length * self.width
        try:
            content = np.memmap(path, np.uint8, "r")
            header = json.loads(content[:_PAGE].tobytes())
            sums = content[_PAGE + bits :].tobytes()
            replaced = hashlib.blake2b(sums, digest_size=16).hexdigest()
            if header != about | {"sums": replaced} or len(sums) != 16 * self._length:
                return None
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        packed: NDArray[np.uint8] = content[_PAGE : _PAGE + bits].reshape(self._length, self.width)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it cannot be written to, and nobody will
            return MappedBlock(torch.from_numpy(packed), torch.from_numpy(np.frombuffer(sums, "<u2").astype(np.int32)))


def _about(records: Sequence[TaskRecord], length: int) -> dict[str, str | int]:
    """Which tasks a block is of: all that the model file has of them, their masks by the checksums."""
    digest = hashlib.blake2b(digest_size=16)
    for record in records:
        name, created = encode_basestring_ascii(record.name), encode_basestring_ascii(record.created)
        words = f"[{name}, {created}, {record.classes}, {record.kept}, {len(record.extras)}]"  # JSON, but faster
        digest.update(words.encode() + record.checksum + record.extras)
    return {"format": 1, "bytes": length, "tasks": len(records), "digest": digest.hexdigest()}


# MERGED MODULE DOC: The blocks of masks beside a model file, for whoever changes that file: they must not outlive a task.
ENDING = "-masks"  # of the folder's name, after that of the model file
_NAME = re.compile(r"\d{6,}\.block(\..*)?")


def discard(path: Path) -> None:
    """Remove the blocks beside a model file: before a task goes, so that none of its bits stay."""
    folder = beside(path, ENDING)
    if folder.is_symlink() or not folder.is_dir():
        return
    for each in folder.iterdir():
        if _NAME.fullmatch(each.name.removeprefix(".")):
            each.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
