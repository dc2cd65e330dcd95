"""A model as the bytes of its file, for `pickle` and whatever is built on it: what comes out of it has been checked."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from supsup.runtime.errors import SupSupError

_NAME = "model.supsup"
_Model = TypeVar("_Model")


def content_of(save: Callable[[Path], None]) -> bytes:
    """What `save` writes to a file."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            save(Path(folder) / _NAME)
            return (Path(folder) / _NAME).read_bytes()
    except OSError as error:
        raise SupSupError(f"a copy of the model could not be made by way of a file: {error}") from error


def from_content(content: bytes, load: Callable[[Path], _Model]) -> _Model:
    """What `load` makes of a file with this content."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / _NAME).write_bytes(content)
            return load(Path(folder) / _NAME)
    except OSError as error:
        raise SupSupError(f"a copy of the model could not be made by way of a file: {error}") from error
