"""The kinds of experiment on natural images.

SplitCIFAR100 and SplitImageNet, tasks that nobody names, and the cost of a mask in ResNet-50.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

from supsup.training.recipe import Transfer
from supsup_paper.experiments import NoSettings

CifarRival = Literal["batche", "batche-random-rank-one", "batche-random-heads", "heads", "heads-random", "bounds"]


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
class CifarRivalTraining(ImageTraining):
    """One of the rivals."""

    method: CifarRival


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
    """Images of size × size, of ImageNet or a part of it, and a ResNet-50 with the usual stem or a small one."""

    tasks: int = 100
    epochs: int | None = 100
    batch_size: int = 256
    classes_per_task: int = 10
    size: int = 224
    source: Literal["tiny-imagenet"] | None = None
    stem: Literal["3×3"] | None = None

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
    """Masks over weights that were trained on ImageNet; images are brought to size × size."""

    epochs: int | None = 12
    batch_size: int = 125
    net: Literal["efficientnet-lite0"] = "efficientnet-lite0"
    size: int = 192

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
class CifarRivalGrading:
    """Which bound a row shows; None for other rivals."""

    keep: Literal["upper", "lower"] | None = None


@dataclass(frozen=True)
class SplitCifarExperiment:
    """SupSup on SplitCIFAR100."""

    kind: ClassVar[str] = "split-cifar100"
    training: CifarTraining
    own: Budget

    def quick(self) -> Self:
        return replace(self, training=self.training.quick())


@dataclass(frozen=True)
class SplitCifarRivalExperiment:
    """A rival on SplitCIFAR100."""

    kind: ClassVar[str] = "split-cifar100-rivals"
    training: CifarRivalTraining
    own: CifarRivalGrading = field(default_factory=CifarRivalGrading)

    def quick(self) -> Self:
        return replace(self, training=self.training.quick())


@dataclass(frozen=True)
class TransferSpeedExperiment:
    """How much faster SupSup learns with transfer, on SplitCIFAR100."""

    kind: ClassVar[str] = "transfer-speed"
    training: TransferSpeedTraining
    own: NoSettings = field(default_factory=NoSettings)

    def quick(self) -> Self:
        return replace(self, training=self.training.quick())


@dataclass(frozen=True)
class SplitImagenetExperiment:
    """SupSup on SplitImageNet."""

    kind: ClassVar[str] = "split-imagenet"
    training: ImagenetTraining
    own: Budget

    def quick(self) -> Self:
        return replace(self, training=self.training.quick())


@dataclass(frozen=True)
class ImagenetBoundsExperiment:
    """Ordinary training of all weights of the network of SplitImageNet, task after task."""

    kind: ClassVar[str] = "split-imagenet-bounds"
    training: ImagenetTraining
    own: CifarRivalGrading

    def quick(self) -> Self:
        return replace(self, training=self.training.quick())


@dataclass(frozen=True)
class ScratchUnnamedExperiment:
    """Natural images of tasks that nobody names, found by a network that was never trained."""

    kind: ClassVar[str] = "unnamed-scratch"
    training: ScratchTraining
    own: NoSettings = field(default_factory=NoSettings)

    def quick(self) -> Self:
        return replace(self, training=self.training.quick())


@dataclass(frozen=True)
class PretrainedUnnamedExperiment:
    """The same over a network that was trained on ImageNet."""

    kind: ClassVar[str] = "unnamed-pretrained"
    training: PretrainedTraining
    own: NoSettings = field(default_factory=NoSettings)

    def quick(self) -> Self:
        return replace(self, training=self.training.quick())


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
