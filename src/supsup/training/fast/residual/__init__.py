"""Residual networks of many tasks trained in step on a GPU: kernels that take all tasks in one launch, and the step."""
