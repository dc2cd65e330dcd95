"""Fits the profiles of tasks that were just trained, from the images at hand; no image is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from supsup.data import Part
from supsup.data.rotations import mean_over_rotations
from supsup.inference.profiles import vectors
from supsup.inference.profiles.features import (
    SIZES,
    ProfileSize,
    extract_features,
    is_picture,
    is_vector,
    mask_bytes,
    profile_size,
    within,
)
from supsup.inference.profiles.profile import (
    CALIBRATED,
    FINDING,
    SCORES,
    SHARES,
    STEPS_PER_DOUBLING,
    Gaussians,
    Spread,
    TaskProfile,
    familiarity,
    unit_steps,
)
from supsup.masks.bank import Bank
from supsup.masks.frozen import FrozenNet, SwitchedNet
from supsup.runtime.errors import SupSupError

_JUDGED, _STREAMED = 256, 500  # most images: that are scored; that are read from disk
_FEW, _FOLDS = 500, 5  # up to so many images that none was held back of, all are scored, a fifth at a time
_FEW_OF_A_CLASS = 50  # images, up to which filters say about as much as a mask
_RARELY = 3.0  # times that an image is trained on, up to which masks answer it about as well as new images
_WORTH = 0.9  # of the errors of a mask: a profile has a say in answers for pictures if no more are left
_BEYOND_CHANCE = 2.0  # deviations of the errors of a profile alone: a mask over the last layers must spare more
_BATCH = 500
_IMAGE_BYTES = 20  # of a mask, for each image that a profile is fitted to
_IMAGES = 4  # at least, for each direction
_PASSES = 4  # of the power iteration
_DIRECTION_STEP = 2  # directions come in steps, so that profiles of tasks that were trained together have one form
_LOOKED_AT = 32  # images that show whether pixels are in order
_IN_ORDER = 0.3  # least correlation of neighbours: about 0 after a permutation
_APART = 1e-6  # keeps equal columns apart, relative to their length
_LEAST = 1e-3  # least variance in every direction, relative to the mean variance of a feature
_NEWTON_STEPS, _DAMPING = 30, 1e-9  # of fitting weights: at most; relative to the mean curvature
_HALVINGS = 20  # of a step that does not improve
# How many of n + 2 labels count as wrong. Answers have one, as in Platt's scaling. Tasks are found among the classes of
# all tasks, which vectors of one task say nothing of: with one, the task of CLINC150's validation sentences was right
# more often than its confidence said (expected calibration error 6.6 %), with a tenth as often (1.6 %).
_DOUBT_OF_TASKS, _DOUBT_OF_ANSWERS = 0.1, 1.0
_TOGETHER = 1 << 27  # bytes of features of tasks whose Gaussians are fitted together, on a GPU


@dataclass(frozen=True)
class ProfileData:
    """The images of a task that was trained.

    learned  images that it was trained on
    judge    held-back images that are scored; None: there are none, so Gaussians of some images score the others
    rotated  it was learned in all rotations
    seen     how often each image was trained on, on average
    """

    learned: Part
    judge: Part | None
    classes: int
    rotated: bool = False
    seen: float = math.inf

    @property
    def has_fair_outputs(self) -> bool:
        """Whether the mask answers the images that judge about as well as it answers new ones."""
        return self.judge is not None or self.seen <= _RARELY


@dataclass(frozen=True)
class _Measured:
    """What the networks give for a task's images; index is its number among the tasks trained together.

    directions, few  how many a profile gets, and how many a small one
    alike            how neighbouring pixels correlate
    """

    index: int
    task: ProfileData
    directions: int
    few: int
    alike: Tensor
    of_vectors: bool
    features: Tensor
    labels: Tensor
    judged_features: Tensor
    judged_labels: Tensor
    judged_outputs: Tensor

    @property
    def splits(self) -> list[tuple[Tensor, Tensor]]:
        """Rows of `features` that Gaussians are fitted to, and rows of the images that these Gaussians judge."""
        rows = torch.arange(len(self.features), device=self.features.device)
        judged = torch.arange(len(self.judged_features), device=self.features.device)
        if self.task.judge is not None:
            return [(rows, judged)]
        if len(rows) > _FEW:
            return [(rows[::2], judged)]
        return [
            (rows[rows % _FOLDS != fold], judged[judged % _FOLDS == fold]) for fold in range(min(_FOLDS, len(rows)))
        ]

    @property
    def form(self) -> tuple[int, ...]:
        """Gaussians of tasks of one form can be fitted together."""
        return (self.task.judge is None, self.of_vectors, self.task.classes, self.directions, *self.features.shape)

    def whole(self) -> _Measured:
        """With the images that were held back among those that Gaussians are fitted to."""
        if self.task.judge is None:
            return self
        features = torch.cat([self.features, self.judged_features])
        return replace(self, features=features, labels=torch.cat([self.labels, self.judged_labels]))

    @property
    def finite(self) -> Tensor:
        return self.features.isfinite().all() & self.judged_features.isfinite().all()


class ProfileFitter:
    """Fits the profiles of tasks that were trained together, from their masks as bytes [bytes, tasks]."""

    def __init__(self, net: FrozenNet, packed: Tensor, statistics: dict[str, Tensor]) -> None:
        self.net, self._bank = net, Bank(net.shapes, net.device, net.statistics)
        self._bank.add_packed(packed, statistics)
        kept = torch.stack([(packed >> bit & 1).sum(0) for bit in range(8)]).sum(0) / (8 * len(packed))
        entropy = (torch.special.entr(kept) + torch.special.entr(1 - kept)) / math.log(2)  # bits for each bit
        self._coded = (mask_bytes(net) * entropy).tolist()  # bytes of each mask, once a coder has written it
        self._switched = SwitchedNet(net)
        self._shares = torch.tensor(SHARES, device=net.device)
        self._positions: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # by the id of labels, which stay alive

    def fit(self, tasks: Sequence[ProfileData]) -> list[TaskProfile | None]:
        """The profile of each task, in the order of their masks.

        None where the network without a mask gives numbers that cannot be used.
        """
        found: list[TaskProfile | None] = [None] * len(tasks)
        waiting: list[_Measured] = []
        for index, task in enumerate(tasks):
            try:
                measured = self._measure(index, task)
            except SupSupError:
                continue
            if waiting and not (measured.form == waiting[0].form and self._room_for(measured, len(waiting))):
                self._fit_together(waiting, found)
                waiting = []
            waiting.append(measured)
        self._fit_together(waiting, found)
        return found

    def _likeness(self, part: Part) -> Tensor:
        """How neighbouring pixels correlate; 1 where a small profile would not do."""
        if self.net.pretrained or not is_picture(part.shape) or math.isinf(profile_size(self.net).masks):
            return torch.ones((), device=self.net.device)
        x = self._run(part.on(self.net.device), self._evenly(part, _LOOKED_AT), lambda x: x)[0]
        x = x - x.mean((-2, -1), keepdim=True)
        return (x[..., 1:] * x[..., :-1]).mean() / x.square().mean().clamp(min=torch.finfo(torch.float32).tiny)

    def _room_for(self, measured: _Measured, others: int) -> bool:
        """Whether one more task may wait; on a CPU waiting gains nothing."""
        return self.net.device.type != "cpu" and 4 * measured.features.numel() * (others + 1) <= _TOGETHER

    def _measure(self, index: int, task: ProfileData) -> _Measured:
        extract = partial(extract_features, self.net, check=False)
        learned, positions = task.learned.on(self.net.device), self._evenly(task.learned, image_limit(self.net))
        features, labels = self._run(learned, positions, extract)
        if task.judge is None:
            judged = torch.arange(len(positions), device=positions.device)
            if len(positions) > _FEW:  # every second one, since Gaussians of the others judge them
                judged = judged[1::2]
                judged = judged[:: -(-len(judged) // _JUDGED)]
            judged_features = features[judged.to(features.device)].contiguous()
            judge, judged = learned, positions[judged]
        else:
            judge, judged = task.judge.on(self.net.device), self._evenly(task.judge, _JUDGED)
            judged_features, _ = self._run(judge, judged, extract)
        run = partial(self._switched.run, self._bank, index)
        if task.rotated:
            run = partial(mean_over_rotations, run, task.classes)
        outputs, judged_labels = self._run(judge, judged, run)
        of_vectors = is_vector(self.net, learned.batch(positions[:1])[0])
        sizes = features.shape[1], task.classes, mask_bytes(self.net), self._coded[index]
        directions, few = (direction_limit(size, *sizes) for size in (profile_size(self.net), SIZES["small"]))
        alike = self._likeness(learned)
        data = features, labels, judged_features, judged_labels, outputs
        return _Measured(index, task, directions, few, alike, of_vectors, *data)

    def _fit_together(self, waiting: Sequence[_Measured], found: list[TaskProfile | None]) -> None:
        """Fit the profiles of tasks of one form; this waits for a GPU a few times in all."""
        if not waiting:
            return
        usable, alike = torch.stack([torch.stack([each.finite, each.alike]) for each in waiting]).T.tolist()
        several = [measured for measured, finite in zip(waiting, usable) if finite]
        in_order = [each >= _IN_ORDER for each, finite in zip(alike, usable) if finite]
        if not several:
            return
        first, splits = several[0], zip(*(measured.splits for measured in several))
        judging = [_gaussians(several, [rows for rows, _ in split]) for split in splits]
        gaussians = judging[0]
        if first.task.judge is None or len(first.features) <= _FEW:  # held-back images count where they are few
            gaussians = _gaussians([measured.whole() for measured in several])
        profiles = []
        for measured, ordered, fitted, *folds in zip(several, in_order, gaussians, *judging):
            profile = self._profile(measured, fitted, folds)
            if not ordered and not profile.answers:  # where pixels are tells such tasks apart: few directions do
                fitted, *folds = (each.leading(measured.few) for each in (fitted, *folds))
                profile = self._profile(measured, fitted, folds)
            profiles.append(profile)
        for measured, tensors in zip(several, _on_cpu(profiles)):
            try:
                found[measured.index] = TaskProfile.from_tensors(tensors, measured.task.classes)
            except SupSupError:  # numbers that cannot be used
                continue

    def _profile(self, measured: _Measured, gaussians: Gaussians, folds: Sequence[Gaussians]) -> TaskProfile:
        """A profile on the network's device; `folds`: Gaussians that judge the images of each split."""
        task, every = measured.task, []
        for (fitted, judged), judging in zip(measured.splits, folds):
            features = measured.judged_features[judged]
            by_class, likelihood = judging.class_scores(features), judging.likelihoods(features)
            by_shares = torch.zeros_like(by_class)
            if measured.of_vectors:
                means = vectors.part_means(measured.features[fitted], measured.labels[fitted], task.classes)
                by_shares = vectors.share_scores(features, vectors.log_shares(means))
            every.append((by_class, by_shares, likelihood, judged))
        by_class, by_shares, likelihood, order = map(torch.cat, zip(*every))
        outputs, labels = measured.judged_outputs[order], measured.judged_labels[order]
        scores = torch.stack([by_class, by_shares, outputs[:, : task.classes].log_softmax(-1)], -1)
        finding = fit_weights(scores[..., :FINDING], labels, _DOUBT_OF_TASKS)
        answering = self._answering(measured, finding, scores, labels)
        part_means = None
        if not measured.of_vectors:  # features may tell tasks apart though they say nothing of the labels within one
            finding[0] = finding[0].clamp(min=measured.features.shape[1] ** -0.5)
        else:
            part_means = vectors.part_means(measured.features, measured.labels, task.classes)
            likelihood = by_shares.amax(1) if float(finding[1]) > 0 else likelihood
        levels = {"likelihood": likelihood, "discriminant": by_class.amax(1)}
        levels |= {name: score(outputs, task.classes) for name, score in CALIBRATED.items()}
        spreads = torch.stack([_spread(levels[name]) for name in SCORES])
        by_name = {name: Spread(*row) for name, row in zip(SCORES, spreads)}
        familiar = familiarity(levels, by_name)
        at_shares = familiar.quantile(expected_shares(self._shares, len(familiar))).cummax(0).values
        weights = torch.cat([finding, answering]).to(at_shares.device)
        return TaskProfile.of(gaussians, spreads, at_shares, weights, part_means)

    def _answering(self, measured: _Measured, finding: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
        """Weights [3] of scores [n, C, 3] by Gaussians, shares and mask where a class is asked for; 0: no say."""
        if not measured.task.has_fair_outputs:
            few = len(measured.features) <= _FEW_OF_A_CLASS * measured.task.classes
            if few or measured.of_vectors or self.net.pretrained:
                answering = equal_say(finding, scores, labels)
            else:  # filters say less than a mask of many images: of SplitCIFAR100 both found 85.2 %, masks alone 92.5
                answering = torch.tensor([0.0] * FINDING + [1.0])
        else:
            answering = fit_weights(scores, labels, _DOUBT_OF_ANSWERS)
            alone = fit_weights(scores[..., :-1], labels, _DOUBT_OF_ANSWERS)
            ways = scores @ answering.to(scores), scores[..., -1], scores[..., :-1] @ alone.to(scores)
            wrong, masks_wrong, alone_wrong = (int((each.argmax(1) != labels).sum()) for each in ways)
            if self.net.described and alone_wrong - wrong <= _BEYOND_CHANCE * alone_wrong**0.5:
                answering = torch.cat([alone, torch.zeros(1)])
            elif not measured.of_vectors and wrong > _WORTH * masks_wrong:
                answering[:-1] = 0
        if not (measured.of_vectors or self.net.pretrained or is_picture(measured.task.learned.shape)):
            answering[:-1] = 0  # an exported network could not compute these features
        return answering

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


def direction_limit(size: ProfileSize, features: int, classes: int, mask: int, coded: float) -> int:
    """Most directions of a profile: about as many bytes as a mask has, and no more than so many coded masks have."""
    fewest, most = size.directions
    most = within(mask // features, (fewest, most))
    if math.isinf(size.masks):
        return most
    return max(fewest, min(most, (int(size.masks * coded / features) - classes) // _DIRECTION_STEP * _DIRECTION_STEP))


def image_limit(net: FrozenNet) -> int:
    """Maximum number of images to fit a profile to: more for networks that train so long that fitting hardly counts."""
    return within(mask_bytes(net) // _IMAGE_BYTES, profile_size(net).images)


def _gaussians(several: Sequence[_Measured], rows: Sequence[Tensor | slice] | None = None) -> list[Gaussians]:
    """Those of each task, from all of its images or from these rows."""
    rows = [slice(None)] * len(several) if rows is None else rows
    features = [measured.features[some] for measured, some in zip(several, rows)]
    labels = [measured.labels[some] for measured, some in zip(several, rows)]
    classes, directions = several[0].task.classes, several[0].directions
    of_vectors = several[0].of_vectors  # whose units the user chose
    if len(several) == 1:
        found = [fit_gaussians(features[0], labels[0], classes, directions, not of_vectors)]
    else:
        stacked = torch.stack(features), torch.stack(labels)
        found = [Gaussians(*values) for values in zip(*fit_gaussians(*stacked, classes, directions, not of_vectors))]
    if of_vectors:  # for CLINC150's hashed sentences the usual smoothing is better by half a point
        found = [each._replace(noise=torch.full_like(each.noise, math.nan)) for each in found]
    return found


def fit_gaussians(features: Tensor, labels: Tensor, classes: int, directions: int, in_units: bool = True) -> Gaussians:
    """From features [n, d] of images and their classes [n], with at most this many directions.

    in_units  in units of each feature's deviation
    """
    images, numbers = features.shape[-2:]
    member = torch.nn.functional.one_hot(labels, classes).to(features.dtype)
    counts = member.sum(-2)
    means = member.mT @ features / counts.clamp(min=1)[..., None]
    centred = features - means.gather(-2, labels[..., None].expand(features.shape))
    steps = unit_steps(centred)
    if not in_units:
        steps.zero_()
    units = torch.exp2(steps.float() / STEPS_PER_DOUBLING)[..., None, :]
    variance = ((features - features.mean(-2, keepdim=True)) / units).square().mean((-2, -1))
    least = (_LEAST * variance.double() + torch.finfo(torch.float32).tiny).float()
    count = max(0, min(directions, (images - classes) // _IMAGES, numbers - 1))
    freedom = (images - (counts > 0).sum(-1)).clamp(min=1)
    axes, variances, rest = _principal(centred / units, count, least, freedom)
    return Gaussians(means, axes, variances, rest, _noise(centred / units, variances, rest), steps)


def _noise(centred: Tensor, variances: Tensor, rest: Tensor) -> Tensor:
    """The expected squared error of the covariance matrix that rows [n, d] around their means give."""
    n, d = centred.shape[-2:]
    squares = variances.double().square().sum(-1) + (d - variances.shape[-1]) * rest.double().square()
    return ((centred.double().square().sum(-1).square().mean(-1) - squares).clamp(min=0) / n).float()


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
    found: list[dict[str, Tensor]] = [{} for _ in profiles]
    for form in {profile.directions.shape for profile in profiles}:
        alike = [number for number, profile in enumerate(profiles) if profile.directions.shape == form]
        every = [profiles[number].tensors() for number in alike]
        for name in every[0]:
            values = torch.stack([tensors[name] for tensors in every]).cpu()
            for number, value in zip(alike, values):
                found[number][name] = value.clone()
    return found


def _spread(score: Tensor) -> Tensor:
    """Mean and deviation; never 0, also where all images score the same."""
    mean, deviation = score.mean(), score.std(correction=0)
    return torch.stack([mean, deviation.maximum((1e-6 * mean.abs().double() + 1e-6).float())])


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


def expected_shares(shares: Tensor, count: int) -> Tensor:
    """Where to take quantiles of n scores, so that these shares of new scores are expected to be lower."""
    return ((shares * (count + 1) - 1) / max(1, count - 1)).clamp(0, 1)
