"""SupSup for scikit-learn: `fit`, `predict`, and `partial_fit` with one task per call."""

from supsup.sklearn.classifier import SupSupClassifier as SupSupClassifier
