"""MNIST and Fashion-MNIST: 60,000 training and 10,000 test images of 28×28, ten classes, in the same four idx files."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from supsup.data import mnist as idx
from supsup.data.archives import Archive, content, find, locate
from supsup.data.source import Source
from supsup.runtime.errors import SupSupError

_CLASSES = 10

MNIST = Archive(
    folders=("mnist",),
    checksums={
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    ),
    unzipped={
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    most=32 * 10**6,
)
FASHION_MNIST = Archive(
    folders=("fashion_mnist", "fashion-mnist"),
    checksums={
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        "https://fashion-mnist.s3.eu-central-1.amazonaws.com",
    ),
    unzipped={
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    most=32 * 10**6,
)


def mnist(data_dir: str | os.PathLike[str] | None = None) -> Source:
    """Handwritten digits, normalised as in the paper: (pixel / 255 − 0.1307) / 0.3081.

    The files are looked for in `data_dir` if given, else in $SUPSUP_DATA/mnist and the user's cache, else downloaded.
    """
    return _source("mnist", MNIST, data_dir, mean=0.1307, std=0.3081)


def fashion_mnist(data_dir: str | os.PathLike[str] | None = None) -> Source:
    """Clothes in the form of MNIST; found as `mnist` is, in $SUPSUP_DATA/fashion_mnist or …/fashion-mnist."""
    return _source("fashion-mnist", FASHION_MNIST, data_dir, mean=0.2860, std=0.3530)


def normalisation(mean: float, std: float) -> tuple[Tensor, Tensor]:
    """gain and offset for pixels 0 … 255, from the mean and standard deviation of pixel / 255."""
    return torch.tensor(1 / (255 * std)), torch.tensor(-mean / std)


def _source(name: str, archive: Archive, data_dir: str | os.PathLike[str] | None, mean: float, std: float) -> Source:
    folder = locate(archive, data_dir)
    train_images, train_labels = _half(archive, folder, "train", 60_000)
    test_images, test_labels = _half(archive, folder, "t10k", 10_000)
    gain, offset = normalisation(mean, std)
    return Source(name, train_images, train_labels, test_images, test_labels, gain, offset, _CLASSES)


def _half(archive: Archive, folder: Path, prefix: str, count: int) -> tuple[Tensor, Tensor]:
    images = _read(archive, find(folder, f"{prefix}-images-idx3-ubyte.gz"), (count, 28, 28))
    path = find(folder, f"{prefix}-labels-idx1-ubyte.gz")
    labels = _read(archive, path, (count,))
    if labels.max() >= _CLASSES:
        raise SupSupError(f"{path} has labels up to {labels.max()}, but there are {_CLASSES} classes; get it again")
    return images[:, None], labels.long()


def _read(archive: Archive, path: Path, shape: tuple[int, ...]) -> Tensor:
    tensor = idx.parse(content(archive, path), str(path))
    if tensor.shape != shape:
        raise SupSupError(f"{path} holds {list(tensor.shape)} values, not {list(shape)}; put the right file there")
    return tensor


# MERGED MODULE DOC: The idx format, in which MNIST and its relatives are published: unsigned bytes in any number of dimensions.
_UNSIGNED_BYTES = 0x08


def parse(content: bytes, where: str) -> Tensor:
    """The uint8 tensor in the content of an idx file; `where` names the file in errors."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[3] == 0:
        raise SupSupError(f"{where} is not an idx file (it starts with {content[:4].hex(' ')!r}); get it again")
    kind, dimensions = content[2], content[3]
    if kind != _UNSIGNED_BYTES:
        raise SupSupError(f"{where} holds idx values of type 0x{kind:02x}; only unsigned bytes (0x08) are read")
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise SupSupError(f"{where} is cut short: {len(content)} bytes, its header alone has {start}; get it again")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    expected = start + math.prod(shape)
    if len(content) != expected:
        fault = "is cut short" if len(content) < expected else "goes on after its end"
        raise SupSupError(
            f"{where} {fault}: {len(content)} bytes, its header {list(shape)} asks for {expected}; get it again"
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())
