"""Tasks found by what they left when they were learned: features first, and masks where features leave doubt."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from supsup.data.rotations import mean_over_rotations
from supsup.inference import objectives
from supsup.inference.methods import Decision, Inference, TaskView, decide, first_gradient
from supsup.inference.objectives import Margin
from supsup.inference.profiles import TaskProfile
from supsup.inference.profiles.features import features
from supsup.inference.profiles.index import FeatureScores, ProfileIndex
from supsup.model.images import Images
from supsup.model.state import ModelState
from supsup.runtime.errors import SupSupError

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


class AutoInference:
    """Decides among the tasks of a model, whose state the caller holds for reading."""

    def __init__(self, state: ModelState) -> None:
        self.state = state
        self._warned = False  # that tasks are alike
        self._judged: object = None  # the tasks that were looked at for that
        self._known = ProfileIndex()

    def decide(self, views: Sequence[TaskView], members: list[int] | None, classes: int, how: Inference) -> Decision:
        """The task of each decision; views are images [r, b, …] as some of the tasks see them, by index."""
        state = self.state
        candidates = list(range(len(state.tasks))) if members is None else list(dict.fromkeys(members))
        if len(candidates) == 1:
            only = torch.full((len(views[0].x),), candidates[0], device=state.net.device)
            return Decision(only, method_used="the only task")
        profiles = [state.tasks.at(index).profile for index in candidates]
        profile_index = [profile for profile in profiles if profile is not None]
        if len(profile_index) < len(profiles):
            return self._fallback(views, members, classes, how, candidates, profiles)
        if how.method == "exhaustive":
            return self._every_mask(views, candidates, profile_index, how.objective)
        found = self._scores(views, candidates)
        if found is None:
            return self._fallback(views, members, classes, how, candidates, profiles)
        self._warn(profile_index)
        if how.method == "features":
            return _highest(found.of_tasks, candidates, "features")
        return self._best_masks(views, candidates, profile_index, found, classes)

    def _warn(self, profiles: Sequence[TaskProfile]) -> None:
        """Say once where tasks are not told apart, as far as was seen when they were learned."""
        if self._warned or self._judged is self.state.tasks.version:
            return
        self._judged = self.state.tasks.version
        asked, right = (sum(int(profile.checked[i]) for profile in profiles) for i in (0, 1))
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
            if learned.profile is None:
                raise _lacking(learned.name)
            x = images.seen(learned.info.inputs)[rows]
            seen = features(self.state.net, x)
            if not learned.profile.suits(seen.shape[1]):
                raise _lacking(learned.name)
            likelihood = learned.profile.gaussians.likelihoods(seen)
            energy = -objectives.CALIBRATED["energy"](self._outputs(x, index), learned.classes)
            familiarity = learned.profile.familiarity(likelihood, energy)
            found[rows] = familiarity < learned.profile.threshold(share)
        return found

    def _fallback(
        self,
        views: Sequence[TaskView],
        members: list[int] | None,
        classes: int,
        how: Inference,
        candidates: Sequence[int],
        profiles: Sequence[TaskProfile | None],
    ) -> Decision:
        """Where a task has left no trace, or one of an earlier version: every mask of a few tasks, else One-Shot."""
        if how.method == "features":
            lacking = [
                index for index, profile in zip(candidates, profiles) if profile is None or not profile.comparable
            ]
            raise _lacking(self.state.tasks.at((lacking or candidates)[0]).name)
        if how.method == "exhaustive":
            return self._every_mask(views, candidates, None, how.objective)
        fallback = Inference("exhaustive" if len(candidates) <= _FEW else "one-shot")
        return decide(self.state.net, self.state.bank, views, members, classes, fallback)._replace(
            method_used=fallback.method
        )

    def likelihoods(self, views: Sequence[TaskView], candidates: Sequence[int]) -> Tensor | None:
        """log p(features | task) of each decision [r, candidates]; None where one of them left nothing that suits."""
        found = self._scores(views, candidates)
        return None if found is None else found.of_tasks

    def _scores(self, views: Sequence[TaskView], candidates: Sequence[int]) -> FeatureScores | None:
        """What features say of each candidate; None where one of them has left nothing that suits."""
        net, tasks = self.state.net, self.state.tasks
        seen = [features(net, view.x.flatten(0, 1)).unflatten(0, view.x.shape[:2]) for view in views]
        profile_index, count = self._known, seen[0].shape[-1]
        if profile_index.version is not tasks.version or profile_index.features != count:
            every = [tasks.at(index).profile for index in range(len(tasks))]
            profile_index = self._known = profile_index.at(tasks.version, count, every, net.device)
        view_of = {index: number for number, view in enumerate(views) for index in view.members or ()}
        return profile_index.scores(seen, view_of, candidates)

    def _every_mask(
        self,
        views: Sequence[TaskView],
        candidates: Sequence[int],
        profiles: Sequence[TaskProfile] | None,
        objective: str,
    ) -> Decision:
        """Every mask in turn; calibrated, unless a task is not."""
        found = []
        for column, index in enumerate(candidates):
            score = -objectives.CALIBRATED[objective](*self._shown(views, index)).mean(1)
            found.append(score if profiles is None else profiles[column].spread[objective].standard(score))
        return _highest(torch.stack(found, 1), candidates, f"exhaustive, {objective}")

    def _best_masks(
        self,
        views: Sequence[TaskView],
        candidates: Sequence[int],
        profiles: Sequence[TaskProfile],
        found: FeatureScores,
        classes: int,
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
        self._try(tried, scores, views, candidates, profiles, found)
        if not self._has_gradient(candidates):
            return _highest(scores, candidates, "features and masks")
        first, second = scores.topk(2, 1).values.T
        asked = (first - second < _BY_GRADIENT.doubt).nonzero().flatten()
        if not len(asked):
            return _highest(scores, candidates, "features and masks")
        outstanding = torch.zeros_like(levels)
        outstanding[asked] = self._outstanding([view.of(asked) for view in views], candidates, classes)
        most = (outstanding > 0) & (outstanding == outstanding.amax(1, keepdim=True))
        self._try(most & ~tried, scores, views, candidates, profiles, found)
        return _highest(scores + _BY_GRADIENT.weight * outstanding, candidates, "features, masks and a gradient")

    def _try(
        self,
        tried: Tensor,
        scores: Tensor,
        views: Sequence[TaskView],
        candidates: Sequence[int],
        profiles: Sequence[TaskProfile],
        found: FeatureScores,
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
            standard = profiles[column].spread["energy"].standard(energy).clamp(_HOW.lowest, _HOW.highest)
            scores[rows, column] = likely.logsumexp(-1).mean(1) + _HOW.energy * standard

    def _has_gradient(self, candidates: Sequence[int]) -> bool:
        """Whether there are many tasks, and a first layer that sees all of an input: the gradient is taken there."""
        net = self.state.net
        return len(candidates) > _FEW and not net.pretrained and len(next(iter(net.shapes.values()))) == 2

    def _outstanding(self, views: Sequence[TaskView], candidates: Sequence[int], classes: int) -> Tensor:
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

    def _shown(self, views: Sequence[TaskView], index: int, rows: Tensor | slice = slice(None)) -> tuple[Tensor, int]:
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
        return torch.cat(
            [mean_over_rotations(run, piece, task.classes) if task.info.rotated else run(piece) for piece in pieces]
        )


def _weight(found: FeatureScores) -> float:
    """Of a log-likelihood of features."""
    return float(_HOW.features / found.profile_index.features**0.5)


def _lacking(name: str) -> SupSupError:
    return SupSupError(
        f"task {name!r} has no statistics that it could be found by: learn it while the model's inference is "
        "Inference('auto') or 'features', which `observe` and earlier versions did not"
    )


def _highest(scores: Tensor, candidates: Sequence[int], method_used: str) -> Decision:
    best = scores.max(1)
    chosen = torch.tensor(candidates, device=scores.device)[best.indices]
    return Decision(chosen, Margin.of(best.values, scores), method_used)
