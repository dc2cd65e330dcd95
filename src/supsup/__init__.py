"""One frozen random network, one binary mask per task, and no one needs to say which task an input belongs to.

Names are imported when they are first used: `supsup --help` need not wait for torch.
"""

import typing as _typing
from importlib import import_module as _import_module

if _typing.TYPE_CHECKING:
    from supsup import data as data
    from supsup import nets as nets
    from supsup.evaluation.evaluator import Evaluation as Evaluation
    from supsup.evaluation.evaluator import evaluate as evaluate
    from supsup.evaluation.grading import Scenario as Scenario
    from supsup.hopfield.learner import HopSupSup as HopSupSup
    from supsup.hopfield.units import Recovery as Recovery
    from supsup.hopfield.units import UnitRecipe as UnitRecipe
    from supsup.inference.methods import Inference as Inference
    from supsup.inference.new_task import NewTaskRule as NewTaskRule
    from supsup.model.export import export as export
    from supsup.model.predictor import Prediction as Prediction
    from supsup.model.supsup import SupSup as SupSup
    from supsup.model.supsup import load as load
    from supsup.runtime.errors import SupSupError as SupSupError
    from supsup.runtime.process import tune_process as tune_process
    from supsup.training.auto_recipe import AutoRecipe as AutoRecipe
    from supsup.training.recipe import Recipe as Recipe

__version__ = "0.1.0"

_MODULES = ("data", "nets")
_HOMES = {
    "NewTaskRule": "inference.new_task",
    "SupSupError": "runtime.errors",
    "tune_process": "runtime.process",
    "Evaluation": "evaluation.evaluator",
    "evaluate": "evaluation.evaluator",
    "export": "model.export",
    "HopSupSup": "hopfield.learner",
    "Recovery": "hopfield.units",
    "UnitRecipe": "hopfield.units",
    "Inference": "inference.methods",
    "SupSup": "model.supsup",
    "load": "model.supsup",
    "Prediction": "model.predictor",
    "Scenario": "evaluation.grading",
    "AutoRecipe": "training.auto_recipe",
    "Recipe": "training.recipe",
}
__all__ = [*_MODULES, *_HOMES]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return _import_module(f"supsup.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'supsup' has no attribute {name!r}")
    found: object = getattr(_import_module(f"supsup.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(["__version__", *__all__])
