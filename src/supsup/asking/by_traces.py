"""Tasks found by what they left when they were learned: features first, and masks only where features leave doubt."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from supsup import objectives
from supsup.asking.images import Images
from supsup.data.self_labels import averaged
from supsup.errors import SupSupError
from supsup.finding import Trace
from supsup.finding.features import features
from supsup.finding.gaussians import Gallery
from supsup.inference import Decision, Inference, View, decide
from supsup.objectives import Standing
from supsup.state import ModelState

_TRIED = 8  # masks for one decision at most
_SCALE = 0.5  # · √features: the log-likelihood that weighs as much as a deviation of a mask's score
_LOWEST, _HIGHEST = -6.0, 3.0  # deviations of a mask's score that count
_ASKED, _ENOUGH = 50, 0.6  # images at least that were asked about, and the share of them found that is no warning
_FEW = 32  # tasks without traces of which each mask is tried


class ByTraces:
    """Decides among the tasks of a model, whose state the caller holds for reading."""

    def __init__(self, state: ModelState) -> None:
        self.state = state
        self._warned = False  # that tasks are alike
        self._judged: object = None  # the tasks that were looked at for that
        self._galleries: tuple[object, list[Gallery]] = (None, [])  # of all tasks, and of which rows

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
        levels = self.likelihoods(views, members, candidates) / (_SCALE * known[0].features ** 0.5)
        self._warn(known)
        if how.method == "features" or state.net.pretrained:
            return _highest(levels, candidates, "features")
        return self._best_masks(views, candidates, known, levels)

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
            gallery = Gallery([learned.trace.gaussians], self.state.net.device)
            likelihood = gallery.likelihoods(features(self.state.net, x))[:, 0]
            familiarity = learned.trace.familiarity(
                likelihood, self._score([View(x[:, None])], index, slice(None), "energy")
            )
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
        """Where a task has left no trace: every mask where they are few, else One-Shot."""
        if how.method == "features":
            raise _lacking(next(self.state.tasks.at(i).name for i, trace in zip(candidates, traces) if trace is None))
        if how.method == "exhaustive":
            return self._every_mask(views, candidates, None, how.objective)
        way = Inference("exhaustive" if len(candidates) <= _FEW else "one-shot")
        return decide(self.state.net, self.state.bank, views, members, classes, way)._replace(way=way.method)

    def likelihoods(self, views: Sequence[View], members: list[int] | None, candidates: Sequence[int]) -> Tensor:
        """log p(features | task) of each decision [r, candidates]."""
        net, tasks = self.state.net, self.state.tasks
        galleries = self._all_galleries() if members is None else _galleries(self.state, tasks.views(candidates))
        position = {index: column for column, index in enumerate(candidates)}
        r, b = views[0].x.shape[:2]
        found = torch.empty(r, len(candidates), device=net.device)
        for view, gallery in zip(views, galleries, strict=True):
            seen = features(net, view.x.flatten(0, 1))
            columns = [position[index] for index in dict.fromkeys(view.members or candidates)]
            found[:, columns] = gallery.likelihoods(seen).view(r, b, -1).mean(1)
        return found

    def _all_galleries(self) -> list[Gallery]:
        of, galleries = self._galleries
        rows = self.state.tasks.version
        if of is not rows:
            galleries = _galleries(self.state, self.state.tasks.views())
            self._galleries = rows, galleries
        return galleries

    def _every_mask(
        self, views: Sequence[View], candidates: Sequence[int], traces: Sequence[Trace] | None, objective: str
    ) -> Decision:
        """Every mask in turn; calibrated, unless a task is not."""
        found = []
        for column, index in enumerate(candidates):
            score = self._score(views, index, slice(None), objective)
            found.append(score if traces is None else traces[column].spread[objective].standard(score))
        return _highest(torch.stack(found, 1), candidates, f"exhaustive, {objective}")

    def _best_masks(
        self, views: Sequence[View], candidates: Sequence[int], traces: Sequence[Trace], levels: Tensor
    ) -> Decision:
        """The few best by features, each with its mask's energy in deviations from what its task is used to.

        A candidate is tried only where its energy could make it the best one.
        """
        best = levels.topk(min(_TRIED, levels.shape[1]), 1)
        open_ = best.values >= best.values[:, :1] - (_HIGHEST - _LOWEST)
        open_ &= open_.sum(1, keepdim=True) > 1
        scores = levels + _LOWEST
        for column in best.indices[open_].unique().tolist():
            rows = ((best.indices == column) & open_).any(1).nonzero().flatten()
            energy = self._score(views, candidates[column], rows, "energy")
            standard = traces[column].spread["energy"].standard(energy).clamp(_LOWEST, _HIGHEST)
            scores[rows, column] = levels[rows, column] + standard
        return _highest(scores, candidates, "features and masks")

    def _score(self, views: Sequence[View], index: int, rows: Tensor | slice, objective: str) -> Tensor:
        """Minus the objective under one mask, for some of the decisions."""
        state = self.state
        view = next((view for view in views if view.members is not None and index in view.members), views[0])
        x = view.x[rows]
        flat = x.flatten(0, 1)
        run, task = partial(state.switched.run, state.bank, index), state.tasks.at(index)
        pieces = state.net.pieces(flat)
        outputs = torch.cat(
            [averaged(run, piece, task.classes) if task.facts.turned else run(piece) for piece in pieces]
        )
        level = objectives.CALIBRATED[objective](outputs, task.classes or outputs.shape[1])
        return -level.view(x.shape[:2]).mean(1)


def _lacking(name: str) -> SupSupError:
    return SupSupError(
        f"task {name!r} has no statistics that it could be found by: learn it while the model's inference is "
        "Inference('auto') or 'features', which `observe` and earlier versions did not"
    )


def _galleries(state: ModelState, views: Sequence[tuple[object, Sequence[int]]]) -> list[Gallery]:
    """For tasks that see images alike, their Gaussians."""
    found = []
    for _, indices in views:
        traces = [trace for trace in (state.tasks.at(index).trace for index in indices) if trace is not None]
        found.append(Gallery([trace.gaussians for trace in traces], state.net.device))
    return found


def _highest(scores: Tensor, candidates: Sequence[int], way: str) -> Decision:
    best = scores.max(1)
    chosen = torch.tensor(candidates, device=scores.device)[best.indices]
    return Decision(chosen, Standing.of(best.values, scores), way)
