"""Sources (whole data sets) and streams (sequences of tasks made from one)."""

from supsup.data.augmentation import Augmentation
from supsup.data.cifar100 import cifar100
from supsup.data.digits import digits
from supsup.data.folder import image_folder
from supsup.data.inputs import Inputs
from supsup.data.mnist import fashion_mnist, mnist
from supsup.data.registry import SOURCES, named
from supsup.data.source import Source, arrays
from supsup.data.streams import Stream, permuted, rotated, split
from supsup.data.task import Part, Task
from supsup.data.task_builder import task

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
