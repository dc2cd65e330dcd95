"""How the paper's experiments are trained where a row says nothing; lengths and budgets stand in the rows."""

from __future__ import annotations

from dataclasses import replace

from supsup.training import MNIST as MNIST
from supsup.training import SPLIT_CIFAR100, SPLIT_IMAGENET, Recipe
from supsup_paper.baselines.initial import Filling

BATCHE = Recipe("adam", 1e-2, weight_decay=1e-4)
BATCHE_FILLING: Filling = "kaiming_normal"
CONSOLIDATION = Recipe("adam", 1e-4)

CIFAR_BASELINES = Recipe("adam", 1e-3, schedule="cosine", weight_decay=1e-4)  # first tasks and bounds
CIFAR_LATER = replace(CIFAR_BASELINES, learning_rate=1e-2)  # vectors and heads beside a trained or random trunk
CIFAR_RANDOM = replace(CIFAR_BASELINES, learning_rate=0.1)  # vectors beside a random trunk
CIFAR_FILLING: Filling = "kaiming_uniform"

IMAGENET_BOUNDS = replace(SPLIT_IMAGENET, selection="threshold", budget=None)  # of weights: nothing is selected

UNNAMED_SCRATCH = replace(SPLIT_CIFAR100, self_labels="rotations")
UNNAMED_PRETRAINED = Recipe("adam", 3e-4, schedule="cosine", score_bound=0.005)
