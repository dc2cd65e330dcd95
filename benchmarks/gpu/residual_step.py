"""A training step of residual networks: our kernels, CUDA graphs, the plain loop and the floor.

    PYTHONPATH=src python -m benchmarks residual_step [--out results/bench/residual-step-h200.json] [--limit 140]

Narrow ResNet-18 with each optimiser, ResNet-50 at 64 px as for SplitImageNet with 1 and 10 tasks, gradients against
those of autograd in float32, optimisers against torch's. Images are random. Several processes compile kernels first.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from torch.nn.functional import cross_entropy
from triton.runtime.jit import JITFunction

from supsup import data, nets
from supsup.data import Augmentation, Source, Stream
from supsup.kernels.graphs import repeat_in_graph
from supsup.masks.frozen import FrozenNet
from supsup.masks.scores import soft_mask
from supsup.training import SPLIT_CIFAR100, SPLIT_IMAGENET, Job, Recipe
from supsup.training.executors import Feed
from supsup.training.fast.captured import _capture_mask, _first_state, run_captured
from supsup_paper.bench.measurement import Machine, measure_machine, once, seconds
from supsup_paper.bench.training import plain_step, work_per_step
from supsup_paper.provenance import provenance
from supsup_paper.residual.executor import ResidualTrainer, bytes_of_training

ROOT = Path(__file__).resolve().parents[2]
_FEW = 16  # images, in float32
_STEPS = 400  # that a feed has batches for


@dataclass(frozen=True)
class Case:
    """A network, how it is trained, and the side of its images."""

    name: str
    build: Callable[[], nets.ResNet]
    recipe: Recipe
    side: int
    tasks: tuple[int, ...]
    beside: bool = False  # measured beside CUDA graphs and the plain way, too

    def stream(self) -> Stream:
        """Random images, ten tasks' worth or twenty, cropped and mirrored."""
        count = max(10, *self.tasks)
        classes = 5 if self.side == 32 else 10
        chance = torch.Generator().manual_seed(0)
        images = torch.randint(
            256, (count * classes * 30, 3, self.side, self.side), dtype=torch.uint8, generator=chance
        )
        labels = torch.arange(len(images)) % (count * classes)
        gain, offset = torch.full((3,), 1 / 64), torch.full((3,), -2.0)
        source = Source(
            "random", images, labels, images[:8], labels[:8], gain, offset, count * classes, Augmentation(4, flip=True)
        )
        return data.split(source, classes)

    def net(self, device: torch.device) -> FrozenNet:
        return FrozenNet(self.build(), 0, device)


def _narrow() -> nets.ResNet:
    return nets.gem_resnet18()


def _resnet50() -> nets.ResNet:
    return nets.ResNet(10, (3, 4, 6, 3), (64, 128, 256, 512), bottleneck=True, large_images=True)


def _resnet50_small_stem() -> nets.ResNet:
    return nets.ResNet(10, (3, 4, 6, 3), (64, 128, 256, 512), bottleneck=True)


_CIFAR = replace(SPLIT_CIFAR100, epochs=None, steps=_STEPS)
_IMAGENET = replace(SPLIT_IMAGENET, epochs=None, steps=_STEPS)
_ADAM = Case("narrow ResNet-18, Adam", _narrow, _CIFAR, 32, (20,))
_DEEP = Case("ResNet-50, Adam", _resnet50, _IMAGENET, 64, (1, 10), beside=True)
CASES = (
    _ADAM,
    replace(_ADAM, name="narrow ResNet-18, SGD", recipe=replace(_CIFAR, optimiser="sgd", momentum=0.9)),
    replace(_ADAM, name="narrow ResNet-18, RMSprop", recipe=replace(_CIFAR, optimiser="rmsprop")),
    _DEEP,
    Case("ResNet-50 with a 3×3 stem, Adam", _resnet50_small_stem, _IMAGENET, 64, (1,)),
)


def trainer_of(net: FrozenNet, jobs: list[Job], precision: torch.dtype = torch.bfloat16) -> ResidualTrainer:
    """A trainer of these jobs at their first scores."""
    recipe = jobs[0].recipe
    channels, height, width = jobs[0].task.train.shape
    kept = [[recipe.kept(shape) for shape in net.shapes.values()] for _ in jobs]
    image = (channels, height, width)
    trainer = ResidualTrainer(net, image, kept, recipe, recipe.batch_size, recipe.steps, precision)
    scores = [job.first_scores(net) for job in jobs]
    trainer.start({name: torch.stack([own[name] for own in scores]) for name in net.shapes})
    return trainer


class Measuring:
    """Rows so far, and the time that is left."""

    def __init__(self, limit: float, out: Path) -> None:
        self._begin, self._limit, self._out = time.perf_counter(), limit, out
        self.device = torch.device("cuda")
        self.record: dict[str, Any] = {"made by": provenance(self.device)}

    def left(self) -> float:
        return self._limit - (time.perf_counter() - self._begin)

    def part(self, name: str, work: Callable[[], Any], needed: float = 5.0) -> None:
        """One part of the record, unless time is short; what fails is printed, and the next part follows."""
        if self.left() < needed:
            print(f"-- {name}: no time left", flush=True)
            return
        begin = time.perf_counter()
        try:
            self.record[name] = work()
            print(f"-- {name}: {time.perf_counter() - begin:.1f} s\n{json.dumps(self.record[name])[:1500]}", flush=True)
        except Exception:
            traceback.print_exc()
        torch.cuda.empty_cache()
        self._out.parent.mkdir(parents=True, exist_ok=True)
        self._out.write_text(json.dumps(self.record, indent=1, ensure_ascii=False) + "\n")


def step_rows(case: Case, machine: Machine, device: torch.device) -> list[dict[str, Any]]:
    """Milliseconds of a step of one task, for each number of tasks."""
    stream, net = case.stream(), case.net(device)
    floor = machine.floor(*work_per_step(net, stream, case.recipe))
    rows = []
    for count in case.tasks:
        jobs = [Job(task, case.recipe) for task in stream[:count]]
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        trainer, feed = trainer_of(net, jobs), Feed.of(net, jobs, mapped=False)
        step = repeat_in_graph(partial(trainer.step_from, feed))
        trainer.step_count.zero_()
        each = seconds(partial(_repeat, step, 10), device, repeats=5) / 10 / count
        rows.append(
            {
                "case": case.name,
                "tasks": count,
                "ms per task-step": 1e3 * each,
                "floor ms": 1e3 * floor,
                "times the floor": each / floor,
                "GB per task": (torch.cuda.max_memory_allocated() - before) / count / 1e9,
                "GB per task, estimated": bytes_of_training(net.module, jobs[0].task.train, jobs[0].recipe) / 1e9,
            }
        )
        del trainer, step, feed
        torch.cuda.empty_cache()
    return rows


def beside_rows(case: Case, device: torch.device, left: Callable[[], float]) -> dict[str, float]:
    """The same the plain way, and with CUDA graphs of any module."""
    stream, net = case.stream(), case.net(device)
    found = {"plain, 1 task": 1e3 * plain_step(net, stream, case.recipe, steps=5)}
    recipe = replace(case.recipe, steps=20)
    for count in case.tasks:
        if left() < 12 + 2 * count:
            break
        jobs = [Job(task, recipe) for task in stream[:count]]
        lanes = [_capture_mask(net, job, None) for job in jobs]
        for lane, job in zip(lanes, jobs):
            lane.start(_first_state(net, job), job.task)
        found[f"captured, {count} tasks"] = 1e3 * once(partial(run_captured, lanes), device) / 20 / count
        del lanes
        torch.cuda.empty_cache()
    return found


def gradient_errors(
    case: Case, device: torch.device, batch: int = 64, precision: torch.dtype = torch.bfloat16
) -> dict[str, Any]:
    """How far gradients are from those of autograd in float32: ours and autocast's, as a share, at the worst layers.

    In bfloat16 those of a deep network that has learned nothing are noise below its last layers, autocast's like ours;
    float32 shows whether they are right.
    """
    torch.backends.cudnn.allow_tf32 = False
    net, stream = case.net(device), case.stream()
    jobs = [Job(task, replace(case.recipe, batch_size=batch)) for task in stream[:2]]
    trainer, feed = trainer_of(net, jobs, precision), Feed.of(net, jobs, mapped=False)
    step = trainer.step
    trainer.step = lambda: None  # type: ignore[method-assign]
    trainer.step_from(feed)
    trainer.step = step  # type: ignore[method-assign]
    trainer.differentiate()
    border = (trainer.passes.x.shape[2] - case.side) // 2
    x = trainer.passes.x[1, :, border : border + case.side, border : border + case.side, :3].permute(0, 3, 1, 2).float()
    scores = jobs[1].first_scores(net)

    def gradients(reduced: bool) -> dict[str, Tensor]:
        masks = {name: soft_mask(value, case.recipe.kept(value.shape)) for name, value in scores.items()}
        weights = {name: weight.requires_grad_() for name, weight in net.masked(masks).items()}
        statistics = {name: value.clone() for name, value in net.statistics.items()}
        with net.training() as module, torch.autocast("cuda", torch.bfloat16, reduced):
            loss = cross_entropy(net.run(x, weights | statistics, module).float(), trainer.passes.y[1].long())
        return dict(zip(weights, torch.autograd.grad(loss, list(weights.values()))))

    right, autocast = gradients(False), gradients(True)
    errors = {}
    for layer in trainer.layers:
        span = slice(layer.gradient_first, layer.gradient_first + layer.splits * layer.weights)
        found = layer.from_flat(trainer.gradients[1, span].view(layer.splits, layer.weights).sum(0)[None])[0]
        size = right[layer.name].norm()
        ours, theirs = found - right[layer.name], autocast[layer.name].float() - right[layer.name]
        errors[layer.name] = (float(ours.norm() / size), float(theirs.norm() / size))
    ratios = sorted(errors, key=lambda name: errors[name][0] / errors[name][1])
    return {
        "layers": len(errors),
        "median, ours and autocast": [sorted(each)[len(errors) // 2] for each in zip(*errors.values())],
        "worst against autocast": {name: errors[name] for name in ratios[-4:]},
        "last layers": {name: errors[name] for name in list(errors)[-4:]},
    }


def update_errors(device: torch.device, case: Case = _ADAM) -> dict[str, float]:
    """How far scores are after three steps from those of torch's optimisers, as a share of how far they went."""
    found = {}
    for kind in ({"optimiser": "adam"}, {"optimiser": "rmsprop"}, {"optimiser": "sgd"}, {"momentum": 0.9}):
        for selection in ({}, {"selection": "edge-popup", "budget": 8.0}):
            settings: dict[str, Any] = {"optimiser": "sgd", **kind, **selection}
            recipe = Recipe(**settings, learning_rate=0.1, steps=4, weight_decay=0.1, schedule="cosine", batch_size=4)
            net, job = case.net(device), Job(case.stream()[0], recipe)
            trainer = trainer_of(net, [job])
            scores = {name: value.clone().requires_grad_() for name, value in job.first_scores(net).items()}
            optimiser = recipe.build(scores.values())
            for step in range(3):
                for layer in trainer.layers:
                    gradient = torch.randn(net.shapes[layer.name], device=device)
                    span = slice(layer.gradient_first, layer.gradient_first + layer.splits * layer.weights)
                    shares = layer.to_flat(gradient[None])[:, : layer.weights].expand(layer.splits, -1) / layer.splits
                    trainer.gradients[0, span] = shares.flatten()
                    own = scores[layer.name]
                    masked = net.weights[layer.name] * soft_mask(own, recipe.kept(own.shape))
                    (own.grad,) = torch.autograd.grad(masked, own, gradient)
                optimiser.param_groups[0]["lr"] = recipe.rate(step, 4)
                optimiser.step()
                trainer._update()
                trainer.step_count += 1
            first, ended = job.first_scores(net), trainer.final_scores()
            off = sum(float((ended[name][0] - scores[name].detach()).square().sum()) for name in scores)
            went = sum(float((first[name] - scores[name].detach()).square().sum()) for name in scores)
            found[", ".join(str(value) for value in settings.values())] = (off / went) ** 0.5
    return found


def profile(case: Case, device: torch.device) -> dict[str, float]:
    """Milliseconds that each kernel takes in a step of as many tasks as the case has at most, per task."""
    net, stream = case.net(device), case.stream()
    jobs = [Job(task, case.recipe) for task in stream[: case.tasks[-1]]]
    trainer, feed = trainer_of(net, jobs), Feed.of(net, jobs, mapped=False)
    trainer.step_from(feed)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        trainer.step_from(feed)
        torch.cuda.synchronize()
    spent: dict[str, float] = defaultdict(float)
    for event in found.events():
        if "CUDA" in str(event.device_type):
            spent[event.name[:50]] += event.time_range.elapsed_us() / 1e3 / len(jobs)
    return dict(sorted(spent.items(), key=lambda item: -item[1])[:14])


def _repeat(work: Callable[[], object], times: int) -> None:
    for _ in range(times):
        work()


def compile_share(number: int, count: int) -> None:
    """Compile one share of the kernels, into Triton's cache on disk: launches of all others are left out."""
    launch = JITFunction.run

    def mine(self: Any, *args: Any, **given: Any) -> Any:
        kinds = [str(arg.dtype) if isinstance(arg, Tensor) else arg == 1 for arg in args]
        settings = sorted((key, str(value)) for key, value in given.items() if key not in ("grid", "warmup"))
        key = hashlib.sha256(repr((str(self), kinds, settings)).encode()).digest()
        needed = "philox" in str(self)  # batches are drawn from its numbers
        return launch(self, *args, **given) if needed or key[0] % count == number else None

    JITFunction.run = mine
    device = torch.device("cuda")
    for case in CASES:
        net, stream = case.net(device), case.stream()
        batch = 32 if case is CASES[-1] else case.recipe.batch_size  # its activations would not fit so many times
        jobs = [Job(task, replace(case.recipe, batch_size=batch)) for task in stream[:1]]
        trainer = trainer_of(net, jobs)
        trainer.step_from(Feed.of(net, jobs, mapped=False))
        del trainer
        torch.cuda.empty_cache()
    gradient_errors(_DEEP, device, _FEW, torch.float32)


def compiled(processes: int, limit: float) -> dict[str, Any]:
    """Compile all kernels in several processes."""
    begin = time.perf_counter()
    command = [sys.executable, str(Path(__file__).resolve()), "--processes", str(processes), "--share"]
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for number in range(processes):
            with (Path(folder) / str(number)).open("w") as log:
                running.append(subprocess.Popen([*command, str(number)], stdout=log, stderr=log))
        ended = []
        for number, process in enumerate(running):
            try:
                ended.append(process.wait(max(1.0, limit - (time.perf_counter() - begin))))
            except subprocess.TimeoutExpired:
                process.kill()
                ended.append(process.wait())
            if ended[-1]:
                print((Path(folder) / str(number)).read_text()[-700:], flush=True)
    return {"processes": processes, "seconds": time.perf_counter() - begin, "exit codes": ended}


def main(
    out: Annotated[Path, typer.Option(help="Where the figures go.")] = ROOT / "results/bench/residual-step-h200.json",
    limit: Annotated[float, typer.Option(help="Seconds after which no part begins.")] = 140.0,
    processes: Annotated[int, typer.Option(help="That compile kernels.")] = max(1, min(12, (os.cpu_count() or 2) - 2)),
    share: Annotated[int | None, typer.Option(help="Only compile this share of the kernels.")] = None,
) -> None:
    if share is not None:
        torch.set_num_threads(1)
        compile_share(share, processes)
        return
    measuring = Measuring(limit, out)
    device, deep = measuring.device, _DEEP
    measuring.part("compiled", partial(compiled, processes, limit / 2))
    measuring.part("gradients in bfloat16", partial(gradient_errors, deep, device))
    measuring.part("updates", partial(update_errors, device))
    measuring.part("machine", lambda: vars(measure_machine(device)))
    for case in CASES:
        measuring.part(case.name, lambda: step_rows(case, Machine(**measuring.record["machine"]), device), 12)  # noqa: B023
    measuring.part("beside ResNet-50, ms per task-step", partial(beside_rows, deep, device, measuring.left), 20)
    measuring.part("profile of ResNet-50", partial(profile, deep, device), 12)
    for row in (row for case in CASES for row in measuring.record.get(case.name, ())):
        shown = (f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values())
        print("; ".join(f"{key} {value}" for key, value in zip(row, shown)))
    for name in ("updates", "profile of ResNet-50", "beside ResNet-50, ms per task-step"):
        print(name, json.dumps(measuring.record.get(name), ensure_ascii=False))
    measuring.part("gradients in float32", partial(gradient_errors, deep, device, _FEW, torch.float32), 15)


if __name__ == "__main__":
    typer.run(main)
