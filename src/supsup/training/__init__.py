"""From a task's images to a mask: the recipe, the order of the batches, and the executors that train."""

from supsup.training.auto_recipe import AutoRecipe as AutoRecipe
from supsup.training.auto_recipe import recipe_from_dict as recipe_from_dict
from supsup.training.executors import Job as Job
from supsup.training.executors import Trained as Trained
from supsup.training.executors import train_masks as train_masks
from supsup.training.plain import MaskTraining as MaskTraining
from supsup.training.plain import train_mask as train_mask
from supsup.training.recipe import MNIST as MNIST
from supsup.training.recipe import SPLIT_CIFAR100 as SPLIT_CIFAR100
from supsup.training.recipe import SPLIT_IMAGENET as SPLIT_IMAGENET
from supsup.training.recipe import Recipe as Recipe
