"""Where fetched files are kept; each appears there complete or not at all."""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

from supsup.errors import SupSupError

_LEFT_BEHIND = 3600.0  # seconds after which a part of a download is nobody's any more


def kept_in(folder: str) -> Path:
    """A folder of the cache."""
    caches = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(caches) if caches else Path.home() / ".cache") / "supsup" / folder
    except RuntimeError as error:
        raise SupSupError(
            f"there is no home folder to keep {folder} in ({error}); set SUPSUP_DATA to a folder that has "
            f"the data, or XDG_CACHE_HOME to one where downloads may be kept"
        ) from error


def write_whole(stored: bytes, path: Path) -> None:
    """Make the file appear complete or not at all; what a process that was killed has left of it goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f".{path.name}.*.part"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > _LEFT_BEHIND:
                old.unlink()
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        part.write_bytes(stored)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
