"""What SupSup is measured against, each with the same face: `learn`, `predict`, `tasks`, and `bytes`."""

from supsup.baselines.batche import BatchE as BatchE
from supsup.baselines.bounds import LowerBound as LowerBound
from supsup.baselines.bounds import UpperBound as UpperBound
from supsup.baselines.ewc import OnlineEWC as OnlineEWC
from supsup.baselines.heads import SeparateHeads as SeparateHeads
from supsup.baselines.inferring import TaskInference as TaskInference
from supsup.baselines.psp import PSP as PSP
from supsup.baselines.rival import Rival as Rival
from supsup.baselines.si import SI as SI
from supsup.baselines.side_by_side import learn_side_by_side as learn_side_by_side
