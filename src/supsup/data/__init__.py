"""Sources (whole data sets) and streams (sequences of tasks made from one)."""

from supsup.data.augmentation import Augmentation as Augmentation
from supsup.data.datasets import SOURCES as SOURCES
from supsup.data.datasets import cifar100 as cifar100
from supsup.data.datasets import digits as digits
from supsup.data.datasets import fashion_mnist as fashion_mnist
from supsup.data.datasets import mnist as mnist
from supsup.data.datasets import named as named
from supsup.data.folder import image_folder as image_folder
from supsup.data.inputs import Inputs as Inputs
from supsup.data.streams import Source as Source
from supsup.data.streams import Stream as Stream
from supsup.data.streams import arrays as arrays
from supsup.data.streams import permuted as permuted
from supsup.data.streams import rotated as rotated
from supsup.data.streams import split as split
from supsup.data.task import Part as Part
from supsup.data.task import Task as Task
from supsup.data.user_data import task as task
