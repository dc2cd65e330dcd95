"""Sources by the names a user types on the command line."""

from __future__ import annotations

import os
from collections.abc import Callable

from supsup.data.cifar100 import cifar100
from supsup.data.digits import digits
from supsup.data.mnist import fashion_mnist, mnist
from supsup.data.source import Source
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import quoted

SOURCES: dict[str, Callable[[str | os.PathLike[str] | None], Source]] = {
    "digits": lambda data_dir: digits(),
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar100": cifar100,
}


def named(name: str, data_dir: str | os.PathLike[str] | None = None) -> Source:
    """The source of this name, from local files in `data_dir` if given."""
    if not isinstance(name, str) or name not in SOURCES:
        raise SupSupError(f"there is no source called {quoted(name)}; use one of {', '.join(SOURCES)}")
    return SOURCES[name](data_dir)
