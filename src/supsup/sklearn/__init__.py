"""The face that scikit-learn knows: `fit`, `predict`, and `partial_fit` with one task a call."""

from supsup.sklearn.classifier import SupSupClassifier as SupSupClassifier
