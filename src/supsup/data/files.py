"""Published data files: found in a folder the user has, or fetched once from a mirror, and checked either way."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from supsup import progress
from supsup.errors import SupSupError

_MEGABYTE = 10**6


@dataclass(frozen=True)
class Archive:
    """A data set as it is published: gzipped files with their MD5, and the addresses of folders that hold them.

    folders: names that a local folder of this data set may go by; the first one is used in the cache.
    """

    folders: tuple[str, ...]
    checksums: Mapping[str, str]
    mirrors: tuple[str, ...]


def locate(archive: Archive, data_dir: str | os.PathLike[str] | None = None, timeout: float = 30.0) -> Path:
    """The folder that holds every file of the archive, gzipped or not.

    Looks in `data_dir` alone if given; else in $SUPSUP_DATA, then in the cache, and downloads to there what is missing.
    """
    if data_dir is not None:
        return _named_folder(archive, Path(data_dir).expanduser())
    data = os.environ.get("SUPSUP_DATA")
    cache = cache_folder(archive)
    local = [Path(data).expanduser() / folder for folder in archive.folders] if data else []
    for folder in (*local, cache):
        if not _missing(archive, folder):
            return folder
    for name in _missing(archive, cache):
        _download(archive, name, cache, timeout)
    return cache


def find(folder: Path, name: str) -> Path:
    """The gzipped file of this name where there is one, else the unzipped one."""
    path = folder / name
    return path if path.is_file() else folder / name.removesuffix(".gz")


def content(archive: Archive, path: Path) -> bytes:
    """The unzipped bytes of a file; a gzipped one must have the published checksum."""
    stored = path.read_bytes()
    expected = archive.checksums.get(path.name)
    if expected is None:
        return stored
    if _md5(stored) != expected:
        raise SupSupError(
            f"{path} is damaged or another file: its MD5 is {_md5(stored)}, not {expected}; "
            f"delete it or put a good copy in its place"
        )
    return gzip.decompress(stored)


def cache_folder(archive: Archive) -> Path:
    """Where downloads of this archive are kept."""
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "supsup" / archive.folders[0]


def _named_folder(archive: Archive, data_dir: Path) -> Path:
    candidates = [*(data_dir / folder for folder in archive.folders), data_dir]
    missing = {folder: _missing(archive, folder) for folder in candidates}
    nearest = min(candidates, key=lambda folder: len(missing[folder]))
    if missing[nearest]:
        raise SupSupError(
            f"{', '.join(missing[nearest])} not found in {data_dir} (nor in its folder {archive.folders[0]}); "
            f"put the files there, gzipped or not, or give no data_dir to have them downloaded"
        )
    return nearest


def _missing(archive: Archive, folder: Path) -> list[str]:
    return [name for name in archive.checksums if not find(folder, name).is_file()]


def _download(archive: Archive, name: str, folder: Path, timeout: float) -> None:
    """Fetch a file into the folder from the first mirror that has it whole."""
    failures = []
    for mirror in archive.mirrors:
        url = f"{mirror}/{name}"
        try:
            with urllib.request.urlopen(url, timeout=timeout) as response:
                fetched = _fetched(response, name)
            if _md5(fetched) == archive.checksums[name]:
                return _write(fetched, folder / name)
            failures.append(f"{url}: the MD5 is {_md5(fetched)}, not {archive.checksums[name]}")
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"{url}: {error}")
    reasons = "\n  ".join(failures)
    raise SupSupError(
        f"{name} could not be downloaded:\n  {reasons}\n"
        f"Put {', '.join(archive.checksums)} into {folder}, or into DIR/{archive.folders[0]} and set SUPSUP_DATA=DIR."
    )


def _fetched(response: http.client.HTTPResponse, name: str) -> bytes:
    """The whole answer, with a progress bar in megabytes where its length is known."""
    pieces = []
    megabytes = int(response.headers.get("Content-Length") or 0) // _MEGABYTE
    with progress.bar(f"downloading {name}", megabytes, "MB", show=None if megabytes else False) as advance:
        while piece := response.read(_MEGABYTE):
            pieces.append(piece)
            advance(len(piece) / _MEGABYTE)
    return b"".join(pieces)


def _write(stored: bytes, path: Path) -> None:
    """Make the file appear complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        part = Path(folder) / path.name
        part.write_bytes(stored)
        os.replace(part, path)


def _md5(stored: bytes) -> str:
    return hashlib.md5(stored, usedforsecurity=False).hexdigest()
