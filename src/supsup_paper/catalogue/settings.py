"""A row's settings as the files in results/ have them: what the row says, and what the code does where it says nothing.

The second part is read from the code that runs. So a default that is changed makes the results that were made with the
old one stale, and they are run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from supsup.hopfield.units import Recovery, UnitRecipe
from supsup.inference.auto import AutoWeights
from supsup.inference.new_task import NewTaskRule
from supsup.inference.profiles.features import SIZES
from supsup.training import SPLIT_CIFAR100, SPLIT_IMAGENET, Recipe
from supsup_paper.catalogue import experiments as images
from supsup_paper.catalogue import experiments as mnist
from supsup_paper.catalogue import recipes
from supsup_paper.catalogue.experiments import Experiment, Json, settings_json

Defaults = dict[str, Json]
# What executors of training take where nobody asks for a precision; baselines multiply as trials.py lets them.
MASKS: Json = {"GPU": "bfloat16", "CPU": "float32"}
BASELINES: Json = {"GPU": "tf32", "CPU": "float32"}
EXACT: Json = {"GPU": "float32", "CPU": "float32"}


def settings_of(experiment: Experiment) -> dict[str, Json]:
    """An experiment's settings, with the defaults of this code."""
    training, own = settings_json(experiment.training), settings_json(experiment.own)
    said: dict[str, Json] = {"run": experiment.kind, "training": training, "own": own}
    make = _DEFAULTS.get(experiment.kind)
    if make is None:  # nothing is trained
        return said
    return said | {"defaults": _where_silent(make(), training, own)}


def _where_silent(defaults: Mapping[str, Json], training: Mapping[str, Json], own: Mapping[str, Json]) -> Defaults:
    """Defaults without what the row says itself."""
    kept: Defaults = {}
    for name, value in defaults.items():
        changed = training.get(name)  # "allocation" may change a part of it
        said = {*training, *own, *(changed if isinstance(changed, dict) else ())}
        kept[name] = {key: item for key, item in value.items() if key not in said} if isinstance(value, dict) else value
    return kept


def _trained(recipe: Recipe, precision: Json, **more: Json) -> Defaults:
    """Length and budget stand in the row in any case."""
    fixed = {name: value for name, value in settings_json(recipe).items() if name not in ("steps", "epochs", "budget")}
    return {"recipe": fixed | {"second decay": recipe.rule.second_decay}, "precision": precision, **more}


def _found() -> Defaults:
    """How tasks are found that nobody names."""
    sizes: Json = {name: settings_json(size) for name, size in SIZES.items()}
    return {"profiles": sizes, "finding": settings_json(AutoWeights())}


def _hopfield() -> Defaults:
    return {"recipe": settings_json(UnitRecipe()), "recovery": settings_json(Recovery()), "precision": EXACT}


def _unannounced() -> Defaults:
    return _trained(recipes.MNIST, MASKS, allocation=settings_json(NewTaskRule()))


def _cifar_baselines() -> Defaults:
    rates: Json = {
        "first": recipes.CIFAR_BASELINES.learning_rate,
        "later": recipes.CIFAR_LATER.learning_rate,
        "random": recipes.CIFAR_RANDOM.learning_rate,
    }
    return _trained(recipes.CIFAR_BASELINES, MASKS, rates=rates, filling=recipes.CIFAR_FILLING)


_DEFAULTS: dict[str, Callable[[], Defaults]] = {
    mnist.SupSupExperiment.kind: lambda: _trained(recipes.MNIST, MASKS),
    mnist.UnannouncedExperiment.kind: _unannounced,
    mnist.PSPExperiment.kind: lambda: _trained(recipes.MNIST, BASELINES),
    mnist.BoundsExperiment.kind: lambda: _trained(recipes.MNIST, BASELINES),
    mnist.ConsolidationExperiment.kind: lambda: _trained(recipes.CONSOLIDATION, BASELINES),
    mnist.BatchEExperiment.kind: lambda: _trained(recipes.BATCHE, BASELINES, filling=recipes.BATCHE_FILLING),
    mnist.HopfieldExperiment.kind: _hopfield,
    images.SplitCifarExperiment.kind: lambda: _trained(SPLIT_CIFAR100, MASKS),
    images.TransferSpeedExperiment.kind: lambda: _trained(SPLIT_CIFAR100, MASKS),
    images.SplitCifarBaselineExperiment.kind: _cifar_baselines,
    images.SplitImagenetExperiment.kind: lambda: _trained(SPLIT_IMAGENET, MASKS),
    images.ImagenetBoundsExperiment.kind: lambda: _trained(
        recipes.IMAGENET_BOUNDS, MASKS, filling=recipes.CIFAR_FILLING
    ),
    images.ScratchUnnamedExperiment.kind: lambda: _trained(recipes.UNNAMED_SCRATCH, MASKS, **_found()),
    images.PretrainedUnnamedExperiment.kind: lambda: _trained(recipes.UNNAMED_PRETRAINED, MASKS, **_found()),
}
