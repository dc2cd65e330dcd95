"""Residual networks of many tasks trained in step on a GPU: kernels that take all tasks in one launch, and the step."""

from supsup.training.residual.many import Job as Job
from supsup.training.residual.many import groups as groups
from supsup.training.residual.many import takes as takes
from supsup.training.residual.many import train_together as train_together
from supsup.training.residual.trainer import supports as supports
