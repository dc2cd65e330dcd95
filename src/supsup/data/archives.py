"""Published data files: found in a folder the user has, or fetched once from a mirror, and checked either way."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supsup.runtime.downloads import fetched, kept_in, write_whole
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import path as checked_path


@dataclass(frozen=True)
class Archive:
    """A data set as it is published: gzipped files with their MD5, and the addresses of folders that hold them.

    folders:  names that a local folder of this data set may go by; the first one is used in the cache.
    unzipped: MD5 of the same files unzipped, by the name without .gz; where there is none they are not checked.
    most:     bytes that a file may have.
    within:   seconds that the download of a file may take.
    """

    folders: tuple[str, ...]
    checksums: Mapping[str, str]
    mirrors: tuple[str, ...]
    unzipped: Mapping[str, str] = field(default_factory=dict)
    most: int = 200 * 10**6
    within: float = 1800.0


def locate(archive: Archive, data_dir: Any = None, timeout: float = 30.0) -> Path:
    """The folder that holds every file of the archive, gzipped or not.

    Looks in `data_dir` alone if given; else in $SUPSUP_DATA, then in the cache, and downloads to there what is missing.
    """
    try:
        if data_dir is not None:
            return _named_folder(archive, checked_path(data_dir, "data_dir"))
        data = os.environ.get("SUPSUP_DATA")
        cache = cache_folder(archive)
        local = [checked_path(data, "SUPSUP_DATA") / folder for folder in archive.folders] if data else []
        for folder in (*local, cache):
            if not _missing(archive, folder):
                return folder
        for name in _missing(archive, cache):
            _download(archive, name, cache, timeout)
    except OSError as error:
        raise SupSupError(f"the files of {archive.folders[0]} cannot be looked for: {error}") from error
    return cache


def find(folder: Path, name: str) -> Path:
    """The gzipped file of this name where there is one, else the unzipped one."""
    path = folder / name
    return path if path.is_file() else folder / name.removesuffix(".gz")


def content(archive: Archive, path: Path) -> bytes:
    """The unzipped bytes of a file, which must have the published checksum."""
    try:
        stored = path.read_bytes()
    except OSError as error:
        raise SupSupError(f"{path} cannot be read: {error}") from error
    expected = archive.checksums.get(path.name) or archive.unzipped.get(path.name)
    if expected is not None and _md5(stored) != expected:
        raise SupSupError(
            f"{path} is damaged or another file: its MD5 is {_md5(stored)}, not {expected}; "
            f"delete it or put a good copy in its place"
        )
    return gzip.decompress(stored) if path.name in archive.checksums else stored


def cache_folder(archive: Archive) -> Path:
    """Where downloads of this archive are kept."""
    return kept_in(archive.folders[0])


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
            got = fetched(url, name, most=archive.most, silence=timeout, within=archive.within)
            if _md5(got) == archive.checksums[name]:
                return write_whole(got, folder / name)
            failures.append(f"{url}: the MD5 is {_md5(got)}, not {archive.checksums[name]}")
        except (OSError, SupSupError) as error:
            failures.append(f"{url}: {error}")
    reasons = "\n  ".join(failures)
    raise SupSupError(
        f"{name} could not be downloaded:\n  {reasons}\n"
        f"Put {', '.join(archive.checksums)} into {folder}, or into DIR/{archive.folders[0]} and set SUPSUP_DATA=DIR."
    )


def _md5(stored: bytes) -> str:
    return hashlib.md5(stored, usedforsecurity=False).hexdigest()
