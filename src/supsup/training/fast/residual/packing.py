"""Weights by layer, as modules have them, to weights that lie end to end, and gradients the way back: a launch each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from supsup.kernels import triton_packing as k
from supsup.training.fast.residual.layers import BLOCK
from supsup.training.fast.residual.passes import Passes


class Packing:
    """Between tensors [t, …] of each layer, or one […] that all tasks share, and the weights of some passes."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self._device = passes.weights.device
        places = []
        for layer in passes.layers:
            shape = layer.module.weight.shape
            numbers = torch.arange(1, shape.numel() + 1, dtype=torch.int32).view(1, *shape)
            places.append(layer.to_flat(numbers)[0] - 1)
        self._place = torch.cat(places).to(self._device)
        self._sizes = [layer.module.weight.numel() for layer in passes.layers]
        self._spans: dict[tuple[bool, ...], tuple[Tensor, Tensor]] = {}  # made once: a capture copies nothing to a GPU

    def shared(self, weights: Sequence[Tensor]) -> tuple[bool, ...]:
        """Which of the layers' tensors all tasks share."""
        return tuple(each.ndim == layer.module.weight.ndim for each, layer in zip(weights, self._passes.layers))

    def pack(self, weights: Sequence[Tensor]) -> None:
        """Put each layer's tensor in its place for the passes."""
        tables, out = self._passes.tables, self._passes.weights
        start, stride = self._span(self.shared(weights))
        values = torch.cat([each.reshape(-1) for each in weights])
        k._pack[(len(tables.layer_of), len(out))](
            values, out, self._place, tables.layer_of, start, stride, out.shape[1], block=BLOCK
        )

    def unpack(self) -> list[Tensor]:
        """The gradient [t, …] of each layer from the last backward pass."""
        tables, gradients = self._passes.tables, self._passes.gradients
        tasks = len(gradients)
        start, stride = self._span((False,) * len(self._sizes))
        out = torch.empty(tasks * sum(self._sizes), device=self._device)
        k._unpack[(len(tables.layer_of), tasks)](
            gradients,
            out,
            self._place,
            tables.layer_of,
            tables.offset_of,
            tables.gradient_start,
            tables.splits,
            tables.sizes,
            start,
            stride,
            gradients.shape[1],
            block=BLOCK,
        )
        parts = out.split([tasks * size for size in self._sizes])
        return [part.view(tasks, *each.module.weight.shape) for part, each in zip(parts, self._passes.layers)]

    def _span(self, shared: tuple[bool, ...]) -> tuple[Tensor, Tensor]:
        """Where each layer starts among tensors that lie one after the other, and how far apart its tasks are."""
        if shared not in self._spans:
            starts, tasks = [0], len(self._passes.weights)
            for size, once in zip(self._sizes, shared):
                starts.append(starts[-1] + size * (1 if once else tasks))
            strides = [0 if once else size for size, once in zip(self._sizes, shared)]
            self._spans[shared] = (
                torch.tensor(starts[:-1], dtype=torch.int64, device=self._device),
                torch.tensor(strides, dtype=torch.int64, device=self._device),
            )
        return self._spans[shared]
