"""Tasks found by what they left when they were learned: features first, and masks where features leave doubt."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from supsup import objectives
from supsup.asking.images import Images
from supsup.data.self_labels import averaged
from supsup.errors import SupSupError
from supsup.finding import Trace
from supsup.finding.features import features
from supsup.finding.known import Known, Scores
from supsup.inference import Decision, Inference, View, decide, first_gradient
from supsup.objectives import Standing
from supsup.state import ModelState

_ASKED, _ENOUGH = 50, 0.6  # images at least that were asked about, and the share of them found that is no warning
_FEW = 32  # tasks without traces of which each mask is tried; more are also looked for by one gradient


@dataclass(frozen=True)
class Judging:
    """How features and masks decide together.

    tried            masks for one decision at most
    doubt            how far behind the best by features a task may be to be tried
    features         / √features: what log p(features | class) weighs beside log p(class | task); features are not
                     independent
    energy           what a deviation of a mask's energy weighs
    lowest, highest  deviations that count
    """

    tried: int = 8
    doubt: float = 6.0
    features: float = 3.5
    energy: float = 0.3
    lowest: float = -6.0
    highest: float = 3.0


@dataclass(frozen=True)
class StandingOut:
    """When one gradient helps to decide among many tasks, and how much.

    doubt   how close the best two are where it is asked
    weight  of a deviation by which a mask stands out, beyond what the largest of as many random numbers does
    """

    doubt: float = 2.0
    weight: float = 2.0


_HOW, _BY_GRADIENT = Judging(), StandingOut()


class ByTraces:
    """Decides among the tasks of a model, whose state the caller holds for reading."""

    def __init__(self, state: ModelState) -> None:
        self.state = state
        self._warned = False  # that tasks are alike
        self._judged: object = None  # the tasks that were looked at for that
        self._known = Known()

    def decide(self, views: Sequence[View], members: list[int] | None, classes: int, how: Inference) -> Decision:
        """The task of each decision; views are images [r, b, …] as some of the tasks see them, by index."""
        state = self.state
        candidates = list(range(len(state.tasks))) if members is None else list(dict.fromkeys(members))
        if len(candidates) == 1:
            only = torch.full((len(views[0].x),), candidates[0], device=state.net.device)
            return Decision(only, way="the only task")
        traces = [state.tasks.at(index).trace for index in candidates]
        known = [trace for trace in traces if trace is not None]
        if len(known) < len(traces):
            return self._without(views, members, classes, how, candidates, traces)
        if how.method == "exhaustive":
            return self._every_mask(views, candidates, known, how.objective)
        found = self._scores(views, candidates)
        if found is None:
            return self._without(views, members, classes, how, candidates, traces)
        self._warn(known)
        if how.method == "features":
            return _highest(found.of_tasks, candidates, "features")
        return self._best_masks(views, candidates, known, found, classes)

    def _warn(self, traces: Sequence[Trace]) -> None:
        """Say once where tasks are not told apart, as far as was seen when they were learned."""
        if self._warned or self._judged is self.state.tasks.version:
            return
        self._judged = self.state.tasks.version
        asked, right = (sum(int(trace.checked[i]) for trace in traces) for i in (0, 1))
        if asked >= _ASKED and right < _ENOUGH * asked:
            self._warned = True
            warnings.warn(
                f"the task of images held back was found in {100 * right / asked:.0f} % of cases: tasks are alike. "
                "Give it, predict(x, task=…), or ask with many images of one task, infer_task(x, per='batch')",
                stacklevel=6,  # whoever asked the model
            )

    def unfamiliar(self, images: Images, indices: Tensor, share: float) -> Tensor:
        """Which images [n] are less familiar to the tasks with these indices [n] than such a share of their own."""
        found = torch.zeros(len(images), dtype=torch.bool, device=indices.device)
        for index in indices.unique().tolist():
            learned, rows = self.state.tasks.at(index), (indices == index).nonzero().flatten()
            if learned.trace is None:
                raise _lacking(learned.name)
            x = images.seen(learned.facts.inputs)[rows]
            seen = features(self.state.net, x)
            if not learned.trace.suits(seen.shape[1]):
                raise _lacking(learned.name)
            likelihood = learned.trace.gaussians.likelihoods(seen)
            energy = -objectives.CALIBRATED["energy"](self._outputs(x, index), learned.classes)
            familiarity = learned.trace.familiarity(likelihood, energy)
            found[rows] = familiarity < learned.trace.least_familiar(share)
        return found

    def _without(
        self,
        views: Sequence[View],
        members: list[int] | None,
        classes: int,
        how: Inference,
        candidates: Sequence[int],
        traces: Sequence[Trace | None],
    ) -> Decision:
        """Where a task has left no trace, or one of an earlier version: every mask of a few tasks, else One-Shot."""
        if how.method == "features":
            lacking = [index for index, trace in zip(candidates, traces) if trace is None or not trace.comparable]
            raise _lacking(self.state.tasks.at((lacking or candidates)[0]).name)
        if how.method == "exhaustive":
            return self._every_mask(views, candidates, None, how.objective)
        way = Inference("exhaustive" if len(candidates) <= _FEW else "one-shot")
        return decide(self.state.net, self.state.bank, views, members, classes, way)._replace(way=way.method)

    def likelihoods(self, views: Sequence[View], candidates: Sequence[int]) -> Tensor | None:
        """log p(features | task) of each decision [r, candidates]; None where one of them left nothing that suits."""
        found = self._scores(views, candidates)
        return None if found is None else found.of_tasks

    def _scores(self, views: Sequence[View], candidates: Sequence[int]) -> Scores | None:
        """What features say of each candidate; None where one of them has left nothing that suits."""
        net, tasks = self.state.net, self.state.tasks
        seen = [features(net, view.x.flatten(0, 1)).unflatten(0, view.x.shape[:2]) for view in views]
        known, count = self._known, seen[0].shape[-1]
        if known.version is not tasks.version or known.features != count:
            every = [tasks.at(index).trace for index in range(len(tasks))]
            known = self._known = known.at(tasks.version, count, every, net.device)
        view_of = {index: number for number, view in enumerate(views) for index in view.members or ()}
        return known.scores(seen, view_of, candidates)

    def _every_mask(
        self, views: Sequence[View], candidates: Sequence[int], traces: Sequence[Trace] | None, objective: str
    ) -> Decision:
        """Every mask in turn; calibrated, unless a task is not."""
        found = []
        for column, index in enumerate(candidates):
            score = -objectives.CALIBRATED[objective](*self._shown(views, index)).mean(1)
            found.append(score if traces is None else traces[column].spread[objective].standard(score))
        return _highest(torch.stack(found, 1), candidates, f"exhaustive, {objective}")

    def _best_masks(
        self, views: Sequence[View], candidates: Sequence[int], traces: Sequence[Trace], found: Scores, classes: int
    ) -> Decision:
        """The few best by features, each with what its mask makes of the images.

        Among many tasks, where that leaves two close, also the mask that stands out most in one gradient, and by how
        much each does.
        """
        levels = _weight(found) * found.of_tasks
        best = levels.topk(min(_HOW.tried, levels.shape[1]), 1)
        open_ = best.values >= best.values[:, :1] - _HOW.doubt
        open_ &= open_.sum(1, keepdim=True) > 1
        tried = torch.zeros_like(levels, dtype=torch.bool).scatter_(1, best.indices, open_)
        scores = levels + _HOW.energy * _HOW.lowest
        self._try(tried, scores, views, candidates, traces, found)
        if not self._has_gradient(candidates):
            return _highest(scores, candidates, "features and masks")
        first, second = scores.topk(2, 1).values.T
        asked = (first - second < _BY_GRADIENT.doubt).nonzero().flatten()
        if not len(asked):
            return _highest(scores, candidates, "features and masks")
        outstanding = torch.zeros_like(levels)
        outstanding[asked] = self._outstanding([view.of(asked) for view in views], candidates, classes)
        most = (outstanding > 0) & (outstanding == outstanding.amax(1, keepdim=True))
        self._try(most & ~tried, scores, views, candidates, traces, found)
        return _highest(scores + _BY_GRADIENT.weight * outstanding, candidates, "features, masks and a gradient")

    def _try(
        self,
        tried: Tensor,
        scores: Tensor,
        views: Sequence[View],
        candidates: Sequence[int],
        traces: Sequence[Trace],
        found: Scores,
    ) -> None:
        """Fill in scores [r, candidates] where a mask is to be tried.

        How likely a class is by its features and by its mask, over all classes of the task; and the mask's energy, in
        deviations from what its task is used to.
        """
        weight = _weight(found)
        for column in tried.any(0).nonzero().flatten().tolist():
            index, rows = candidates[column], tried[:, column].nonzero().flatten()
            outputs, classes = self._shown(views, index, rows)
            likely = weight * found.of_classes(index)[rows] + outputs[..., :classes].log_softmax(-1)
            energy = -objectives.CALIBRATED["energy"](outputs, classes).mean(1)
            standard = traces[column].spread["energy"].standard(energy).clamp(_HOW.lowest, _HOW.highest)
            scores[rows, column] = likely.logsumexp(-1).mean(1) + _HOW.energy * standard

    def _has_gradient(self, candidates: Sequence[int]) -> bool:
        """Whether there are many tasks, and a first layer that sees all of an input: the gradient is taken there."""
        net = self.state.net
        return len(candidates) > _FEW and not net.pretrained and len(next(iter(net.shapes.values()))) == 2

    def _outstanding(self, views: Sequence[View], candidates: Sequence[int], classes: int) -> Tensor:
        """By how many deviations candidates stand out in one gradient [r, candidates], never below 0.

        Those count that are beyond what the largest of as many random numbers has.
        """
        net, bank = self.state.net, self.state.bank
        outputs = net.run(views[0].x[:1, 0], net.weights).shape[-1]
        how = Inference(objective="G" if outputs > classes else "H", layers="first")
        g = first_gradient(net, bank, views, candidates, classes, how)
        deviation = g.std(1, keepdim=True).clamp(min=torch.finfo(g.dtype).tiny)
        random = math.sqrt(2 * math.log(len(candidates)))
        return ((g - g.mean(1, keepdim=True)) / deviation - random).nan_to_num(0.0).clamp(min=0)

    def _shown(self, views: Sequence[View], index: int, rows: Tensor | slice = slice(None)) -> tuple[Tensor, int]:
        """Outputs [r, b, s] under one mask, for some of the decisions, and how many classes its task has."""
        view = next((view for view in views if view.members is not None and index in view.members), views[0])
        x = view.x[rows]
        outputs = self._outputs(x.flatten(0, 1), index).unflatten(0, x.shape[:2])
        return outputs, self.state.tasks.at(index).classes or outputs.shape[-1]

    def _outputs(self, x: Tensor, index: int) -> Tensor:
        """Outputs [n, s] under one mask."""
        state = self.state
        run, task = partial(state.switched.run, state.bank, index), state.tasks.at(index)
        pieces = state.net.pieces(x)
        return torch.cat([averaged(run, piece, task.classes) if task.facts.turned else run(piece) for piece in pieces])


def _weight(found: Scores) -> float:
    """Of a log-likelihood of features."""
    return float(_HOW.features / found.known.features**0.5)


def _lacking(name: str) -> SupSupError:
    return SupSupError(
        f"task {name!r} has no statistics that it could be found by: learn it while the model's inference is "
        "Inference('auto') or 'features', which `observe` and earlier versions did not"
    )


def _highest(scores: Tensor, candidates: Sequence[int], way: str) -> Decision:
    best = scores.max(1)
    chosen = torch.tensor(candidates, device=scores.device)[best.indices]
    return Decision(chosen, Standing.of(best.values, scores), way)
