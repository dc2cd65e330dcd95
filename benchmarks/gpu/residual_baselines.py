"""A training step of the baselines on residual networks: our kernels and CUDA graphs.

    PYTHONPATH=src python -m benchmarks residual_baselines [--out results/bench/residual-rivals-h200.json] [--limit 140]

Upper Bound with one state and three (so many seeds), BatchE and Separate Heads beside random weights with 20 tasks, all
on the narrow ResNet-18 at 32 px, and Upper Bound on ResNet-50 at 64 px. Images are random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from benchmarks.gpu.residual_step import ROOT, Case, Measuring, compiled
from supsup import nets
from supsup.data import Stream
from supsup.training import Recipe
from supsup.training.fast.captured import CapturedTraining, run_captured
from supsup_paper.baselines import Baseline, BatchE, SeparateHeads, UpperBound
from supsup_paper.baselines.training import started
from supsup_paper.bench.measurement import once, seconds
from supsup_paper.catalogue import recipes
from supsup_paper.residual.executor import bytes_of_training

_STEPS = 400  # that a feed has batches for
_CAPTURED = 20  # steps of the module itself
_STREAMS = 10  # tasks at once that way, as baselines are trained

Make = Callable[[nn.Module, Recipe, torch.device], Baseline]


def _upper(net: nn.Module, recipe: Recipe, device: torch.device) -> Baseline:
    return UpperBound(net, recipe=recipe, filling=recipes.CIFAR_FILLING, device=device)


def _batche(net: nn.Module, recipe: Recipe, device: torch.device) -> Baseline:
    return BatchE(net, base="random", recipe=recipe, filling=recipes.CIFAR_FILLING, device=device)


def _heads(net: nn.Module, recipe: Recipe, device: torch.device) -> Baseline:
    return SeparateHeads(net, trunk="random", recipe=recipe, filling=recipes.CIFAR_FILLING, device=device)


def _resnet50() -> nets.ResNet:
    return nets.ResNet(10, (3, 4, 6, 3), (64, 128, 256, 512), bottleneck=True, large_images=True)


@dataclass(frozen=True)
class BaselineCase:
    """A baseline on a case's network and images, with the case's numbers of tasks at once."""

    make: Make
    case: Case

    def baseline(self, device: torch.device, steps: int = _STEPS) -> Baseline:
        return self.make(self.case.build(), replace(self.case.recipe, steps=steps), device)


_NARROW = Case("Upper Bound, narrow ResNet-18", nets.gem_resnet18, recipes.CIFAR_BASELINES, 32, (1, 3))
_DEEP = replace(recipes.IMAGENET_BOUNDS, epochs=None)
CASES = (
    BaselineCase(_upper, _NARROW),
    BaselineCase(_batche, replace(_NARROW, name="BatchE beside random weights, narrow ResNet-18", tasks=(20,))),
    BaselineCase(_heads, replace(_NARROW, name="heads over a random trunk, narrow ResNet-18", tasks=(20,))),
    BaselineCase(_upper, Case("Upper Bound, ResNet-50", _resnet50, _DEEP, 64, (1,))),
)


def step_rows(each: BaselineCase, device: torch.device, launches: int = 3, repeats: int = 5) -> list[dict[str, Any]]:
    """Milliseconds of a step of one task, for each number of tasks at once."""
    stream, rows = each.case.stream(), []
    for count in each.case.tasks:
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        before = _taken(device)
        stack = started(each.baseline(device), stream[:count])
        steps = launches * stack.steps // stack.launches

        def launch(launches: int = launches, once: Callable[[], None] = stack.launch) -> None:
            for _ in range(launches):
                once()

        took = seconds(launch, device, repeats) / steps
        memory = _taken(device) - before
        part, recipe = stream[0].train, stack.recipe
        rows.append(
            {
                "case": each.case.name,
                "tasks": count,
                "ms per step": 1e3 * took,
                "ms per task-step": 1e3 * took / count,
                "captured, ms per task-step": 1e3 * captured_step(each, stream, min(count, _STREAMS), device),
                "GB per task": memory / count / 1e9,
                "GB per task, estimated": bytes_of_training(stack.baseline.net, part, recipe) / 1e9,
            }
        )
        del stack, launch
    return rows


def captured_step(each: BaselineCase, stream: Stream, count: int, device: torch.device) -> float:
    """Seconds of a step of one task of the module itself, so many tasks on streams of their own."""
    baseline = each.baseline(device, _CAPTURED)
    lanes = []
    for task in stream[:count]:
        state = baseline.begin(task)
        lane = CapturedTraining(baseline, state, baseline.recipe_of_next(), task.train)
        lane.start(state, task)
        lanes.append(lane)
    return once(partial(run_captured, lanes), device) / _CAPTURED / count


def _taken(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else 0


def main(
    out: Annotated[Path, typer.Option(help="Where the figures go.")] = ROOT / "results/bench/residual-rivals-h200.json",
    limit: Annotated[float, typer.Option(help="Seconds after which no part begins.")] = 140.0,
    processes: Annotated[int, typer.Option(help="That compile kernels before; 0: none.")] = 12,
) -> None:
    measuring = Measuring(limit, out)
    torch.backends.cudnn.benchmark = True
    if processes:
        measuring.part("compiled", partial(compiled, processes, limit / 2))
    for each in CASES:
        measuring.part(each.case.name, partial(step_rows, each, measuring.device), 12)
    for row in (row for each in CASES for row in measuring.record.get(each.case.name, ())):
        shown = (f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values())
        print("; ".join(f"{key} {value}" for key, value in zip(row, shown)))


if __name__ == "__main__":
    typer.run(main)
