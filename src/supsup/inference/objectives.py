"""What task inference minimises: functions of the outputs that the right mask makes small.

Each takes outputs [..., s] and the number of real classes, and returns one value per image. `OBJECTIVES` are the
paper's, for gradients; `LEVELS` are the same as values to compare one mask's outputs with another's; `CALIBRATED` are
compared after each task's mean and deviation on its own images were taken out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from supsup.runtime.errors import SupSupError

Objective = Callable[[Tensor, int], Tensor]
_ENERGY = 0.3  # its share in the mixture
_FEW = 3  # candidates, of which none stands out by deviations


def entropy(outputs: Tensor, classes: int) -> Tensor:
    """H: the entropy of the softmax over all outputs."""
    log_p = outputs.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def superfluous(outputs: Tensor, classes: int) -> Tensor:
    """G: logsumexp over all outputs, of which only the superfluous ones (index ≥ classes) pass a gradient."""
    need_superfluous(outputs.shape[-1], classes)
    return torch.cat([outputs[..., :classes].detach(), outputs[..., classes:]], -1).logsumexp(-1)


def superfluous_share(outputs: Tensor, classes: int) -> Tensor:
    """What G brings down, as a value: the log of the probability that the superfluous outputs share.

    G itself says nothing about one mask against another: it is large where the real outputs are large.
    """
    need_superfluous(outputs.shape[-1], classes)
    return outputs[..., classes:].logsumexp(-1) - outputs.logsumexp(-1)


def negative_maximum(outputs: Tensor, classes: int) -> Tensor:
    """M: minus the largest probability."""
    return -outputs.softmax(-1).amax(-1)


def negative_energy(outputs: Tensor, classes: int) -> Tensor:
    """Minus logsumexp of the outputs of a task's own classes."""
    return -outputs[..., :classes].logsumexp(-1)


def negative_mixture(outputs: Tensor, classes: int) -> Tensor:
    """Minus (the log-probability of the label among a task's own classes + 0.3 · their logsumexp)."""
    own = outputs[..., :classes]
    return (1 - _ENERGY) * own.logsumexp(-1) - own.amax(-1)


OBJECTIVES: dict[str, Objective] = {"H": entropy, "G": superfluous, "M": negative_maximum}
LEVELS: dict[str, Objective] = {**OBJECTIVES, "G": superfluous_share}
CALIBRATED: dict[str, Objective] = {"energy": negative_energy, "mixture": negative_mixture}


def gradient(name: str, outputs: Tensor, classes: int) -> Tensor:
    """∂Obj/∂outputs in closed form, for each image on its own."""
    p = outputs.softmax(-1)
    if name == "H":
        log_p = outputs.log_softmax(-1)
        return -p * (log_p - (p * log_p).sum(-1, keepdim=True))
    if name == "G":
        need_superfluous(outputs.shape[-1], classes)
        p[..., :classes] = 0
        return p
    top = p.amax(-1, keepdim=True)
    largest = (p == top).to(p.dtype)  # several where they share the maximum, as autograd has it
    return top * (p - largest / largest.sum(-1, keepdim=True))


class Margin(NamedTuple):
    """How far the best of k candidates stands out: its number, the mean and the variance of all, each [r]."""

    best: Tensor
    mean: Tensor
    variance: Tensor
    candidates: int

    @classmethod
    def of(cls, best: Tensor, scores: Tensor) -> Margin:
        """From the scores [r, k] of all candidates, the larger the better."""
        variance, mean = torch.var_mean(scores, 1, correction=0)
        return cls(best, mean, variance, scores.shape[1])

    def confidence(self) -> Tensor:
        """The chance [r] that the best of k − 1 wrong candidates, normal with the others' mean and deviation, is worse.

        Two others or one have no deviation to speak of: then the softmax of the best number against the others' mean.
        """
        k = self.candidates
        above = (self.best - self.mean).double() * (k / (k - 1))  # the mean of the others
        if k <= _FEW:
            return ((k - 1) * (-above).exp() + 1).reciprocal().float()
        variance = self.variance.double() * (k / (k - 1)) - above.square() / k
        deviations = above / variance.clamp(min=torch.finfo(torch.float64).tiny).sqrt()
        logarithm: Tensor = torch.special.log_ndtr(deviations)
        return ((k - 1) * logarithm).exp().float()


def need_superfluous(outputs: int, classes: int) -> None:
    """An error if no output is left over, which G needs."""
    if outputs <= classes:
        raise SupSupError(
            f"objective 'G' needs superfluous outputs, but the network has {outputs} outputs for {classes} "
            f"classes; build it with more than {classes} outputs or use objective='H'"
        )
