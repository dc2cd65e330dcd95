"""One frozen random network, one binary mask per task, and no one needs to say which task an input belongs to.

Names are imported when they are first used: `supsup --help` need not wait for torch.
"""

import os as _os
import sys as _sys
from importlib import import_module as _import_module
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supsup import data as data
    from supsup import nets as nets
    from supsup.allocation import Allocation as Allocation
    from supsup.errors import SupSupError as SupSupError
    from supsup.evaluate import Evaluation as Evaluation
    from supsup.evaluate import evaluate as evaluate
    from supsup.evaluate import follow as follow
    from supsup.file.export import export as export
    from supsup.hopfield.learner import HopSupSup as HopSupSup
    from supsup.hopfield.recovery import Recovery as Recovery
    from supsup.hopfield.units import UnitRecipe as UnitRecipe
    from supsup.inference import Inference as Inference
    from supsup.learner import SupSup as SupSup
    from supsup.learner import load as load
    from supsup.protocol import Prediction as Prediction
    from supsup.scenario import Scenario as Scenario
    from supsup.training import Fitting as Fitting
    from supsup.training import Recipe as Recipe

__version__ = "0.1.0"

_MODULES = ("data", "nets")
_HOMES = {
    "Allocation": "allocation",
    "SupSupError": "errors",
    "Evaluation": "evaluate",
    "evaluate": "evaluate",
    "follow": "evaluate",
    "export": "file.export",
    "HopSupSup": "hopfield.learner",
    "Recovery": "hopfield.recovery",
    "UnitRecipe": "hopfield.units",
    "Inference": "inference",
    "SupSup": "learner",
    "load": "learner",
    "Prediction": "protocol",
    "Scenario": "scenario",
    "Fitting": "training",
    "Recipe": "training",
}
__all__ = [*_MODULES, *_HOMES]

if "torch" not in _sys.modules:  # read once, with torch: threads that wait give way, or a busy machine comes to a halt
    _os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return _import_module(f"supsup.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'supsup' has no attribute {name!r}")
    found: object = getattr(_import_module(f"supsup.{_HOMES[name]}"), name)
    if name != "evaluate":
        globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(_ModuleType):
    """`supsup.evaluate` is the function, although importing anything sets it to the module of that name."""

    @property
    def evaluate(self) -> object:
        return __getattr__("evaluate")

    @evaluate.setter
    def evaluate(self, module: _ModuleType) -> None:
        pass


_sys.modules[__name__].__class__ = _Package
