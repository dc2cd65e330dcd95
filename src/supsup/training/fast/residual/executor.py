"""Training many tasks of a residual network on one GPU: which go together, and one CUDA graph for each step."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial

import torch
from torch import nn

from supsup.data import Part
from supsup.kernels.graphs import repeated
from supsup.masks.bank import pack_columns
from supsup.masks.frozen import FrozenNet
from supsup.nets.resnet import ResNet
from supsup.runtime.progress import Advance
from supsup.training.batches import Feed, fits
from supsup.training.fast.residual.network import network_of
from supsup.training.fast.residual.trainer import ResidualTrainer
from supsup.training.jobs import Job, Trained, free_memory, groups, same_but_for_budget
from supsup.training.recipe import Recipe

TOGETHER = 120  # tasks at most: more do not go faster, and an interruption loses those under way
_NUMBERED = 1 << 31  # numbers that kernels can tell apart within one tensor of one task
_REPORTED = 50  # steps between two looks at the clock


class Residual:
    """Residual networks of basic blocks or bottlenecks; jobs that go together may keep different numbers of weights."""

    name = "residual on a GPU"

    def takes(self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None) -> bool:
        return (
            net.device.type == "cuda"
            and precision in (None, torch.bfloat16, torch.float32)
            and by_hand(net, jobs)
            and all(feeds(job.task.train) and addressable(net.module, job.task.train, job.recipe) for job in jobs)
        )

    def train(
        self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None, advance: Advance
    ) -> Generator[Trained, None, None]:
        for group in groups(
            jobs, alike, lambda job: bytes_per_task(net, job, precision), free_memory(net.device), TOGETHER
        ):
            trainer = train_together(net, group, precision, advance)
            tasks = [job.task for job in group]
            trained = Trained(tasks, pack_columns(trainer.masks()), trainer.statistics(), trainer.final_scores())
            del trainer
            yield trained


def by_hand(net: FrozenNet, jobs: Sequence[Job]) -> bool:
    """Whether the kernels know the network's forward pass and the recipes of all jobs."""
    recipe = jobs[0].recipe
    same = all(same_but_for_budget(recipe, job.recipe) for job in jobs)
    return net.is_residual and same


def feeds(part: Part) -> bool:
    """Whether these images can be fed to the kernels."""
    return fits(part) and part.images.dtype == torch.uint8 and part.images.ndim == 4 and part.pixels is None


def alike(one: Job, other: Job) -> bool:
    """Whether two jobs share images and length, so that they can go in step."""
    first, second = one.task.train, other.task.train
    same = first.images is second.images and first.augmentation == second.augmentation
    return same and len(first) == len(second)


def train_together(
    net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None = None, advance: Advance = lambda _: None
) -> ResidualTrainer:
    """The trainer of these jobs, which are alike, when it is done."""
    recipe, steps = jobs[0].recipe, jobs[0].steps
    channels, height, width = jobs[0].task.train.shape
    kept = [[job.recipe.kept(shape) for shape in net.shapes.values()] for job in jobs]
    trainer = ResidualTrainer(
        net, (channels, height, width), kept, recipe, recipe.batch_size, steps, precision or torch.bfloat16
    )
    feed = feed_of(net, jobs)
    step = repeated(partial(trainer.step_from, feed))
    scores = [job.first_scores(net) for job in jobs]
    trainer.start({name: torch.stack([own[name] for own in scores]) for name in net.shapes})
    for count in range(1, steps + 1):
        step()
        if count % _REPORTED == 0 or count == steps:
            torch.cuda.synchronize()
            advance(len(jobs) * ((count - 1) % _REPORTED + 1) / steps)
    return trainer


def feed_of(net: FrozenNet, jobs: Sequence[Job]) -> Feed:
    """The batches of jobs that are alike."""
    batch_size = jobs[0].recipe.batch_size
    feed = Feed.empty(jobs[0].task.train.on(net.device), len(jobs), jobs[0].steps * batch_size, mapped=False)
    feed.fill([job.task for job in jobs], net.seed, batch_size)
    return feed


def addressable(module: nn.Module, part: Part, recipe: Recipe) -> bool:
    """Whether kernels can number all activations of any layer of one task."""
    return max(_activations(module, part, recipe.batch_size, border=1)) < _NUMBERED


def bytes_per_task(net: FrozenNet, job: Job, precision: torch.dtype | None = None) -> int:
    """What training one task takes on the device, about."""
    return bytes_of_training(net.module, job.task.train, job.recipe, precision)


def bytes_of_training(module: nn.Module, part: Part, recipe: Recipe, precision: torch.dtype | None = None) -> int:
    """The same for any module: activations and slopes, what is trained and its moments, the order of the batches."""
    values = _activations(module, part, recipe.batch_size)
    weights = sum(weight.numel() for weight in module.parameters())
    width = (precision or torch.bfloat16).itemsize
    drawn = recipe.steps_for(len(part)) * recipe.batch_size
    return width * (5 * sum(values) + 6 * max(values)) + 48 * weights + 12 * drawn


def _activations(module: nn.Module, part: Part, batch: int, border: int = 0) -> list[int]:
    """How many numbers come out of each convolution in one step of one task, with a border."""
    assert isinstance(module, ResNet)
    _, height, width = part.shape
    layers = [each.layer for each in network_of(module, height, width, batch).convolutions]
    around = 2 * border
    return [batch * (layer.out_height + around) * (layer.out_width + around) * layer.padded[1] for layer in layers]
