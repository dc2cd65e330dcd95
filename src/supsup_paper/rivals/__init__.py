"""What SupSup is measured against, each with the same face: `learn`, `predict`, `tasks`, and `bytes`."""

from supsup_paper.rivals.batche import BatchE as BatchE
from supsup_paper.rivals.bounds import LowerBound as LowerBound
from supsup_paper.rivals.bounds import UpperBound as UpperBound
from supsup_paper.rivals.ewc import OnlineEWC as OnlineEWC
from supsup_paper.rivals.heads import SeparateHeads as SeparateHeads
from supsup_paper.rivals.inferring import TaskInference as TaskInference
from supsup_paper.rivals.psp import PSP as PSP
from supsup_paper.rivals.rival import Baseline as Baseline
from supsup_paper.rivals.si import SI as SI
from supsup_paper.rivals.side_by_side import learn_side_by_side as learn_side_by_side
