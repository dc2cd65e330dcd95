"""What SupSup is measured against, each with the same face: `learn`, `predict`, `tasks`."""

from supsup.baselines.fine_tuning import FineTuning as FineTuning
