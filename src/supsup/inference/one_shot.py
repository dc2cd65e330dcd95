"""One-Shot: the task with the largest coordinate of a single gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from supsup.inference import search
from supsup.inference.candidates import Candidates, Decision, Margin, NoMargin, highest_mask
from supsup.inference.gradient import alpha_gradient, can_be_captured, query


def decide_one_shot(candidates: Candidates) -> Decision:
    """One gradient decides. For one image on a GPU, among all tasks, it is replayed from a CUDA graph."""
    net, bank = candidates.networks.net, candidates.networks.bank
    if len(candidates.views) > 1:
        return _with_margin(candidates)
    x, goal, layers = candidates.views[0].x, candidates.goal, candidates.layers
    if candidates.settings.coordinates is not None:
        return Decision(few_coordinates(candidates, candidates.settings.coordinates), NoMargin.NOT_MEASURED)
    if not candidates.all_tasks or not x.is_cuda:
        return _with_margin(candidates)

    def packed(images: Tensor) -> Tensor:
        index, margin, _ = highest_mask(alpha_gradient(net, bank, images, None, goal, layers), None)
        assert isinstance(margin, Margin)
        return torch.stack([index.double(), *(number.double() for number in margin[:3])])

    question = (net, tuple(x.shape), goal, *layers)
    index, best, mean, variance = bank.replays.answer(question, packed, x, lambda: can_be_captured(net))
    return Decision(index.long(), Margin(best, mean, variance, len(bank)))


def _with_margin(candidates: Candidates) -> Decision:
    g = candidates.gradient(candidates.uniform)
    if candidates.all_tasks:
        return highest_mask(g, None)
    return highest_mask(g.masked_fill_(~candidates.membership, -torch.inf), candidates.membership)


def few_coordinates(candidates: Candidates, coordinates: int) -> Tensor:
    """One-Shot from the largest numbers of the query alone, exact among the best candidates: [r]."""
    net, bank = candidates.networks.net, candidates.networks.bank
    x, goal, layers = candidates.views[0].x, candidates.goal, candidates.layers
    membership = None if candidates.all_tasks else candidates.membership
    superposed = bank.superposition(candidates.uniform)

    def answer(images: Tensor) -> Tensor:
        pieces = images.split(search.rows_at_once(bank, layers))
        queries = (query(net, piece, superposed, goal, layers) for piece in pieces)
        return torch.cat([search.nearest(rows, bank, coordinates, membership) for rows in queries])

    if membership is not None or not search.on_gpu(bank):
        return answer(x)
    question = (net, tuple(x.shape), goal, *layers, coordinates)
    return bank.replays.answer(question, answer, x, lambda: can_be_captured(net))
