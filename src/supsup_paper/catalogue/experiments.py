"""The kinds of experiment, each a frozen dataclass, and how their settings are written to JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias, cast

from supsup.data.streams import Corners
from supsup.evaluation.grading import GradingProtocol
from supsup.training.recipe import Transfer
from supsup_paper.baselines.batche import BaseWeights
from supsup_paper.baselines.inference import BatchEMethod

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class FrozenSettings(Protocol):
    """A frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


class TrainingSettings(FrozenSettings, Protocol):
    """The settings of a training, which rows may share."""

    @property
    def tasks(self) -> int: ...


class Experiment(Protocol):
    """One row's experiment.

    kind      names the run that makes it; written to results/
    training  rows with equal ones are made from a single training
    own       what the row does with that training
    """

    kind: ClassVar[str]

    @property
    def training(self) -> TrainingSettings: ...

    @property
    def own(self) -> FrozenSettings: ...

    def quick(self) -> Self:
        """The same with fewer tasks and steps, for 2 cores."""
        ...


@dataclass(frozen=True)
class NoSettings:
    """For rows that have no settings of their own."""


def settings_json(settings: FrozenSettings) -> dict[str, Json]:
    """Settings by the names of their fields, with spaces; a field that is None by default is left out while it is."""
    values = {field: getattr(settings, field.name) for field in fields(settings)}
    return {
        field.name.replace("_", " "): _value(value)
        for field, value in values.items()
        if not (value is None and field.default is None)
    }


def _value(value: object) -> Json:
    if isinstance(value, tuple):
        return [_value(entry) for entry in value]
    if is_dataclass(value) and not isinstance(value, type):
        return settings_json(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"settings hold numbers, words, tuples and dataclasses, not {value!r}")


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
    protocol: GradingProtocol = "paper"
    method: str = "one-shot"
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
    protocol: GradingProtocol | None = None
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


class _ShorterTraining:
    """An experiment whose quick form differs in its training alone."""

    training: Any

    def quick(self) -> Self:
        """The same with fewer tasks and steps, for 2 cores."""
        return cast(Self, replace(cast(Any, self), training=self.training.quick()))


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
class PSPExperiment(_ShorterTraining):
    """Parameter superposition."""

    kind: ClassVar[str] = "psp"
    training: StagedTraining
    own: NoSettings = field(default_factory=NoSettings)


@dataclass(frozen=True)
class BoundsExperiment(_ShorterTraining):
    """Upper and Lower Bound, both from one training."""

    kind: ClassVar[str] = "bounds"
    training: StagedTraining
    own: BoundGrading


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


CifarBaseline = Literal["batche", "batche-random-rank-one", "batche-random-heads", "heads", "heads-random", "bounds"]


@dataclass(frozen=True, kw_only=True)
class ImageTraining:
    """So many epochs for each task or, where that is None, so many steps."""

    tasks: int = 20
    epochs: int | None = 250
    steps: int | None = None
    batch_size: int = 128

    def quick(self, steps: int = 4, batch_size: int = 32) -> Self:
        """Two tasks, at most so many steps of so many images."""
        steps, batch_size = _at_most(self.steps, steps), min(self.batch_size, batch_size)
        return replace(self, tasks=min(self.tasks, 2), epochs=None, steps=steps, batch_size=batch_size)


@dataclass(frozen=True, kw_only=True)
class CifarTraining(ImageTraining):
    """SupSup, its masks begun at random or from the earlier ones."""

    transfer: Transfer


@dataclass(frozen=True, kw_only=True)
class CifarBaselineTraining(ImageTraining):
    """One of the baselines."""

    method: CifarBaseline


@dataclass(frozen=True, kw_only=True)
class TransferSpeedTraining(CifarTraining):
    """A model for each budget, in which the first task is learned for longer than the others."""

    first_epochs: int | None = 250
    first_steps: int | None = None
    budgets: tuple[float, ...]

    def quick(self, steps: int = 4, batch_size: int = 32) -> Self:
        first_steps = _at_most(self.first_steps, 8)
        return replace(super().quick(steps, batch_size), first_epochs=None, first_steps=first_steps, budgets=(8,))


@dataclass(frozen=True, kw_only=True)
class ImagenetTraining(ImageTraining):
    """ResNet-50 on images of size × size, of ImageNet or a part of it."""

    tasks: int = 100
    epochs: int | None = 100
    batch_size: int = 256
    classes_per_task: int = 10
    size: int = 224
    source: Literal["tiny-imagenet"] | None = None

    def quick(self, steps: int = 2, batch_size: int = 8) -> Self:
        return replace(super().quick(steps, batch_size), size=min(self.size, 64))


@dataclass(frozen=True, kw_only=True)
class UnnamedTraining(ImageTraining):
    """Tasks that nobody will name when images are asked about."""

    source: Literal["cifar100", "tiny-imagenet"]
    classes_per_task: int


@dataclass(frozen=True, kw_only=True)
class ScratchTraining(UnnamedTraining):
    """Masks over random weights: a ResNet-18 of these widths, and s of the budget."""

    epochs: int | None = 50
    widths: tuple[int, ...]
    budget: float = 24

    def quick(self, steps: int = 4, batch_size: int = 32) -> Self:
        return replace(super().quick(steps, batch_size), widths=tuple(width // 4 for width in self.widths))


@dataclass(frozen=True, kw_only=True)
class PretrainedTraining(UnnamedTraining):
    """Masks over the last blocks of a network that was trained on ImageNet; images are brought to size × size."""

    epochs: int | None = 12
    batch_size: int = 125
    net: Literal["efficientnet-lite0"] = "efficientnet-lite0"
    size: int = 224
    masks_from: int = 15

    def quick(self, steps: int = 2, batch_size: int = 16) -> Self:
        return replace(super().quick(steps, batch_size), size=64)


@dataclass(frozen=True, kw_only=True)
class OverheadTraining:
    """Random masks of so many tasks, and a batch of images of this shape."""

    net: Literal["resnet50"] = "resnet50"
    image: tuple[int, int, int] = (3, 224, 224)
    batch: int = 1
    tasks: int = 8
    precision: Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Budget:
    """s: a layer keeps s·(in + out) of its weights."""

    budget: float


@dataclass(frozen=True)
class CifarBaselineGrading:
    """Which bound a row shows; None for other baselines."""

    keep: Literal["upper", "lower"] | None = None


@dataclass(frozen=True)
class SplitCifarExperiment(_ShorterTraining):
    """SupSup on SplitCIFAR100."""

    kind: ClassVar[str] = "split-cifar100"
    training: CifarTraining
    own: Budget


@dataclass(frozen=True)
class SplitCifarBaselineExperiment(_ShorterTraining):
    """A baseline on SplitCIFAR100."""

    kind: ClassVar[str] = "split-cifar100-rivals"
    training: CifarBaselineTraining
    own: CifarBaselineGrading = field(default_factory=CifarBaselineGrading)


@dataclass(frozen=True)
class TransferSpeedExperiment(_ShorterTraining):
    """How much faster SupSup learns with transfer, on SplitCIFAR100."""

    kind: ClassVar[str] = "transfer-speed"
    training: TransferSpeedTraining
    own: NoSettings = field(default_factory=NoSettings)


@dataclass(frozen=True)
class SplitImagenetExperiment(_ShorterTraining):
    """SupSup on SplitImageNet."""

    kind: ClassVar[str] = "split-imagenet"
    training: ImagenetTraining
    own: Budget


@dataclass(frozen=True)
class ImagenetBoundsExperiment(_ShorterTraining):
    """Ordinary training of all weights of the network of SplitImageNet, task after task."""

    kind: ClassVar[str] = "split-imagenet-bounds"
    training: ImagenetTraining
    own: CifarBaselineGrading


@dataclass(frozen=True)
class ScratchUnnamedExperiment(_ShorterTraining):
    """Natural images of tasks that nobody names, found by a network that was never trained."""

    kind: ClassVar[str] = "unnamed-scratch"
    training: ScratchTraining
    own: NoSettings = field(default_factory=NoSettings)


@dataclass(frozen=True)
class PretrainedUnnamedExperiment(_ShorterTraining):
    """The same over a network that was trained on ImageNet."""

    kind: ClassVar[str] = "unnamed-pretrained"
    training: PretrainedTraining
    own: NoSettings = field(default_factory=NoSettings)


@dataclass(frozen=True)
class OverheadExperiment:
    """What a mask costs in a forward pass of ResNet-50."""

    kind: ClassVar[str] = "mask-overhead"
    training: OverheadTraining
    own: NoSettings = field(default_factory=NoSettings)

    def quick(self) -> Self:
        return replace(self, training=replace(self.training, image=(3, 64, 64)))


def _at_most(steps: int | None, most: int) -> int:
    return most if steps is None else min(steps, most)
