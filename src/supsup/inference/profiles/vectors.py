"""What a profile has beside Gaussians where inputs are vectors: tables, embeddings, hashed text.

Each class keeps the mean of the positive and of the negative part of every feature. From them follow the class means
of the Gaussians, and the share of each part in all that a class has. As in naive Bayes, a vector is the likelier in a
class, the larger the shares of its own parts are there: that suits counts and words, which are no Gaussians.

How much each of them counts is fitted for each task to vectors that were held back: Gaussians and shares, which find
the task, and beside a mask, where its class is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_FIRST_SHARE = 0.015  # of the mean part, added to each; 0.008 to 0.08 did as well on CLINC150's validation sentences
_NEWTON_STEPS, _DAMPING = 30, 1e-9  # of fitting weights: at most; relative to the mean curvature
_HALVINGS = 20  # of a step that does not improve
# How many of n + 2 labels count as wrong. Answers have one, as in Platt's scaling. Tasks are found among the classes of
# all tasks, which vectors of one task say nothing of: with one, the task of CLINC150's validation sentences was right
# more often than its confidence said (expected calibration error 6.6 %), with a tenth as often (1.6 %).
DOUBT_OF_TASKS, DOUBT_OF_ANSWERS = 0.1, 1.0
FINDING, ANSWERING = 2, 3  # weights that find a task: of Gaussians and shares; that answer for it: also of its mask
_USUAL = (0.03, 4.0)  # where no task has weights: those of CLINC150, rounded


def part_means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The means [C, 2 · d] of positive and negative parts of features [n, d], by class."""
    member = torch.nn.functional.one_hot(labels, classes).to(features.dtype)
    means = member.T @ _parts(features)
    return means / member.sum(0).clamp(min=1)[:, None]


def class_means(means: Tensor) -> Tensor:
    """[C, d] from part means [C, 2 · d]."""
    positive, negative = means.chunk(2, 1)
    return positive - negative


def log_shares(means: Tensor) -> Tensor:
    """The log of the share [C, 2 · d] that each part has in its class."""
    smooth = means + _FIRST_SHARE * means.mean(1, keepdim=True) + torch.finfo(torch.float32).tiny
    return smooth.log() - smooth.sum(1, keepdim=True).log()


def share_scores(features: Tensor, shares: Tensor) -> Tensor:
    """The mean log share [n, C] of the parts of each vector: it does not depend on the vector's length."""
    parts = _parts(features)
    return parts @ shares.T / parts.sum(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)


def _parts(features: Tensor) -> Tensor:
    return torch.cat([features.clamp(min=0), (-features).clamp(min=0)], 1)


def compressed(means: Tensor) -> tuple[Tensor, Tensor]:
    """Part means as bytes [C, 2 · d] and a scale for each class: square roots, so that small ones keep digits."""
    scales = means.amax(1).clamp(min=torch.finfo(torch.float32).tiny)
    return ((means / scales[:, None]).sqrt() * 255).round().to(torch.uint8), scales


def expanded(compressed_means: Tensor, scales: Tensor) -> Tensor:
    """The part means that `compressed` made these bytes of."""
    return (compressed_means.float() / 255).square() * scales[:, None]


def fit_weights(scores: Tensor, labels: Tensor, doubted: float) -> Tensor:
    """Weights [k], none negative, of k scores for each class: those under which softmax makes labels likeliest.

    Without doubt, weights grow without end where all labels are right.
    scores   [n, C, k]
    doubted  how many of n + 2 labels count as wrong
    """
    scores = scores.detach().cpu().double()
    count, classes, kinds = scores.shape
    sizes = (scores - scores.mean(1, keepdim=True)).square().mean((0, 1)).sqrt()
    useful = sizes > 0
    if classes < 2 or count == 0 or not bool(useful.any()):
        return torch.zeros(kinds)
    scores = scores / sizes.where(useful, 1.0)
    doubt = doubted / (count + 2)
    target = torch.full((count, classes), doubt / (classes - 1), dtype=torch.float64)
    target.scatter_(1, labels.cpu()[:, None], 1 - doubt)

    def loss(weights: Tensor) -> Tensor:
        return -(target * (scores @ weights).log_softmax(1)).sum(1).mean()

    weights = useful.double() / kinds
    current = loss(weights)
    for _ in range(_NEWTON_STEPS):
        p = (scores @ weights).softmax(1)
        gradient = ((p - target)[..., None] * scores).sum((0, 1)) / count
        expected = (p[..., None] * scores).sum(1)
        curvature = torch.einsum("nc,ncj,nck->jk", p, scores, scores) / count - expected.T @ expected / count
        free = useful & ((weights > 0) | (gradient < 0))
        if not bool(free.any()):
            break
        part = curvature[free][:, free]
        part = part + _DAMPING * (1 + part.diagonal().mean()) * torch.eye(len(part), dtype=torch.float64)
        step = torch.zeros_like(weights)
        step[free] = torch.linalg.solve(part, gradient[free])
        for halving in range(_HALVINGS):
            candidate = (weights - step / 2**halving).clamp(min=0)
            if (better := loss(candidate)) < current:
                break
        else:
            break
        weights, current = candidate, better
    return (weights / sizes.where(useful, 1.0)).float()


def equal_say(weights: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
    """Weights with a mask that was trained on all images: it gets the say of the other scores together.

    What a mask makes of images it was trained on is too good to be compared. So it is made as certain as the others
    are of images that they were not fitted to, and both count one half.

    weights  of the scores but the last
    scores   [n, C, k], the last the mask's log p
    """
    scores, labels = scores.detach().cpu().double(), labels.cpu()
    wanted = torch.nn.functional.cross_entropy(scores[..., :-1] @ weights.double(), labels)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if torch.nn.functional.cross_entropy(middle * scores[..., -1], labels) > wanted:
            low = middle
        else:
            high = middle
    return torch.cat([weights, torch.tensor([high])]) / 2


def profile_answers(x: Tensor, outputs: Tensor, weights: Sequence[float], profile: Sequence[Tensor]) -> Tensor:
    """Logits [n, C] of a task for features x [n, d], by fitted weights: what its network gives and its profile says.

    It uses nothing of other tasks, so what they are never changes an answer. Of vectors the profile has shares, too.
    """
    by_gaussians, by_shares, by_mask = weights
    linear, constant, middle, *shares = (tensor.to(x.device) for tensor in profile)
    found: Tensor = by_gaussians * ((x - middle) @ linear.T + constant) + by_mask * outputs.log_softmax(-1)
    return found + by_shares * share_scores(x, shares[0]) if shares else found


def likelihood(by_gaussians: Tensor, features: Tensor, shares: Tensor, weights: Tensor) -> Tensor:
    """How likely vectors are for a task [n]: their best share score, or where shares say nothing, that by Gaussians."""
    return share_scores(features, shares).amax(1) if float(weights[1]) > 0 else by_gaussians


def expected_shares(shares: Tensor, count: int) -> Tensor:
    """Where to take quantiles of n scores, so that these shares of new scores are expected to be lower."""
    return ((shares * (count + 1) - 1) / max(1, count - 1)).clamp(0, 1)


def mean_weights(weights: Sequence[Tensor]) -> list[float]:
    """The mean of the weights that find each task, the same for any order of tasks; tasks of one class have none."""
    fitted = [each[:FINDING].tolist() for each in weights if bool((each > 0).any())]
    return [math.fsum(column) / len(fitted) for column in zip(*fitted)] if fitted else list(_USUAL)
