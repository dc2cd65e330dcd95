"""Fits the profiles of tasks that were just trained, from the images at hand; no image is kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from supsup.data import Part
from supsup.data.rotations import mean_over_rotations
from supsup.inference.profiles import vectors
from supsup.inference.profiles.features import FEATURE_LIMITS, extract_features, is_vector, mask_bytes, within
from supsup.inference.profiles.profile import CALIBRATED, SCORES, SHARES, Gaussians, Spread, TaskProfile, familiarity
from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet, SwitchedNet
from supsup.runtime.errors import SupSupError

_JUDGED, _STREAMED = 256, 500  # most images: that are scored; that are read from disk
_RIVALS = 32  # the latest tasks, which a new one is compared with
_BATCH = 500
_IMAGE_BYTES = 20  # of a mask, for each image that a profile is fitted to
_IMAGES = 4  # at least, for each direction
_PASSES = 4  # of the power iteration
_APART = 1e-6  # keeps equal columns apart, relative to their length
_LEAST = 1e-3  # least variance in every direction, relative to the mean variance of a feature
_TOGETHER = 1 << 27  # bytes of features of tasks whose Gaussians are fitted together, on a GPU


@dataclass(frozen=True)
class ProfileData:
    """The images of a task that was trained.

    learned  images that its Gaussians are fitted to
    judge    held-back images that are scored; None: there are none, so Gaussians of one half of the images score the
             other half
    kind     of its inputs: tasks of one kind can be compared
    rotated  it was learned in all rotations
    """

    learned: Part
    judge: Part | None
    classes: int
    kind: Hashable = None
    rotated: bool = False


@dataclass(frozen=True)
class _Measured:
    """What the networks give for a task's images; index is its number among the tasks trained together."""

    index: int
    task: ProfileData
    of_vectors: bool
    features: Tensor
    labels: Tensor
    judged_features: Tensor
    judged_labels: Tensor
    judged_outputs: Tensor

    @property
    def form(self) -> tuple[int, ...]:
        """Gaussians of tasks of one form can be fitted together."""
        return (self.task.judge is None, self.of_vectors, self.task.classes, *self.features.shape)

    @property
    def finite(self) -> Tensor:
        return self.features.isfinite().all() & self.judged_features.isfinite().all()


class Rivals:
    """The means of the latest tasks of each kind, which new ones are compared with.

    earlier  profiles of earlier tasks by kind, the latest first
    """

    def __init__(
        self, kinds: Collection[Hashable], earlier: Iterable[tuple[Hashable, TaskProfile]], device: torch.device
    ):
        self._latest: dict[Hashable, deque[Tensor]] = {kind: deque(maxlen=_RIVALS) for kind in kinds}
        lacking = set(kinds)
        for kind, profile in earlier:
            if kind in lacking and profile.comparable:
                self._latest[kind].appendleft(profile.class_means.to(device))
                if len(self._latest[kind]) == _RIVALS:
                    lacking.remove(kind)
            if not lacking:
                break

    def checked(self, kind: Hashable, gaussians: Gaussians, features: Tensor) -> Tensor:
        """How many of a task's images [n, d] were compared, and how many fit it better than any rival."""
        others = [means for means in self._latest[kind] if means.shape[1] == features.shape[1]]
        if not others:
            return torch.zeros(2, dtype=torch.int64, device=features.device)
        found = gaussians.recognised(features, others)
        return torch.stack([torch.ones_like(found).sum(), found.sum()])

    def add(self, kind: Hashable, profile: TaskProfile) -> None:
        """One more task."""
        self._latest[kind].append(profile.class_means)


class ProfileFitter:
    """Fits the profiles of tasks that were trained together, from their masks as bytes [bytes, tasks]."""

    def __init__(self, net: FrozenNet, packed: Tensor, statistics: dict[str, Tensor]) -> None:
        self.net, self._bank = net, Bank(net.shapes, net.device, net.statistics)
        self._bank.add_packed(packed, statistics)
        self._switched = SwitchedNet(net)
        self._shares = torch.tensor(SHARES, device=net.device)
        self._positions: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # by the id of labels, which stay alive

    def fit(
        self, tasks: Sequence[ProfileData], earlier: Iterable[tuple[Hashable, TaskProfile]]
    ) -> list[TaskProfile | None]:
        """The profile of each task, in the order of their masks; earlier ones by kind, the latest first.

        None where the network without a mask gives numbers that cannot be used.
        """
        rivals = Rivals({task.kind for task in tasks}, earlier, self.net.device)
        found: list[TaskProfile | None] = [None] * len(tasks)
        waiting: list[_Measured] = []
        for index, task in enumerate(tasks):
            try:
                measured = self._measure(index, task)
            except SupSupError:
                continue
            if waiting and not (measured.form == waiting[0].form and self._room_for(measured, len(waiting))):
                self._fit_together(waiting, rivals, found)
                waiting = []
            waiting.append(measured)
        self._fit_together(waiting, rivals, found)
        return found

    def _room_for(self, measured: _Measured, others: int) -> bool:
        """Whether one more task may wait; on a CPU waiting gains nothing."""
        return self.net.device.type != "cpu" and 4 * measured.features.numel() * (others + 1) <= _TOGETHER

    def _measure(self, index: int, task: ProfileData) -> _Measured:
        extract = partial(extract_features, self.net, check=False)
        learned, positions = task.learned.on(self.net.device), self._evenly(task.learned, image_limit(self.net))
        features, labels = self._run(learned, positions, extract)
        if task.judge is None:
            half = slice(min(1, len(positions) - 1), None, 2)
            some = slice(None, None, -(-len(positions[half]) // _JUDGED))
            judge, judged, judged_features = learned, positions[half][some], features[half][some].contiguous()
        else:
            judge, judged = task.judge.on(self.net.device), self._evenly(task.judge, _JUDGED)
            judged_features, _ = self._run(judge, judged, extract)
        run = partial(self._switched.run, self._bank, index)
        if task.rotated:
            run = partial(mean_over_rotations, run, task.classes)
        outputs, judged_labels = self._run(judge, judged, run)
        of_vectors = is_vector(self.net, learned.batch(positions[:1])[0])
        return _Measured(index, task, of_vectors, features, labels, judged_features, judged_labels, outputs)

    def _fit_together(self, waiting: Sequence[_Measured], rivals: Rivals, found: list[TaskProfile | None]) -> None:
        """Fit the profiles of tasks of one form; this waits for a GPU a few times in all."""
        usable = torch.stack([measured.finite for measured in waiting]).tolist() if waiting else []
        several = [measured for measured, finite in zip(waiting, usable) if finite]
        if not several:
            return
        gaussians = judging = _gaussians(several, self.net, 1)
        if several[0].task.judge is None:
            judging = _gaussians(several, self.net, 2)
        profiles = []
        for measured, fitted, half in zip(several, gaussians, judging):
            profiles.append(self._profile(measured, fitted, half, rivals))
            rivals.add(measured.task.kind, profiles[-1])
        for measured, tensors in zip(several, _on_cpu(profiles)):
            try:
                found[measured.index] = TaskProfile.from_tensors(tensors, measured.task.classes)
            except SupSupError:  # numbers that cannot be used
                continue

    def _profile(self, measured: _Measured, gaussians: Gaussians, judging: Gaussians, rivals: Rivals) -> TaskProfile:
        """A profile on the network's device; images that were learned are scored by Gaussians of the other half."""
        classes, features = measured.task.classes, measured.judged_features
        part_means, weights, likelihood = None, None, judging.likelihoods(features)
        if measured.of_vectors:
            part_means, weights, likelihood = self._vectors(measured, judging)
        scores = {"likelihood": likelihood}
        scores |= {name: score(measured.judged_outputs, classes) for name, score in CALIBRATED.items()}
        spreads = torch.stack([_spread(scores[name]) for name in SCORES])
        by_name = {name: Spread(*row) for name, row in zip(SCORES, spreads)}
        familiar = familiarity(scores["likelihood"], scores["energy"], by_name)
        shares = vectors.expected_shares(self._shares, len(familiar)) if measured.of_vectors else self._shares
        at_shares = familiar.quantile(shares).cummax(0).values
        checked = rivals.checked(measured.task.kind, judging, features)
        return TaskProfile.of(gaussians, spreads, at_shares, checked, part_means, weights)

    def _vectors(self, measured: _Measured, judging: Gaussians) -> tuple[Tensor, Tensor, Tensor]:
        """What a profile of vectors has beside Gaussians: part means, weights, and how likely those are that judge."""
        task, features, step = measured.task, measured.judged_features, 2 if measured.task.judge is None else 1
        means = vectors.part_means(measured.features, measured.labels, task.classes)
        judge = vectors.part_means(measured.features[::step], measured.labels[::step], task.classes)
        shares = vectors.log_shares(judge)
        by_mask = measured.judged_outputs[:, : task.classes].log_softmax(-1)
        scores = torch.stack([judging.class_scores(features), vectors.share_scores(features, shares), by_mask], -1)
        labels = measured.judged_labels
        finding = vectors.fit_weights(scores[..., : vectors.FINDING], labels, vectors.DOUBT_OF_TASKS)
        if task.judge is None:
            answering = vectors.equal_say(finding, scores, labels)
        else:
            answering = vectors.fit_weights(scores, labels, vectors.DOUBT_OF_ANSWERS)
        weights = torch.cat([finding, answering])
        likelihood = vectors.likelihood(judging.likelihoods(features), features, shares, weights)
        return means, weights.to(features.device), likelihood

    @torch.no_grad()
    def _run(self, part: Part, positions: Tensor, run: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """The result of `run` for the images of a part at these positions, and their labels."""
        found, labels = [], []
        for some in positions.split(_BATCH):
            x, y = part.batch(some)
            found.append(run(x))
            labels.append(y)
        return torch.cat(found).float(), torch.cat(labels)

    def _evenly(self, part: Part, most: int) -> Tensor:
        """Positions of at most this many images of a part, class after class, the same share of each.

        Fewer where they have to be read from disk.
        """
        key = (id(part.labels), most)
        if key not in self._positions:
            at_most = most if part.in_memory else min(most, _STREAMED)
            positions = part.labels.cpu().argsort(stable=True)[:: -(-len(part) // at_most)]
            device = self.net.device if part.in_memory else torch.device("cpu")
            self._positions[key] = (positions.to(device), part.labels)
        return self._positions[key][0]


def direction_limit(net: FrozenNet, features: int) -> int:
    """Most directions of a profile: about as many bytes as a mask has."""
    return within(mask_bytes(net) // features, FEATURE_LIMITS.directions)


def image_limit(net: FrozenNet) -> int:
    """Maximum number of images to fit a profile to: more for networks that train so long that fitting hardly counts."""
    return within(mask_bytes(net) // _IMAGE_BYTES, FEATURE_LIMITS.images)


def _gaussians(several: Sequence[_Measured], net: FrozenNet, step: int) -> list[Gaussians]:
    """Those of each task, from all of its images, or from one half of them (step 2)."""
    features = [measured.features[::step] for measured in several]
    labels = [measured.labels[::step] for measured in several]
    classes, directions = several[0].task.classes, direction_limit(net, features[0].shape[1])
    if len(several) == 1:
        return [fit_gaussians(features[0], labels[0], classes, directions)]
    together = fit_gaussians(torch.stack(features), torch.stack(labels), classes, directions)
    return [Gaussians(*values) for values in zip(*together)]


def fit_gaussians(features: Tensor, labels: Tensor, classes: int, directions: int) -> Gaussians:
    """From features [n, d] of images and their classes [n], with at most this many directions."""
    images, numbers = features.shape[-2:]
    member = torch.nn.functional.one_hot(labels, classes).to(features.dtype)
    counts = member.sum(-2)
    means = member.mT @ features / counts.clamp(min=1)[..., None]
    variance = (features - features.mean(-2, keepdim=True)).square().mean((-2, -1))
    least = (_LEAST * variance.double() + torch.finfo(torch.float32).tiny).float()
    count = max(0, min(directions, (images - classes) // _IMAGES, numbers - 1))
    freedom = (images - (counts > 0).sum(-1)).clamp(min=1)
    centred = features - means.gather(-2, labels[..., None].expand(features.shape))
    return Gaussians(means, *_principal(centred, count, least, freedom))


def _principal(centred: Tensor, count: int, least: Tensor, freedom: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The directions [r, d] in which rows [n, d] vary most, the variance along each, and the mean in all others.

    least    the smallest variance
    freedom  degrees of freedom, by which sums of squares are divided
    """
    n, d = centred.shape[-2:]
    total = centred.double().square().sum((-2, -1)) / freedom
    directions, variances = centred[..., :0, :], centred[..., :0, 0]
    if count > 0:
        start = centred[..., :: max(1, n // count), :][..., :count, :].mT
        basis = _orthonormal(start + 1e-6 * torch.eye(d, count, device=centred.device))
        for _ in range(_PASSES):
            basis = _orthonormal(centred.mT @ (centred @ basis))
        seen = (centred @ basis).double()
        values, turn = torch.linalg.eigh(seen.mT @ seen / freedom[..., None, None])
        directions = (basis.double() @ turn).mT.float()
        variances = values.float().maximum(least[..., None])
    rest = (total - variances.double().sum(-1)) / (d - count)
    return directions, variances, rest.float().maximum(least)


def _orthonormal(columns: Tensor) -> Tensor:
    """Orthonormal columns [d, r] with the same span.

    On a GPU `qr` takes one matrix after the other; Cholesky factors of many Gram matrices are one call.
    """
    return torch.linalg.qr(columns).Q if columns.device.type == "cpu" else orthonormal_by_factors(columns)


def orthonormal_by_factors(columns: Tensor) -> Tensor:
    """The same for any number of matrices at once; columns that depend on others are replaced."""
    found = columns.double()
    apart = _APART * torch.eye(*columns.shape[-2:], dtype=found.dtype, device=found.device)
    found = torch.nn.functional.normalize(torch.nn.functional.normalize(found, dim=-2) + apart, dim=-2)
    for _ in range(2):  # the second corrects rounding
        factor = torch.linalg.cholesky_ex(found.mT @ found).L
        found = torch.linalg.solve_triangular(factor, found.mT, upper=False).mT
    return found.float()


def _on_cpu(profiles: Sequence[TaskProfile]) -> list[dict[str, Tensor]]:
    """Their tensors on the CPU, all with one copy per field; no two tasks share memory."""
    every = [profile.tensors() for profile in profiles]
    fields = {name: torch.stack([tensors[name] for tensors in every]).cpu() for name in every[0]}
    return [{name: values[i].clone() for name, values in fields.items()} for i in range(len(profiles))]


def _spread(score: Tensor) -> Tensor:
    """Mean and deviation; never 0, also where all images score the same."""
    mean, deviation = score.mean(), score.std(correction=0)
    return torch.stack([mean, deviation.maximum((1e-6 * mean.abs().double() + 1e-6).float())])
