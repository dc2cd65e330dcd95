"""How far a figure may differ from the published one and still count as reproduced, for the whole catalogue.

These tolerances were set after the first results were known, and replaced wider, one-sided ones. So each names its
source. Where seeds differ by more, their spread counts instead (supsup_paper/report/verdicts.py).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """A tolerance in points, the rows it is for, and its source."""

    points: float
    rows: str
    source: str


MNIST = Tolerance(
    0.3,
    "SupSup on PermutedMNIST and RotatedMNIST",
    "Where the task is nearly always inferred correctly, our seeds deviate by 0.03 to 0.24 after the last task. The "
    "paper's two tables of one experiment (FC, 500 outputs, H: Tables 4 and 7) differ by 0.01 to 0.86.",
)
IMAGES = Tolerance(
    0.5,
    "SupSup on SplitCIFAR100 and SplitImageNet",
    "The published means over 5 seeds have deviations of 0.61 to 1.31, so each mean has an error of 0.3 to 0.6 "
    "(deviation / √5). For SplitImageNet no deviation is published.",
)
HOPSUPSUP = Tolerance(
    0.3,
    "HopSupSup on SplitMNIST",
    "As for the other streams of MNIST. With the learned masks our seeds deviate by 0.08.",
)
BASELINES = Tolerance(
    1.0,
    "baselines and bounds",
    "Settings that the paper does not state (initial weights and heads, learning rates of the first task) move "
    "baselines by whole points (docs/baselines.md). Some figures are cited from papers with other networks.",
)
OVERHEAD = Tolerance(0.5, "cost of a mask", "The paper says “about 1 %” without a decimal, so half a unit.")

TOLERANCES = (MNIST, IMAGES, HOPSUPSUP, BASELINES, OVERHEAD)
