"""Sources (whole data sets) and streams (sequences of tasks made from one)."""

from supsup.data.digits import digits
from supsup.data.mnist import fashion_mnist, mnist
from supsup.data.named import SOURCES, named
from supsup.data.source import Source, arrays
from supsup.data.streams import Stream, permuted, rotated, split
from supsup.data.task import Part, Task

__all__ = [
    "SOURCES",
    "Part",
    "Source",
    "Stream",
    "Task",
    "arrays",
    "digits",
    "fashion_mnist",
    "mnist",
    "named",
    "permuted",
    "rotated",
    "split",
]
