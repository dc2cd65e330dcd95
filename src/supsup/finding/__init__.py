"""What every task leaves behind so that it can be found again: statistics of features and of scores, never an image."""

from supsup.finding.trace import Trace as Trace
