"""Residual networks of many tasks trained in step on a GPU: kernels that take all tasks in one launch, and the step."""

from supsup.training.fast.residual.executor import ResidualOnGPU as ResidualOnGPU
