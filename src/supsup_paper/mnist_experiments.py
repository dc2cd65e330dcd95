"""The kinds of experiment on MNIST: SupSup, tasks that nobody announces, the rivals, and HopSupSup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

from supsup.data.streams import Corners
from supsup.evaluation.grading import Grading
from supsup.inference.methods import Method
from supsup_paper.experiments import NoSettings
from supsup_paper.rivals.batche import BaseWeights
from supsup_paper.rivals.inferring import BatchEMethod

LENET, FC = "lenet_300_100", "fc_1024"
MnistStream = Literal["permuted", "rotated"]
Gamma = float | Literal["1/k"]  # k is the number of tasks
_QUICK_STRICT = (2,)  # tasks: every one of their images is asked for on its own
_QUICK_GAMMAS: tuple[Gamma, ...] = ("1/k", 0.5)


@dataclass(frozen=True)
class MnistTraining:
    """Tasks of MNIST learned by a fully connected network in `steps` batches of 128 images each.

    net      lenet_300_100, fc_1024, or the widths of inputs and hidden layers ("784-1000-1000")
    corners  of images that are turned
    """

    stream: MnistStream
    net: str
    outputs: int
    tasks: int
    steps: int = 1000
    corners: Corners | None = None

    def quick(self, tasks: int = 10, steps: int = 200) -> Self:
        """At most so many tasks and steps, or those that suit the network and the stream."""
        if self.net == FC:
            tasks, steps = 10, 40  # a step takes several times longer
        if self.stream == "rotated":
            tasks, steps = 3, 100  # whole batches decide, round after round
        return replace(self, tasks=min(self.tasks, tasks), steps=min(self.steps, steps))


@dataclass(frozen=True, kw_only=True)
class StagedTraining(MnistTraining):
    """Graded whenever one of these numbers of tasks has been learned."""

    stages: tuple[int, ...]

    def quick(self, tasks: int = 10, steps: int = 200) -> Self:
        smaller = super().quick(tasks, steps)
        return replace(smaller, stages=stages_within(self.stages, smaller.tasks))


@dataclass(frozen=True)
class AllocationRule:
    """What is changed in the rule that opens new masks (`supsup.NewTaskRule`)."""

    deviations: float


@dataclass(frozen=True, kw_only=True)
class UnannouncedTraining(StagedTraining):
    """Nobody says when the task changes."""

    allocation: AllocationRule | None = None


@dataclass(frozen=True, kw_only=True)
class ConsolidationTraining(StagedTraining):
    """Online EWC or SI, and how strongly they hold on to what was learned."""

    batch_size: int
    method: Literal["ewc", "si"]
    strength: float


@dataclass(frozen=True, kw_only=True)
class BatchETraining(MnistTraining):
    """BatchE, whose W is trained on the first task where `base` is None."""

    base: BaseWeights | None = None


@dataclass(frozen=True)
class HopfieldTraining:
    """SplitMNIST learned by a network with two hidden layers of so many units.

    starts  descents that "best-of" chooses from
    """

    units: int = 2048
    epochs: int = 1
    starts: int = 8
    tasks: int = 5


@dataclass(frozen=True, kw_only=True)
class SupSupGrading:
    """How SupSup is graded, after each of these numbers of tasks.

    gammas  for the method "gamma": one figure for each, at the last stage
    """

    scenario: Literal["GG", "GNu"] = "GNu"
    protocol: Grading = "paper"
    method: Method = "one-shot"
    objective: str = "H"
    layers: str = "all"
    gammas: tuple[Gamma, ...] | None = None
    stages: tuple[int, ...]

    def quick(self, tasks: int) -> Self:
        """With at most so many tasks."""
        stages = _QUICK_STRICT if self.protocol == "strict" else self.stages
        gammas = None if self.gammas is None else _QUICK_GAMMAS
        return replace(self, stages=stages_within(stages, tasks), gammas=gammas)


@dataclass(frozen=True, kw_only=True)
class BatchEGrading:
    """How BatchE is graded, after each of these numbers of tasks; with the task given only scenario and stages count.

    protocol, method, objective  "paper", "one-shot" and "H" where None
    images                       so many of a batch decide; None: all of them
    """

    scenario: Literal["GG", "GNu"] = "GNu"
    protocol: Grading | None = None
    method: BatchEMethod | None = None
    objective: str | None = None
    images: int | None = None
    stages: tuple[int, ...]

    def quick(self, tasks: int) -> Self:
        """With at most so many tasks."""
        return replace(self, stages=stages_within(self.stages, tasks))


@dataclass(frozen=True)
class BoundGrading:
    """Which bound a row shows: every task's own network ("upper") or what is left of the last one ("lower")."""

    keep: Literal["upper", "lower"]


@dataclass(frozen=True)
class HopfieldGrading:
    """How masks are recovered, or "own" for the masks as learned."""

    procedure: Literal["paper", "best-of", "own"]


@dataclass(frozen=True)
class SupSupExperiment:
    """SupSup learns all tasks and is then graded."""

    kind: ClassVar[str] = "supsup"
    training: MnistTraining
    own: SupSupGrading

    def quick(self) -> Self:
        training = self.training.quick()
        return replace(self, training=training, own=self.own.quick(training.tasks))


@dataclass(frozen=True)
class UnannouncedExperiment:
    """SupSup learns and is graded without a word about tasks (NNs)."""

    kind: ClassVar[str] = "unannounced"
    training: UnannouncedTraining
    own: NoSettings = field(default_factory=NoSettings)

    def quick(self) -> Self:
        return replace(self, training=self.training.quick(tasks=5, steps=300))  # decides every 100 batches


@dataclass(frozen=True)
class PSPExperiment:
    """Parameter superposition."""

    kind: ClassVar[str] = "psp"
    training: StagedTraining
    own: NoSettings = field(default_factory=NoSettings)

    def quick(self) -> Self:
        return replace(self, training=self.training.quick())


@dataclass(frozen=True)
class BoundsExperiment:
    """Upper and Lower Bound, both from one training."""

    kind: ClassVar[str] = "bounds"
    training: StagedTraining
    own: BoundGrading

    def quick(self) -> Self:
        return replace(self, training=self.training.quick())


@dataclass(frozen=True)
class ConsolidationExperiment:
    """Online EWC or SI, class-incremental."""

    kind: ClassVar[str] = "consolidation"
    training: ConsolidationTraining
    own: NoSettings = field(default_factory=NoSettings)

    def quick(self) -> Self:
        return replace(self, training=self.training.quick(self.training.tasks, steps=100))


@dataclass(frozen=True)
class BatchEExperiment:
    """BatchE with the task given or inferred."""

    kind: ClassVar[str] = "batche"
    training: BatchETraining
    own: BatchEGrading

    def quick(self) -> Self:
        training = self.training.quick()
        return replace(self, training=training, own=self.own.quick(training.tasks))


@dataclass(frozen=True)
class HopfieldExperiment:
    """HopSupSup on SplitMNIST."""

    kind: ClassVar[str] = "hopfield"
    training: HopfieldTraining
    own: HopfieldGrading

    def quick(self) -> Self:
        return replace(self, training=replace(self.training, units=min(self.training.units, 512)))


def stages_within(stages: Sequence[int], tasks: int) -> tuple[int, ...]:
    """The stages that so many tasks reach; the last of them is put in place of all that are not reached."""
    last = min(tasks, stages[-1])
    return (*(stage for stage in stages if stage < last), last)
