"""The rivals on MNIST at full scale, each beside its published figure: one file per row; finished rows are skipped.

python benchmarks/rivals_mnist.py --what psp,batche,lower,upper --net lenet_300_100 --tasks 250 --json results/rivals
python benchmarks/rivals_mnist.py --what batche-inference,abatche --net fc_1024 --tasks 250 --json results/rivals
python benchmarks/rivals_mnist.py --what rotated,ewc,si --json results/rivals             (SUPSUP_DATA holds mnist/)
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rows import Curves, Published, finished, write_row

from supsup import Recipe, SupSupError, data, evaluate, nets, progress
from supsup.baselines import PSP, SI, BatchE, OnlineEWC, TaskInference, UpperBound, learn_side_by_side
from supsup.baselines.contexts import Kind
from supsup.baselines.initial import FILLINGS
from supsup.baselines.rival import Method
from supsup.data import Source, Stream
from supsup.devices import resolve

NETS = {"lenet_300_100": nets.lenet_300_100, "fc_1024": nets.fc_1024}
STAGES = (10, 50, 100, 150, 200, 250)
_PUBLISHED: dict[tuple[str, str], dict[str, tuple[float, ...]]] = {
    ("psp", "lenet_300_100"): {"accuracy": (94.80, 83.58, 64.62, 51.18, 42.69, 36.74)},
    ("batche", "lenet_300_100"): {"accuracy": (88.85, 88.33, 88.23, 88.23, 88.22, 88.21)},
    ("lower", "lenet_300_100"): {"accuracy": (71.67, 41.82, 30.52, 26.40, 23.31, 20.88)},
    ("upper", "lenet_300_100"): {"accuracy": (94.94, 95.01, 94.99, 94.95, 94.91, 94.86)},
    ("psp", "fc_1024"): {"accuracy": (97.16, 94.74, 87.77, 78.35, 69.14, 61.11)},
    ("batche", "fc_1024"): {"accuracy": (92.84, 92.40, 92.36, 92.34, 92.33, 92.32)},
    ("lower", "fc_1024"): {"accuracy": (76.89, 49.40, 38.93, 34.53, 31.30, 29.36)},
    ("upper", "fc_1024"): {"accuracy": (96.76, 96.70, 96.68, 96.66, 96.63, 96.61)},
    ("batche-inference", "fc_1024"): {
        "one image, H": (66.08, 61.89, 60.93, 59.33, 57.37, 55.74),
        "full batch, H": (91.94, 91.90, 92.04, 92.04, 92.04, 92.04),
    },
}
PUBLISHED: dict[tuple[str, str], Published] = {
    row: {label: dict(zip(STAGES, values)) for label, values in figures.items()} for row, figures in _PUBLISHED.items()
}
ROTATED = {"psp": 95.87, "batche": 92.40, "lower": 48.71, "upper": 98.01}
CITED = {"ewc": 33.88, "si": 29.31}
INFERENCE = {"batche-inference": "random", "batche-inference-trained": "trained"}  # what W is; docs/rivals.md says why
CONTEXTS: dict[str, Kind] = {"psp": "rotation", "psp-complex": "complex", "psp-binary": "binary"}
ROWS = (*CONTEXTS, "batche", "lower", "upper", *INFERENCE, "abatche", "rotated", "ewc", "si")


@dataclass(frozen=True)
class Settings:
    """What decides a row's figures."""

    net: str
    tasks: int
    steps: int
    stages: list[int]
    seeds: list[int]
    precision: str
    outputs: int = 10
    more: dict[str, Any] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default="psp,batche,lower,upper", help=f"some of {','.join(ROWS)}")
    parser.add_argument("--net", choices=list(NETS), default="lenet_300_100")
    parser.add_argument("--tasks", type=int, default=250)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--stages", help="when to grade, by default 10,50,100,… and the last")
    parser.add_argument("--seeds", default="0", help="trained side by side, for example 0,1,2")
    parser.add_argument("--images", default="1,4,16", help="numbers of images that decide, for abatche")
    parser.add_argument("--batche-decay", type=float, default=1e-4, help="weight decay of BatchE's vectors")
    parser.add_argument("--batche-filling", choices=list(FILLINGS), default="kaiming_normal", help="of BatchE's W")
    parser.add_argument("--ewc-steps", type=int, default=5000, help="batches of 256 per task for ewc and si")
    parser.add_argument("--precision", choices=["highest", "high"], default="high", help="of float32 matrix products")
    parser.add_argument("--data-dir", type=Path, help="the folder with the MNIST files")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=Path("results/rivals"), help="the folder for the rows")
    options = parser.parse_args()
    what = options.what.split(",")
    if not set(what) <= set(ROWS):
        raise SupSupError(f"unknown rows in {options.what!r}; known: {', '.join(ROWS)}")
    torch.set_float32_matmul_precision(options.precision)
    device = resolve(options.device)
    source = data.mnist(options.data_dir)
    options.json.mkdir(parents=True, exist_ok=True)
    for number, row in enumerate(what):
        if row in ("lower", "upper") and set(what[:number]) & {"lower", "upper"}:
            continue  # both come from one training
        run_row(row, what, options, source, device)


def run_row(row: str, what: Sequence[str], options: argparse.Namespace, source: Source, device: torch.device) -> None:
    """One row, or those that come from one training."""
    seeds = [int(seed) for seed in options.seeds.split(",")]
    wanted = [int(n) for n in options.stages.split(",")] if options.stages else list(STAGES)
    stages = sorted({n for n in wanted if n < options.tasks} | {options.tasks})
    basic = Settings(options.net, options.tasks, options.steps, stages, seeds, options.precision)
    streams = [data.permuted(source, options.tasks, seed=seed) for seed in seeds]
    folder: Path = options.json
    name = f"{options.net}-{options.tasks}"
    if row in CONTEXTS:
        settings = Settings(**{**asdict(basic), "more": {"contexts": CONTEXTS[row]}})
        known = PUBLISHED.get((row, options.net))
        write(folder / f"{row}-{name}.json", settings, device, known, psp, streams, device)
    elif row in ("lower", "upper"):
        both = [bound for bound in ("lower", "upper") if bound in what]
        write_bounds([folder / f"{bound}-{name}.json" for bound in both], both, basic, streams, device)
    elif row == "batche":
        write(
            folder / f"batche-{name}.json",
            basic,
            device,
            PUBLISHED.get(("batche", options.net)),
            batche,
            streams,
            device,
        )
    elif row in INFERENCE:
        more = {"W": INFERENCE[row], "decay": options.batche_decay, "filling": options.batche_filling}
        settings = Settings(**{**asdict(basic), "outputs": 500, "more": more})
        usual = (options.batche_decay, options.batche_filling) == (1e-4, "kaiming_normal")
        name += "" if usual else f"-{options.batche_filling}-decay-{options.batche_decay:g}"
        published = PUBLISHED.get(("batche-inference", options.net))
        write(folder / f"{row}-{name}.json", settings, device, published, batche_inference, streams, device)
    elif row == "abatche":
        images = [int(n) for n in options.images.split(",")]
        settings = Settings(**{**asdict(basic), "outputs": 100, "more": {"images": images}})
        write(folder / f"abatche-{name}.json", settings, device, None, abatche, streams, device)
    elif row == "rotated":
        rotated_rows(folder, options, source, device)
    else:
        settings = Settings("784-1000-1000", 10, options.ewc_steps, [10], seeds, options.precision, outputs=100)
        streams = [data.permuted(source, 10, seed=seed) for seed in seeds]
        published = {"GNu": {10: CITED[row]}}
        write(folder / f"{row}-10.json", settings, device, published, consolidation(row), streams, device)


def rotated_rows(folder: Path, options: argparse.Namespace, source: Source, device: torch.device) -> None:
    """36 rotations with FC 1024, task given."""
    seeds = [int(seed) for seed in options.seeds.split(",")]
    count = min(36, options.tasks)
    basic = Settings("fc_1024", count, options.steps, [count], seeds, options.precision)
    streams = [data.rotated(source, count) for _ in seeds]
    for row, train in (("psp", psp), ("batche", batche)):
        published = {"accuracy": {36: ROTATED[row]}}
        write(folder / f"rotated-{row}-{count}.json", basic, device, published, train, streams, device)
    paths = [folder / f"rotated-{bound}-{count}.json" for bound in ("lower", "upper")]
    write_bounds(paths, ["lower", "upper"], basic, streams, device, rotated=True)


def net_of(settings: Settings) -> nets.FullyConnected:
    """The network of a row."""
    if settings.net in NETS:
        return NETS[settings.net](outputs=settings.outputs)
    return nets.FullyConnected([*map(int, settings.net.split("-")), settings.outputs])


def one_after_the_other(
    models: Sequence[Method], streams: Sequence[Stream], stages: Sequence[int], grade: Callable[[int], None], label: str
) -> None:
    """All seeds in step, task after task, graded after each of the stages."""
    with progress.bar(label, len(streams[0])) as advance:
        for count, tasks in enumerate(zip(*streams), 1):
            learn_side_by_side(models, tasks)
            if count in stages:
                grade(count)
            advance(1)


def given(model: Method, stream: Sequence[data.Task]) -> float:
    """Average accuracy with the task given, in %."""
    return 100 * evaluate(model, stream, "GG", show_progress=False).average_accuracy


def psp(settings: Settings, streams: Sequence[Stream], device: torch.device) -> tuple[Curves, int]:
    recipe = Recipe(steps=settings.steps)
    kind = settings.more.get("contexts", "rotation")
    models = [PSP(net_of(settings), seed, contexts=kind, recipe=recipe, device=device) for seed in settings.seeds]
    curve: dict[int, list[float]] = {}

    def grade(count: int) -> None:
        curve[count] = [given(model, stream[:count]) for model, stream in zip(models, streams)]

    one_after_the_other(models, streams, settings.stages, grade, "PSP")
    return {"accuracy": curve}, models[0].bytes


def bounds(settings: Settings, streams: Sequence[Stream], device: torch.device) -> dict[str, tuple[Curves, int]]:
    """Upper and Lower Bound come from one training: the networks kept, and what is left of the last."""
    recipe = Recipe(steps=settings.steps)
    models = [UpperBound(net_of(settings), seed, recipe=recipe, device=device) for seed in settings.seeds]
    curves: dict[str, dict[int, list[float]]] = {"lower": {}, "upper": {}}

    def grade(count: int) -> None:
        pairs = list(zip(models, streams))
        curves["upper"][count] = [given(model, stream[:count]) for model, stream in pairs]
        curves["lower"][count] = [given(model.lower_bound(), stream[:count]) for model, stream in pairs]

    one_after_the_other(models, streams, settings.stages, grade, "Bounds")
    sizes = {"upper": models[0].bytes, "lower": models[0].lower_bound().bytes}
    return {bound: ({"accuracy": curve}, sizes[bound]) for bound, curve in curves.items()}


def learned_batche(settings: Settings, streams: Sequence[Stream], device: torch.device) -> list[BatchE]:
    more = {"W": "trained", "decay": 1e-4, "filling": "kaiming_normal"} | settings.more
    how: dict[str, Any] = {"base": more["W"], "filling": more["filling"], "device": device}
    how["recipe"] = Recipe("adam", 1e-2, steps=settings.steps, weight_decay=more["decay"])
    models = [BatchE(net_of(settings), seed, **how) for seed in settings.seeds]
    for model, stream in zip(models, streams):
        model.learn_many(stream)
    return models


def batche(settings: Settings, streams: Sequence[Stream], device: torch.device) -> tuple[Curves, int]:
    models = learned_batche(settings, streams, device)
    found = [evaluate(model, stream, "GG", stages=settings.stages).curve for model, stream in zip(models, streams)]
    return {"accuracy": _by_stage(settings, found)}, models[0].bytes


def batche_inference(settings: Settings, streams: Sequence[Stream], device: torch.device) -> tuple[Curves, int]:
    models = learned_batche(settings, streams, device)
    curves: Curves = {}
    protocols = {"one image": "paper", "full batch": "paper-full-batch"}
    for label, protocol in protocols.items():
        found = [
            evaluate(model, stream, "GNu", protocol=protocol, stages=settings.stages).curve  # type: ignore[arg-type]
            for model, stream in zip(models, streams)
        ]
        curves[f"{label}, H"] = _by_stage(settings, found)
    found = [evaluate(model, stream, "GG", stages=settings.stages).curve for model, stream in zip(models, streams)]
    curves["task given"] = _by_stage(settings, found)
    return curves, models[0].bytes


def abatche(settings: Settings, streams: Sequence[Stream], device: torch.device) -> tuple[Curves, int]:
    models = learned_batche(settings, streams, device)
    curves: Curves = {}
    for objective in ("H", "M"):
        for images in settings.more["images"]:
            found = []
            for model, stream in zip(models, streams):
                model.inference = TaskInference("abatche", objective, images)
                graded = evaluate(model, stream, "GNu", protocol="paper-full-batch", stages=settings.stages)
                found.append(graded.curve)
            curves[f"{objective}, {images} images"] = _by_stage(settings, found)
    return curves, models[0].bytes


def consolidation(row: str) -> Callable[..., tuple[Curves, int]]:
    """Online EWC or SI: class-incremental (GNu), and with one head for all tasks (GNs)."""

    def run(settings: Settings, streams: Sequence[Stream], device: torch.device) -> tuple[Curves, int]:
        recipe = Recipe("adam", 1e-4, steps=settings.steps, batch_size=256)
        curves: Curves = {}
        size = 0
        for scenario, labels, outputs in (("GNu", "unshared", 10 * settings.tasks), ("GNs", "shared", 10)):
            net = net_of(Settings(**{**asdict(settings), "outputs": outputs}))
            strength: dict[str, float] = {"strength": 10.0} if (row, scenario) == ("si", "GNs") else {}
            kind = OnlineEWC if row == "ewc" else SI
            models: list[Method] = [
                kind(net, seed, labels=labels, recipe=recipe, device=device, **strength)  # type: ignore[arg-type]
                for seed in settings.seeds
            ]
            curve: dict[int, list[float]] = {}

            def grade(count: int, models: list[Method] = models, scenario: str = scenario, curve: Any = curve) -> None:
                curve[count] = [
                    100 * evaluate(m, s[:count], scenario, protocol="strict", show_progress=False).average_accuracy
                    for m, s in zip(models, streams)
                ]

            one_after_the_other(models, streams, settings.stages, grade, f"{kind.__name__}, {scenario}")
            curves[scenario], size = curve, size or models[0].bytes
        return curves, size

    return run


def _by_stage(settings: Settings, curves: Sequence[Sequence[float]]) -> dict[int, list[float]]:
    return {stage: [100 * curve[i] for curve in curves] for i, stage in enumerate(settings.stages)}


def write(
    path: Path,
    settings: Settings,
    device: torch.device,
    published: Published | None,
    train: Callable[..., tuple[Curves, int]],
    *arguments: Any,
) -> None:
    """Make one row and write it, unless it is there already."""
    if finished(path, asdict(settings)):
        return
    begin = time.perf_counter()
    curves, size = train(settings, *arguments)
    write_row(path, asdict(settings), curves, published, size, time.perf_counter() - begin, device)


def write_bounds(
    paths: Sequence[Path],
    names: Sequence[str],
    settings: Settings,
    streams: Sequence[Stream],
    device: torch.device,
    rotated: bool = False,
) -> None:
    """The rows of Upper and Lower Bound, from one training."""
    if all(finished(path, asdict(settings)) for path in paths):
        return
    begin = time.perf_counter()
    rows = bounds(settings, streams, device)
    for path, name in zip(paths, names):
        known = {"accuracy": {36: ROTATED[name]}} if rotated else PUBLISHED.get((name, settings.net))
        curves, size = rows[name]
        write_row(path, asdict(settings), curves, known, size, time.perf_counter() - begin, device)


if __name__ == "__main__":
    main()
