"""Sources (whole data sets) and streams (sequences of tasks made from one)."""

from supsup.data.augmentation import Augmentation
from supsup.data.datasets import SOURCES, cifar100, digits, fashion_mnist, mnist, named
from supsup.data.folder import image_folder
from supsup.data.inputs import Inputs
from supsup.data.streams import Source, Stream, arrays, permuted, rotated, split
from supsup.data.task import Part, Task
from supsup.data.user_data import task

__all__ = [
    "SOURCES",
    "Augmentation",
    "Inputs",
    "Part",
    "Source",
    "Stream",
    "Task",
    "arrays",
    "cifar100",
    "digits",
    "fashion_mnist",
    "image_folder",
    "mnist",
    "named",
    "permuted",
    "rotated",
    "split",
    "task",
]
