"""What every task leaves behind so that it can be found again: statistics of features and of scores, never an image."""

from supsup.inference.profiles.profile import TaskProfile as TaskProfile
