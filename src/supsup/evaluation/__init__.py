"""Scenarios, grading, `evaluate`, and the promises that every learner is checked against."""

from supsup.evaluation.evaluator import Evaluation as Evaluation
from supsup.evaluation.evaluator import evaluate as evaluate
from supsup.evaluation.evaluator import learn_and_evaluate as learn_and_evaluate
