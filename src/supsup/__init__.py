"""One frozen random network, one binary mask per task, and no one needs to say which task an input belongs to."""

import os as _os
import sys as _sys

if "torch" not in _sys.modules:  # read once, with torch: threads that wait give way, or a busy machine comes to a halt
    _os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

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
