"""Task profiles: statistics of features and scores by which a task is recognised, never an image."""

from supsup.inference.profiles.profile import TaskProfile as TaskProfile
