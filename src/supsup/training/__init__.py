"""From a task's images to a mask: the recipe, the order of the batches, and the executors that train."""

from supsup.training.auto_recipe import AutoRecipe as AutoRecipe
from supsup.training.auto_recipe import train_with_auto_recipe as train_with_auto_recipe
from supsup.training.executors import train_masks as train_masks
from supsup.training.jobs import Job as Job
from supsup.training.jobs import Trained as Trained
from supsup.training.plain import MaskTraining as MaskTraining
from supsup.training.plain import train_mask as train_mask
from supsup.training.recipe import MNIST as MNIST
from supsup.training.recipe import SPLIT_CIFAR100 as SPLIT_CIFAR100
from supsup.training.recipe import SPLIT_IMAGENET as SPLIT_IMAGENET
from supsup.training.recipe import Recipe as Recipe
