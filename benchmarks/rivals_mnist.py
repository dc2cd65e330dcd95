"""The rivals on MNIST at full scale, each beside its published figure: one file per row; finished rows are skipped.

python benchmarks/rivals_mnist.py --what psp,lower,upper,ewc,si,rotated --net lenet_300_100,fc_1024 --at-once 12
python benchmarks/rivals_mnist.py --what batche,abatche --net lenet_300_100,fc_1024
python benchmarks/rivals_mnist.py --what batche-inference --net fc_1024 --seeds 0,1,2    (SUPSUP_DATA holds mnist/)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rows import Curves, Job, Published, Work, run_jobs

from supsup import Recipe, SupSupError, data, evaluate, nets
from supsup.baselines import PSP, SI, BatchE, OnlineEWC, TaskInference, UpperBound, learn_side_by_side
from supsup.baselines.contexts import Kind
from supsup.baselines.initial import FILLINGS
from supsup.baselines.rival import Method
from supsup.data import Source, Stream
from supsup.data.moving import moved
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
BOUNDS = ("lower", "upper")
WITHOUT_NET = ("rotated", "ewc", "si")
ROWS = (*CONTEXTS, "batche", *BOUNDS, *INFERENCE, "abatche", *WITHOUT_NET)


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


MakeJob = Callable[[Source, torch.device], Job]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default="psp,batche,lower,upper", help=f"some of {','.join(ROWS)}")
    parser.add_argument("--net", default="lenet_300_100", help=f"one or more of {','.join(NETS)}")
    parser.add_argument("--tasks", type=int, default=250)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--stages", help="when to grade, by default 10,50,100,… and the last")
    parser.add_argument("--seeds", default="0", help="trained side by side, for example 0,1,2")
    parser.add_argument("--images", default="1,4,16", help="numbers of images that decide, for abatche")
    parser.add_argument("--batche-decay", type=float, default=1e-4, help="weight decay of BatchE's vectors")
    parser.add_argument("--batche-filling", choices=list(FILLINGS), default="kaiming_normal", help="of BatchE's W")
    parser.add_argument("--ewc-steps", type=int, default=5000, help="batches of 256 per task for ewc and si")
    parser.add_argument("--at-once", type=int, default=1, help="how many trainings go side by side on a GPU")
    parser.add_argument("--precision", choices=["highest", "high"], default="high", help="of float32 matrix products")
    parser.add_argument("--data-dir", type=Path, help="the folder with the MNIST files")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=Path("results/rivals"), help="the folder for the rows")
    options = parser.parse_args()
    what, chosen = options.what.split(","), options.net.split(",")
    if not set(what) <= set(ROWS) or not set(chosen) <= set(NETS):
        raise SupSupError(f"rows are {', '.join(ROWS)} and networks {', '.join(NETS)}")
    torch.set_float32_matmul_precision(options.precision)
    device = resolve(options.device)
    source = data.mnist(options.data_dir)
    on_device(source, device)
    options.json.mkdir(parents=True, exist_ok=True)
    jobs = [job for net in chosen for row in what if row not in WITHOUT_NET for job in jobs_of(row, what, net, options)]
    jobs += [job for row in what if row in WITHOUT_NET for job in jobs_of(row, what, chosen[0], options)]
    sys.exit(1 if run_jobs([job(source, device) for job in jobs], device, options.at_once) else 0)


def on_device(source: Source, device: torch.device) -> None:
    """The images that all share, copied before anything runs side by side."""
    for tensor in (source.train_images, source.train_labels, source.test_images, source.test_labels):
        moved(tensor, torch.empty(0, device=device).device)
    for tensor in (source.gain, source.offset):
        moved(tensor, torch.empty(0, device=device).device)
    if device.type == "cuda":
        torch.cuda.synchronize()


def jobs_of(row: str, what: Sequence[str], net: str, options: argparse.Namespace) -> list[MakeJob]:
    """The trainings of a row; Upper and Lower Bound come from one."""
    seeds = [int(seed) for seed in options.seeds.split(",")]
    wanted = [int(n) for n in options.stages.split(",")] if options.stages else list(STAGES)
    stages = sorted({n for n in wanted if n < options.tasks} | {options.tasks})
    basic = Settings(net, options.tasks, options.steps, stages, seeds, options.precision)
    name, folder = f"{net}-{options.tasks}", options.json
    published = PUBLISHED.get((row, net), {})
    if row in CONTEXTS:
        settings = replace(basic, more={"contexts": CONTEXTS[row]})
        return [job_of(folder, name, settings, permuted, psp, {row: published})]
    if row in BOUNDS:
        if row != next(bound for bound in what if bound in BOUNDS):
            return []
        figures = {bound: PUBLISHED.get((bound, net), {}) for bound in BOUNDS if bound in what}
        return [job_of(folder, name, basic, permuted, bounds, figures)]
    if row == "batche":
        return [job_of(folder, name, basic, permuted, batche, {row: published})]
    if row in INFERENCE:
        more = {"W": INFERENCE[row], "decay": options.batche_decay, "filling": options.batche_filling}
        if (options.batche_decay, options.batche_filling) != (1e-4, "kaiming_normal"):
            name += f"-{options.batche_filling}-decay-{options.batche_decay:g}"
        figures = {row: PUBLISHED.get(("batche-inference", net), {})}
        return [job_of(folder, name, replace(basic, outputs=500, more=more), permuted, batche_inference, figures)]
    if row == "abatche":
        settings = replace(basic, outputs=100, more={"images": [int(n) for n in options.images.split(",")]})
        return [job_of(folder, name, settings, permuted, abatche, {row: {}})]
    if row == "rotated":
        count = min(36, options.tasks)
        settings = Settings("fc_1024", count, options.steps, [count], seeds, options.precision)
        figures = {f"rotated-{rival}": {"accuracy": {36: value}} for rival, value in ROTATED.items()}
        made = ((psp, ["psp"]), (batche, ["batche"]), (bounds, list(BOUNDS)))
        return [
            job_of(folder, str(count), settings, rotated, work, {f"rotated-{r}": figures[f"rotated-{r}"] for r in rows})
            for work, rows in made
        ]
    scenarios = (("GNu", "unshared", 100), ("GNs", "shared", 10))
    return [
        job_of(
            folder,
            f"{scenario}-10",
            Settings(
                "784-1000-1000",
                10,
                options.ewc_steps,
                [10],
                seeds,
                options.precision,
                outputs,
                {"scenario": scenario, "labels": labels},
            ),
            permuted,
            consolidation,
            {row: {scenario: {10: CITED[row]}} if scenario == "GNu" else {}},
        )
        for scenario, labels, outputs in scenarios
    ]


def job_of(
    folder: Path,
    name: str,
    settings: Settings,
    stream: Callable[[Source, Settings, int], Stream],
    work: Callable[[Sequence[str], Settings, Sequence[Stream], torch.device], Work],
    published: dict[str, Published],
) -> MakeJob:
    """A job for rows with published figures, once data and device are known."""

    def make(source: Source, device: torch.device) -> Job:
        paths = {row: folder / f"{row}-{name}.json" for row in published}
        streams = [stream(source, settings, seed) for seed in settings.seeds]
        return Job(
            paths,
            asdict(settings),
            published,
            settings.tasks,
            lambda: work(list(published), settings, streams, device),
        )

    return make


def permuted(source: Source, settings: Settings, seed: int) -> Stream:
    return data.permuted(source, settings.tasks, seed=seed)


def rotated(source: Source, settings: Settings, seed: int) -> Stream:
    return data.rotated(source, settings.tasks)


def net_of(settings: Settings) -> nets.FullyConnected:
    """The network of a row."""
    if settings.net in NETS:
        return NETS[settings.net](outputs=settings.outputs)
    return nets.FullyConnected([*map(int, settings.net.split("-")), settings.outputs])


def one_after_the_other(
    models: Sequence[Method], streams: Sequence[Stream], stages: Sequence[int], grade: Callable[[int], None]
) -> Iterator[None]:
    """All seeds in step, task after task, graded after each of the stages."""
    for count, tasks in enumerate(zip(*streams), 1):
        learn_side_by_side(models, tasks)
        if count in stages:
            grade(count)
        yield


def given(model: Method, stream: Sequence[data.Task]) -> float:
    """Average accuracy with the task given, in %."""
    return 100 * evaluate(model, stream, "GG", show_progress=False).average_accuracy


def psp(rows: Sequence[str], settings: Settings, streams: Sequence[Stream], device: torch.device) -> Work:
    recipe = Recipe(steps=settings.steps)
    kind = settings.more.get("contexts", "rotation")
    models = [PSP(net_of(settings), seed, contexts=kind, recipe=recipe, device=device) for seed in settings.seeds]
    curve: dict[int, list[float]] = {}

    def grade(count: int) -> None:
        curve[count] = [given(model, stream[:count]) for model, stream in zip(models, streams)]

    yield from one_after_the_other(models, streams, settings.stages, grade)
    return {rows[0]: ({"accuracy": curve}, models[0].bytes)}


def bounds(rows: Sequence[str], settings: Settings, streams: Sequence[Stream], device: torch.device) -> Work:
    """Upper and Lower Bound come from one training: the networks kept, and what is left of the last."""
    recipe = Recipe(steps=settings.steps)
    models = [UpperBound(net_of(settings), seed, recipe=recipe, device=device) for seed in settings.seeds]
    curves: dict[str, dict[int, list[float]]] = {"lower": {}, "upper": {}}

    def grade(count: int) -> None:
        pairs = list(zip(models, streams))
        curves["upper"][count] = [given(model, stream[:count]) for model, stream in pairs]
        curves["lower"][count] = [given(model.lower_bound(), stream[:count]) for model, stream in pairs]

    yield from one_after_the_other(models, streams, settings.stages, grade)
    sizes = {"upper": models[0].bytes, "lower": models[0].lower_bound().bytes}
    return {row: ({"accuracy": curves[row[-5:]]}, sizes[row[-5:]]) for row in rows}


def learned_batche(settings: Settings, streams: Sequence[Stream], device: torch.device) -> list[BatchE]:
    more: dict[str, Any] = {"W": "trained", "decay": 1e-4, "filling": "kaiming_normal"} | settings.more
    how: dict[str, Any] = {"base": more["W"], "filling": more["filling"], "device": device}
    how["recipe"] = Recipe("adam", 1e-2, steps=settings.steps, weight_decay=more["decay"])
    models = [BatchE(net_of(settings), seed, **how) for seed in settings.seeds]
    for model, stream in zip(models, streams):
        model.learn_many(stream)
    return models


def batche(rows: Sequence[str], settings: Settings, streams: Sequence[Stream], device: torch.device) -> Work:
    models = learned_batche(settings, streams, device)
    yield
    found = [evaluate(model, stream, "GG", stages=settings.stages).curve for model, stream in zip(models, streams)]
    return {rows[0]: ({"accuracy": _by_stage(settings, found)}, models[0].bytes)}


def batche_inference(rows: Sequence[str], settings: Settings, streams: Sequence[Stream], device: torch.device) -> Work:
    models = learned_batche(settings, streams, device)
    yield
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
    return {rows[0]: (curves, models[0].bytes)}


def abatche(rows: Sequence[str], settings: Settings, streams: Sequence[Stream], device: torch.device) -> Work:
    models = learned_batche(settings, streams, device)
    yield
    curves: Curves = {}
    for objective in ("H", "M"):
        for images in settings.more["images"]:
            found = []
            for model, stream in zip(models, streams):
                model.inference = TaskInference("abatche", objective, images)
                graded = evaluate(model, stream, "GNu", protocol="paper-full-batch", stages=settings.stages)
                found.append(graded.curve)
            curves[f"{objective}, {images} images"] = _by_stage(settings, found)
    return {rows[0]: (curves, models[0].bytes)}


def consolidation(rows: Sequence[str], settings: Settings, streams: Sequence[Stream], device: torch.device) -> Work:
    """Online EWC or SI: class-incremental (GNu), or with one head for all tasks (GNs)."""
    scenario = settings.more["scenario"]
    how: dict[str, Any] = {"labels": settings.more["labels"], "device": device}
    how["recipe"] = Recipe("adam", 1e-4, steps=settings.steps, batch_size=256)
    if rows[0] == "si":
        how["strength"] = 5.0 if scenario == "GNu" else 10.0
    kind = OnlineEWC if rows[0] == "ewc" else SI
    models: list[Method] = [kind(net_of(settings), seed, **how) for seed in settings.seeds]
    curve: dict[int, list[float]] = {}

    def grade(count: int) -> None:
        curve[count] = [
            100 * evaluate(m, s[:count], scenario, protocol="strict", show_progress=False).average_accuracy
            for m, s in zip(models, streams)
        ]

    yield from one_after_the_other(models, streams, settings.stages, grade)
    return {rows[0]: ({scenario: curve}, models[0].bytes)}


def _by_stage(settings: Settings, curves: Sequence[Sequence[float]]) -> dict[int, list[float]]:
    return {stage: [100 * curve[i] for curve in curves] for i, stage in enumerate(settings.stages)}


if __name__ == "__main__":
    main()
