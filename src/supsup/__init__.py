"""One frozen random network, one binary mask per task, and no one needs to say which task an input belongs to."""

from supsup import data as data
from supsup import nets as nets
from supsup.allocation import Allocation as Allocation
from supsup.errors import SupSupError as SupSupError
from supsup.evaluate import Evaluation as Evaluation
from supsup.evaluate import evaluate as evaluate
from supsup.evaluate import follow as follow
from supsup.exporting import export as export
from supsup.hop_learner import HopSupSup as HopSupSup
from supsup.inference import Inference as Inference
from supsup.learner import SupSup as SupSup
from supsup.loading import load as load
from supsup.prediction import Prediction as Prediction
from supsup.recovery import Recovery as Recovery
from supsup.scenario import Scenario as Scenario
from supsup.training import Recipe as Recipe
from supsup.training.units import UnitRecipe as UnitRecipe

__version__ = "0.1.0"
