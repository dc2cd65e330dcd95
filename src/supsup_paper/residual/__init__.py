"""The executor for residual networks on a GPU: many tasks in step, by Triton kernels that take all tasks in one launch.

`supsup.training.executors.PLUG_INS` names this package, so the library uses it wherever it is installed.
"""

from supsup.kernels import available
from supsup.training.executors import Executor

EXECUTORS: tuple[Executor, ...] = ()
if available.TRITON:
    from supsup_paper.residual.executor import ResidualOnGPU

    EXECUTORS = (ResidualOnGPU(),)
