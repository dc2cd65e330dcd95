"""Traces of tasks that were just trained, from the images at hand; the images are not kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from supsup.data import Part
from supsup.data.rotations import mean_over_rotations
from supsup.inference.objectives import CALIBRATED
from supsup.inference.profiles.features import directions_for, images_for, unchecked_features
from supsup.inference.profiles.gaussians import Gaussians
from supsup.inference.profiles.profile import SCORES, SHARES, Spread, TaskProfile, familiarity
from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet
from supsup.masks.switching import SwitchedNet
from supsup.runtime.errors import SupSupError

_JUDGING, _STREAMED = 256, 500  # images: for scores; at most where each has to be read from disk
_RIVALS = 32  # tasks that a new one is compared with, the latest
_AT_ONCE = 500
_TOGETHER = 1 << 27  # bytes of features of tasks whose Gaussians are made together, on a GPU


@dataclass(frozen=True)
class ProfileData:
    """What is at hand of a task that was trained.

    learned  images that its Gaussians are made of
    judge    images held back, which scores are from; None: there are none, so Gaussians of one half of the images
             judge the other half
    kind     of its inputs: those of one kind can be compared
    turned   it was learned in all rotations, and is answered so
    """

    learned: Part
    judge: Part | None
    classes: int
    kind: Hashable = None
    rotated: bool = False


@dataclass(frozen=True)
class _Seen:
    """What a task's images give, and what those that judge give; its number among the tasks trained together."""

    index: int
    task: ProfileData
    features: Tensor
    labels: Tensor
    judged: Tensor
    outputs: Tensor

    @property
    def form(self) -> tuple[int, ...]:
        """Gaussians of tasks of one form can be made together."""
        return (self.task.judge is None, self.task.classes, *self.features.shape)

    @property
    def finite(self) -> Tensor:
        return self.features.isfinite().all() & self.judged.isfinite().all()


class Rivals:
    """The means of the latest tasks of each kind, which new ones are compared with."""

    def __init__(
        self, kinds: Collection[Hashable], earlier: Iterable[tuple[Hashable, TaskProfile]], device: torch.device
    ):
        self._latest: dict[Hashable, deque[Tensor]] = {kind: deque(maxlen=_RIVALS) for kind in kinds}
        lacking = set(kinds)
        for kind, profile in earlier:
            if kind in lacking and profile.comparable:
                self._latest[kind].appendleft(profile.class_means.to(device))
                lacking -= {kind for kind in lacking if len(self._latest[kind]) == _RIVALS}
            if not lacking:
                break

    def checked(self, kind: Hashable, own: Gaussians, judged: Tensor) -> Tensor:
        """How many of a task's images [n, d] were asked about, and how many are likelier its own than a rival's."""
        others = [means for means in self._latest[kind] if means.shape[1] == judged.shape[1]]
        if not others:
            return torch.zeros(2, dtype=torch.int64, device=judged.device)
        found = own.recognised(judged, others)
        return torch.stack([torch.ones_like(found).sum(), found.sum()])

    def add(self, kind: Hashable, profile: TaskProfile) -> None:
        """One more task."""
        self._latest[kind].append(profile.class_means)


class ProfileFitter:
    """Makes the traces of tasks that were trained together, their masks as bytes [bytes, tasks]."""

    def __init__(self, net: FrozenNet, packed: Tensor, statistics: dict[str, Tensor]) -> None:
        self.net, self._bank = net, Bank(net.shapes, net.device, net.statistics)
        self._bank.add_packed(packed, statistics)
        self._switched = SwitchedNet(net, self._bank.spans)
        self._shares = torch.tensor(SHARES, device=net.device)
        self._chosen: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # positions, by labels, which stay alive

    def profiles(
        self, tasks: Sequence[ProfileData], earlier: Iterable[tuple[Hashable, TaskProfile]]
    ) -> list[TaskProfile | None]:
        """The trace of each task, by the order of their masks; with those of earlier tasks by kind, the latest first.

        None where the network without a mask gives no numbers to compute with.
        """
        rivals = Rivals({task.kind for task in tasks}, earlier, self.net.device)
        found: list[TaskProfile | None] = [None] * len(tasks)
        waiting: list[_Seen] = []
        for index, task in enumerate(tasks):
            try:
                seen = self._seen(index, task)
            except SupSupError:
                continue
            if waiting and not (seen.form == waiting[0].form and self._room_for(seen, len(waiting))):
                self._finish(waiting, rivals, found)
                waiting = []
            waiting.append(seen)
        self._finish(waiting, rivals, found)
        return found

    def _room_for(self, seen: _Seen, others: int) -> bool:
        """Whether one more task may wait; on a CPU there is nothing to gain by it."""
        return self.net.device.type != "cpu" and 4 * seen.features.numel() * (others + 1) <= _TOGETHER

    def _seen(self, index: int, task: ProfileData) -> _Seen:
        look = partial(unchecked_features, self.net)
        learned, positions = task.learned.on(self.net.device), self._evenly(task.learned, images_for(self.net))
        features, labels = self._run(learned, positions, look)
        if task.judge is None:
            half = slice(min(1, len(positions) - 1), None, 2)
            some = slice(None, None, -(-len(positions[half]) // _JUDGING))
            judge, asked, judged = learned, positions[half][some], features[half][some].contiguous()
        else:
            judge, asked = task.judge.on(self.net.device), self._evenly(task.judge, _JUDGING)
            judged, _ = self._run(judge, asked, look)
        answer: Callable[[Tensor], Tensor] = partial(self._switched.run, self._bank, index)
        if task.rotated:
            answer = partial(mean_over_rotations, answer, classes=task.classes)
        outputs, _ = self._run(judge, asked, answer)
        return _Seen(index, task, features, labels, judged, outputs)

    def _finish(self, waiting: Sequence[_Seen], rivals: Rivals, found: list[TaskProfile | None]) -> None:
        """The traces of tasks of one form; a GPU is waited for a few times for all of them."""
        usable = torch.stack([seen.finite for seen in waiting]).tolist() if waiting else []
        several = [seen for seen, finite in zip(waiting, usable) if finite]
        if not several:
            return
        gaussians = judging = _gaussians(several, self.net, 1)
        if several[0].task.judge is None:
            judging = _gaussians(several, self.net, 2)
        made = []
        for seen, own, half in zip(several, gaussians, judging):
            made.append(self._made(seen, own, half, rivals))
            rivals.add(seen.task.kind, made[-1])
        for seen, tensors in zip(several, _brought(made)):
            try:
                found[seen.index] = TaskProfile.from_tensors(tensors, seen.task.classes)
            except SupSupError:  # numbers that cannot be computed with
                continue

    def _made(self, seen: _Seen, gaussians: Gaussians, judging: Gaussians, rivals: Rivals) -> TaskProfile:
        """A trace where the network is; images are judged by other Gaussians where they are among those learned."""
        classes, likelihood = seen.task.classes, judging.likelihoods(seen.judged)
        levels = {name: -level(seen.outputs, classes) for name, level in CALIBRATED.items()}
        scores = {"likelihood": likelihood} | levels
        spreads = torch.stack([_spread(scores[name]) for name in SCORES])
        by_name = {name: Spread(*row) for name, row in zip(SCORES, spreads)}
        familiar = familiarity(likelihood, scores["energy"], by_name)
        at_shares = familiar.quantile(self._shares).cummax(0).values
        return TaskProfile.of(gaussians, spreads, at_shares, rivals.checked(seen.task.kind, judging, seen.judged))

    @torch.no_grad()
    def _run(self, part: Part, positions: Tensor, run: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """What comes of the images of a part at these positions, and their labels."""
        found, labels = [], []
        for some in positions.split(_AT_ONCE):
            x, y = part.batch(some)
            found.append(run(x))
            labels.append(y)
        return torch.cat(found).float(), torch.cat(labels)

    def _evenly(self, part: Part, most: int) -> Tensor:
        """Positions of at most so many images of a part, class after class, the same share of each.

        Fewer where they have to be read from disk.
        """
        key = (id(part.labels), most)
        if key not in self._chosen:
            at_most = most if part.in_memory else min(most, _STREAMED)
            positions = part.labels.cpu().argsort(stable=True)[:: -(-len(part) // at_most)]
            device = self.net.device if part.in_memory else torch.device("cpu")
            self._chosen[key] = (positions.to(device), part.labels)
        return self._chosen[key][0]


def _gaussians(several: Sequence[_Seen], net: FrozenNet, step: int) -> list[Gaussians]:
    """Those of each task, from all of its images, or from one half of them (step 2)."""
    features = [seen.features[::step] for seen in several]
    labels = [seen.labels[::step] for seen in several]
    classes, directions = several[0].task.classes, directions_for(net, features[0].shape[1])
    if len(several) == 1:
        return [Gaussians.of(features[0], labels[0], classes, directions)]
    together = Gaussians.of(torch.stack(features), torch.stack(labels), classes, directions)
    return [Gaussians(*values) for values in zip(*together)]


def _brought(profiles: Sequence[TaskProfile]) -> list[dict[str, Tensor]]:
    """Their tensors on the CPU, all with one copy of each kind; no two tasks share memory."""
    every = [profile.tensors() for profile in profiles]
    kinds = {name: torch.stack([tensors[name] for tensors in every]).cpu() for name in every[0]}
    return [{name: values[i].clone() for name, values in kinds.items()} for i in range(len(profiles))]


def _spread(score: Tensor) -> Tensor:
    """Mean and deviation; where all images score alike, a deviation to divide by all the same."""
    mean, deviation = score.mean(), score.std(correction=0)
    return torch.stack([mean, deviation.maximum((1e-6 * mean.abs().double() + 1e-6).float())])
