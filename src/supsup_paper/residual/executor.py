"""Training many tasks of a residual network in step on one GPU: one CUDA graph for each step.

Optimiser and selection are computed by hand. Scores and moments of the optimiser are in float32. Like the weights of
all layers they lie end to end, so that update and selection are one launch each for the whole network.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from supsup.data import Part
from supsup.kernels.graphs import repeat_in_graph
from supsup.masks.bank import pack_columns
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import hard_mask
from supsup.nets.resnet import ResNet
from supsup.runtime.progress import Advance
from supsup.training.executors import Feed, Job, Trained, alike, can_feed, count_fitting, free_memory, grouped
from supsup.training.fast.batched import LayerState, loss_gradient, run_steps
from supsup.training.recipe import Recipe
from supsup_paper.residual import flat_kernels as k
from supsup_paper.residual.blocks import unmodified_blocks
from supsup_paper.residual.layers import BLOCK, layout_of
from supsup_paper.residual.passes import Passes

TOGETHER = 120  # tasks at once at most: more are not faster, and an interruption loses them
_NUMBERED = 1 << 31  # numbers that kernels can address within one tensor of one task
_CHUNK = 4096  # scores in one program of the selection
_PASSES = 6  # of the selection, which find the 31 bits of a score from the highest on


class ResidualOnGPU:
    """Residual networks of basic blocks or bottlenecks; jobs that go together may keep different numbers of weights."""

    name = "residual on a GPU"

    def takes(self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None) -> bool:
        return (
            net.device.type == "cuda"
            and precision in (None, torch.bfloat16, torch.float32)
            and knows(net, jobs)
            and all(feeds(job.task.train) and addressable(net.module, job.task.train, job.recipe) for job in jobs)
        )

    def tasks_at_once(self, net: FrozenNet, job: Job, precision: torch.dtype | None) -> int:
        each = bytes_of_training(net.module, job.task.train, job.recipe, precision)
        return count_fitting(each, free_memory(net.device), TOGETHER)

    def train(
        self, net: FrozenNet, jobs: Sequence[Job], precision: torch.dtype | None, advance: Advance
    ) -> Generator[Trained, None, None]:
        for group in grouped(jobs, alike, lambda job: self.tasks_at_once(net, job, precision)):
            recipe, steps, tasks = group[0].recipe, group[0].steps, [job.task for job in group]
            channels, height, width = tasks[0].train.shape
            kept = [[job.recipe.kept(shape) for shape in net.shapes.values()] for job in group]
            trainer = ResidualTrainer(
                net, (channels, height, width), kept, recipe, recipe.batch_size, steps, precision or torch.bfloat16
            )
            feed = Feed.of(net, group, mapped=False)  # the graph reads it, and does not keep it
            step = repeat_in_graph(partial(trainer.step_from, feed))
            first = [job.first_scores(net) for job in group]
            trainer.start({name: torch.stack([scores[name] for scores in first]) for name in net.shapes})
            for _, done in run_steps(step, steps):
                advance(len(group) * done / steps)
            del feed, step, first
            trained = Trained(tasks, pack_columns(trainer.masks()), trainer.statistics(), trainer.final_scores())
            del trainer
            yield trained


def knows(net: FrozenNet, jobs: Sequence[Job]) -> bool:
    """Whether the kernels know the network's forward pass and the jobs' recipes, which may differ in budget only."""

    def but_for_budget(recipe: Recipe) -> tuple[str, Recipe]:
        return recipe.selection, replace(recipe, selection="threshold", budget=None, density=None)

    is_residual = not net.head and unmodified_blocks(net.module) is not None
    return is_residual and len({but_for_budget(job.recipe) for job in jobs}) == 1


def feeds(part: Part) -> bool:
    """Whether these images can be fed to the kernels."""
    return can_feed(part) and part.images.dtype == torch.uint8 and part.images.ndim == 4 and part.pixels is None


def addressable(module: nn.Module, part: Part, recipe: Recipe) -> bool:
    """Whether kernels can number all activations of any layer of one task."""
    return max(_activations(module, part, recipe.batch_size, border=1)) < _NUMBERED


def bytes_of_training(module: nn.Module, part: Part, recipe: Recipe, precision: torch.dtype | None = None) -> int:
    """Roughly what one task takes on the device: activations, slopes, scores, their moments, the order of batches."""
    values = _activations(module, part, recipe.batch_size)
    weights = sum(weight.numel() for weight in module.parameters())
    width = (precision or torch.bfloat16).itemsize
    drawn = recipe.steps_for(len(part)) * recipe.batch_size
    return width * (5 * sum(values) + 6 * max(values)) + 48 * weights + 12 * drawn


def _activations(module: nn.Module, part: Part, batch: int, border: int = 0) -> list[int]:
    """How many numbers come out of each convolution in one step of one task, with a border."""
    assert isinstance(module, ResNet)
    _, height, width = part.shape
    layers = [each.layer for each in layout_of(module, height, width, batch).convolutions]
    around = 2 * border
    return [batch * (layer.out_height + around) * (layer.out_width + around) * layer.padded[1] for layer in layers]


class ResidualTrainer:
    """Scores of t tasks and their optimiser state, and one training step for all of them.

    kept  for each task the number of weights kept of each tensor, None where a threshold decides
    """

    def __init__(
        self,
        net: FrozenNet,
        image: tuple[int, int, int],
        kept: Sequence[Sequence[int | None]],
        recipe: Recipe,
        batch_size: int,
        steps: int,
        precision: torch.dtype = torch.bfloat16,
    ) -> None:
        assert isinstance(net.module, ResNet)
        self.net, self.recipe, self.kept, self.tasks = net, recipe, kept, len(kept)
        self.passes = Passes(net.module, image, self.tasks, batch_size, precision, net.device)
        self.layers, self.masked, self.gradients = self.passes.layers, self.passes.weights, self.passes.gradients
        self._tables(net.device)
        weight = torch.cat([layer.to_flat(net.weights[layer.name][None])[0] for layer in self.layers])
        self.weight, self.scores, _, self.first, self.second = LayerState.empty(weight, self.masked, recipe)
        self.step_count = torch.zeros(1, dtype=torch.int32, device=net.device)
        self.factors = _factors(recipe, steps).to(net.device)

    def _tables(self, device: torch.device) -> None:
        """Tables that the selection needs for each chunk and layer."""

        def table(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        chunks = [(i, start, each) for i, each in enumerate(self.layers) for start in range(0, each.weights, _CHUNK)]
        spans = [(i, layer.first + start, layer.first + layer.weights) for i, start, layer in chunks]
        self._chunks = [table(values) for values in zip(*spans)]  # layer, start and stop of each
        self._selects = self.kept[0][0] is not None
        self._keep = torch.tensor([[n or 1 for n in task] for task in self.kept], dtype=torch.int32, device=device)
        self._least = torch.zeros_like(self._keep)
        self._counts = torch.zeros(self.tasks, len(self.layers), _PASSES, 64, dtype=torch.int32, device=device)

    def start(self, scores: Mapping[str, Tensor]) -> None:
        """Start from scores [t, …] of each weight."""
        for layer in self.layers:
            span = slice(layer.first, layer.first + layer.blocks * BLOCK)
            self.scores[:, span] = layer.to_flat(scores[layer.name].float())
        for value in (self.first, self.second, self.step_count):
            if value is not None:
                value.zero_()
        for name, statistic in self.passes.statistics.items():
            statistic[:] = self.net.statistics[name]
        self._select()

    def step_from(self, feed: Feed) -> None:
        """One step on the feed's next batch."""
        self.passes.gather(feed, self.step_count)
        self.step()

    def step(self) -> None:
        """One optimiser step on the batch in x and y of the passes."""
        self.differentiate()
        self._update()
        self._select()
        self.step_count += 1

    def differentiate(self) -> None:
        """The gradients of the masked weights on that batch."""
        trace = self.passes.forward()
        loss_gradient(trace.outputs, self.passes.y, self.passes.outputs)
        self.passes.backward(trace, trace.outputs)

    def _update(self) -> None:
        tables = self.passes.tables
        k._update_flat[(len(tables.layer_of), self.tasks)](
            self.weight,
            self.scores,
            self.scores if self.first is None else self.first,
            self.scores if self.second is None else self.second,
            self.gradients,
            *tables,
            self.factors,
            self.step_count,
            self.recipe.weight_decay,
            self.recipe.momentum,
            self.scores.shape[1],
            self.gradients.shape[1],
            optimiser=self.recipe.optimiser,
            has_first=self.first is not None,
            signed=self._selects,
            first_decay=self.recipe.first_decay,
            second_decay=self.recipe.rule.second_decay,
            epsilon=self.recipe.epsilon,
            block=BLOCK,
        )

    def _select(self) -> None:
        """Masked weights from the scores: in each layer the k-th largest is found bit by bit, without sorting."""
        layers = len(self.layers)
        if self._selects:
            self._counts.zero_()
            for number in range(_PASSES):
                k._count[(len(self._chunks[0]), self.tasks)](
                    self.scores,
                    self._keep,
                    self._counts,
                    *self._chunks,
                    self.scores.shape[1],
                    layers,
                    number=number,
                    block=_CHUNK,
                )
            k._least[(layers, self.tasks)](self._keep, self._counts, self._least, layers)
        layer_of = self.passes.tables.layer_of
        k._mask[(len(layer_of), self.tasks)](
            self.weight,
            self.scores,
            self.masked,
            self._least,
            layer_of,
            self.scores.shape[1],
            layers,
            signed=self._selects,
            block=BLOCK,
        )

    def final_scores(self) -> dict[str, Tensor]:
        """The scores as they stand, [t, …] by weight, in the network's order."""
        flat = {layer.name: layer.from_flat(self.scores[:, layer.first :]) for layer in self.layers}
        return {name: flat[name] for name in self.net.shapes}

    def masks(self) -> dict[str, Tensor]:
        """The masks as they stand, exactly as many weights as are to be kept: booleans [t, …] by weight."""
        keep = {layer.name: [task[i] for task in self.kept] for i, layer in enumerate(self.layers)}
        return {
            name: torch.stack([hard_mask(task, count) for task, count in zip(values, keep[name])])
            for name, values in self.final_scores().items()
        }

    def statistics(self) -> dict[str, Tensor]:
        """The running moments of all tasks, [t, channels] by name."""
        return {name: statistic.clone() for name, statistic in self.passes.statistics.items()}


def _factors(recipe: Recipe, steps: int) -> Tensor:
    """For each step the rate and, for Adam, its corrections of the moments: [steps, 2].

    That is the rate over the first moment's, and one over the root of the second's.
    """
    adam = recipe.optimiser == "adam"
    first, second = (recipe.first_decay, recipe.rule.second_decay) if adam else (0.0, 0.0)
    rows = [
        (recipe.rate(step, steps) / (1 - first ** (step + 1)), (1 - second ** (step + 1)) ** -0.5)
        for step in range(steps)
    ]
    return torch.tensor([*rows, rows[-1]], dtype=torch.float32)
