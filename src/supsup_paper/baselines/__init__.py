"""What SupSup is measured against, each with the same face: `learn`, `predict`, `tasks`, and `bytes`."""

from supsup_paper.baselines.baseline import Baseline as Baseline
from supsup_paper.baselines.batche import BatchE as BatchE
from supsup_paper.baselines.bounds import LowerBound as LowerBound
from supsup_paper.baselines.bounds import UpperBound as UpperBound
from supsup_paper.baselines.consolidation import SI as SI
from supsup_paper.baselines.consolidation import OnlineEWC as OnlineEWC
from supsup_paper.baselines.heads import SeparateHeads as SeparateHeads
from supsup_paper.baselines.inference import TaskInference as TaskInference
from supsup_paper.baselines.psp import PSP as PSP
from supsup_paper.baselines.training import learn_side_by_side as learn_side_by_side
