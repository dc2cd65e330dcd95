"""The passes of a residual network as one function that autograd knows: outputs of many tasks from their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from supsup.training.fast.residual.packing import Packing
from supsup.training.fast.residual.passes import Passes


class ResidualFunction:
    """Outputs for the batch in x of some passes; the slope must come back before the next outputs are asked for."""

    def __init__(self, passes: Passes) -> None:
        self.passes, self.packing = passes, Packing(passes)

    def __call__(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Outputs [t, b, s] in float32 from weights by name: [t, …], or […] where all tasks share them."""
        by_layer = (weights[layer.name] for layer in self.passes.layers)
        outputs: Tensor = _Outputs.apply(self, *by_layer)  # type: ignore[no-untyped-call]
        return outputs


class _Outputs(torch.autograd.Function):
    """Weights that need no gradient cost nothing on the way back, if none but the classifier's does."""

    @staticmethod
    def forward(ctx: Any, function: ResidualFunction, *weights: Tensor) -> Tensor:
        function.packing.pack(weights)
        ctx.function, ctx.shared = function, function.packing.shared(weights)
        ctx.trace = function.passes.forward()
        return ctx.trace.outputs[..., : function.passes.outputs].clone()  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        passes, packing = ctx.function.passes, ctx.function.packing
        needed = ctx.needs_input_grad[1:]
        trunk = any(needed[:-1])
        passes.backward(ctx.trace, pad(slope, (0, ctx.trace.outputs.shape[2] - slope.shape[2])), trunk)
        if trunk:
            gradients = packing.unpack()
        else:
            classifier = passes.layers[-1]
            gradients = [None] * len(passes.layers)
            gradients[-1] = classifier.from_flat(passes.gradients[:, classifier.gradient_first :])
        return None, *(
            None if not wanted or found is None else found.sum(0) if once else found
            for found, wanted, once in zip(gradients, needed, ctx.shared)
        )
