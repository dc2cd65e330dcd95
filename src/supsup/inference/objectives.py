"""Objectives of task inference: functions of the outputs that are small under the right mask.

Each takes outputs [..., s] and the number of real classes, and returns one value per image. `OBJECTIVES` are the
paper's, for gradients. `LEVELS` are the same as values that compare the outputs of two masks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from supsup.runtime.errors import SupSupError

Objective = Callable[[Tensor, int], Tensor]


def entropy(outputs: Tensor, classes: int) -> Tensor:
    """H: the entropy of the softmax over all outputs."""
    log_p = outputs.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def superfluous(outputs: Tensor, classes: int) -> Tensor:
    """G: logsumexp over all outputs; only the superfluous ones (index ≥ classes) pass a gradient."""
    need_superfluous(outputs.shape[-1], classes)
    return torch.cat([outputs[..., :classes].detach(), outputs[..., classes:]], -1).logsumexp(-1)


def superfluous_share(outputs: Tensor, classes: int) -> Tensor:
    """G as a value: the log of the total probability of the superfluous outputs.

    G itself cannot compare two masks: it is large where the real outputs are large.
    """
    need_superfluous(outputs.shape[-1], classes)
    return outputs[..., classes:].logsumexp(-1) - outputs.logsumexp(-1)


def negative_maximum(outputs: Tensor, classes: int) -> Tensor:
    """M: minus the largest probability."""
    return -outputs.softmax(-1).amax(-1)


OBJECTIVES: dict[str, Objective] = {"H": entropy, "G": superfluous, "M": negative_maximum}
LEVELS: dict[str, Objective] = {**OBJECTIVES, "G": superfluous_share}


def gradient(name: str, outputs: Tensor, classes: int) -> Tensor:
    """∂Obj/∂outputs in closed form, image by image."""
    p = outputs.softmax(-1)
    if name == "H":
        log_p = outputs.log_softmax(-1)
        return -p * (log_p - (p * log_p).sum(-1, keepdim=True))
    if name == "G":
        need_superfluous(outputs.shape[-1], classes)
        p[..., :classes] = 0
        return p
    top = p.amax(-1, keepdim=True)
    largest = (p == top).to(p.dtype)  # all that share the maximum, as in autograd
    return top * (p - largest / largest.sum(-1, keepdim=True))


def need_superfluous(outputs: int, classes: int) -> None:
    """An error if no output is superfluous, which G needs."""
    if outputs <= classes:
        raise SupSupError(
            f"objective 'G' needs superfluous outputs, but the network has {outputs} outputs for {classes} "
            f"classes; build it with more than {classes} outputs or use objective='H'"
        )
