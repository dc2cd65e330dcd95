"""Traces of tasks that were just trained, from the images at hand; the images are not kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from supsup.bank import Bank
from supsup.data import Part
from supsup.data.self_labels import averaged
from supsup.errors import SupSupError
from supsup.finding.features import directions_for, features, images_for
from supsup.finding.gaussians import Gallery, Gaussians
from supsup.finding.trace import SCORES, SHARES, Trace
from supsup.frozen import FrozenNet
from supsup.objectives import CALIBRATED
from supsup.switching import SwitchedNet

_JUDGING, _STREAMED = 256, 500  # images: for scores; at most where each has to be read from disk
_RIVALS = 32  # tasks that a new one is compared with, the latest
_AT_ONCE = 500


class Leaving:
    """Makes the traces of tasks that were trained together, their masks as bytes [bytes, tasks]."""

    def __init__(self, net: FrozenNet, packed: Tensor, statistics: dict[str, Tensor]) -> None:
        self.net, self._bank = net, Bank(net.shapes, net.device, net.statistics)
        self._bank.add_packed(packed, statistics)
        self._switched = SwitchedNet(net, self._bank.spans)

    def trace(
        self,
        index: int,
        learned: Part,
        judge: Part | None,
        classes: int,
        rivals: Sequence[Trace],
        turned: bool = False,
    ) -> Trace | None:
        """The trace of a task: Gaussians from images learned, scores from those that judge.

        turned  the task was learned in all rotations, and is answered so
        judge  images held back; None: there are none, so Gaussians of one half of the images judge the other half
        None where the network without a mask gives no numbers to compute with.
        """
        try:
            return self._made(index, learned, judge, classes, rivals[-_RIVALS:], turned)
        except SupSupError:
            return None

    def _made(
        self, index: int, learned: Part, judge: Part | None, classes: int, rivals: Sequence[Trace], turned: bool
    ) -> Trace:
        positions = _evenly(learned, images_for(self.net))
        seen, labels = self._run(learned, positions, self._features)
        directions = directions_for(self.net, seen.shape[1])
        gaussians = judging = Gaussians.of(seen, labels, classes, directions)
        if judge is None:
            judge, judging = learned, Gaussians.of(seen[::2], labels[::2], classes, directions)
            asked = positions[1::2] if len(positions) > 1 else positions
            asked = asked[:: -(-len(asked) // _JUDGING)]
        else:
            asked = _evenly(judge, _JUDGING)
        judged, _ = self._run(judge, asked, self._features)
        answer = partial(self._switched.run, self._bank, index)
        outputs, _ = self._run(judge, asked, (lambda x: averaged(answer, x, classes)) if turned else answer)
        gallery = Gallery([judging, *(r.gaussians for r in rivals if r.suits(seen.shape[1]))], self.net.device)
        found = gallery.task_scores(gallery.class_scores(judged)).argmax(1) == 0
        scores = {"likelihood": judging.likelihoods(judged)}
        scores |= {name: -level(outputs, classes) for name, level in CALIBRATED.items()}
        spreads = torch.stack([_spread(scores[name]) for name in SCORES])
        checked = torch.tensor([len(judged), int(found.sum())] if rivals else [0, 0])
        made = Trace.of(gaussians, spreads, torch.zeros(len(SHARES)), checked)
        familiar = made.familiarity(scores["likelihood"], scores["energy"])
        at_shares = familiar.quantile(torch.tensor(SHARES, device=familiar.device)).cummax(0).values
        return Trace.from_tensors(made.tensors() | {"familiar": at_shares.cpu()}, classes)

    def _features(self, x: Tensor) -> Tensor:
        return features(self.net, x)

    @torch.no_grad()
    def _run(self, part: Part, positions: Tensor, run: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """What comes of the images of a part at these positions, and their labels."""
        found, labels = [], []
        for some in positions.split(_AT_ONCE):
            x, y = part.batch(some, self.net.device)
            found.append(run(x))
            labels.append(y)
        return torch.cat(found).float(), torch.cat(labels)


def _evenly(part: Part, most: int) -> Tensor:
    """Positions of at most so many images of a part, class after class, the same share of each.

    Fewer where they have to be read from disk.
    """
    most = most if part.in_memory else min(most, _STREAMED)
    return part.labels.cpu().argsort(stable=True)[:: -(-len(part) // most)]


def _spread(score: Tensor) -> Tensor:
    """Mean and deviation; where all images score alike, a deviation to divide by all the same."""
    mean, deviation = score.mean(), score.std(correction=0)
    return torch.stack([mean, deviation.clamp(min=1e-6 * float(mean.abs()) + 1e-6)])
