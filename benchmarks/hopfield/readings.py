"""HopSupSup: what each reading of the printed procedure gives, one change at a time.

    python -m benchmarks readings --json results/hopfield-readings.json
    python -m benchmarks readings --page        only the table in docs/hopfield.md, from that file

Masks are learned once for every seed; each reading then builds Ψ and μ from them, descends from every task's test
images and answers with what it finds. A minute on a GPU. SUPSUP_DATA names the folder with mnist/.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import hardtanh

from supsup import HopSupSup, Recovery, UnitRecipe, data, nets
from supsup.data import Task
from supsup.hopfield.learner import learn_in_parallel, recover_in_parallel
from supsup.hopfield.memory import hebb, running_mean, storkey, to_bipolar
from supsup.inference.objectives import entropy
from supsup.nets.fully_connected import many_outputs
from supsup.runtime.devices import resolve
from supsup_paper.provenance import provenance

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "hopfield.md", ROOT / "results" / "hopfield-readings.json"
RIGHT = 0.01  # a mask is right if it differs in less than this share of the units

Layers = list[Tensor]  # [n, units] for each hidden layer
State = Literal["signs", "clipped", "tanh", "string"]


@dataclass(frozen=True)
class Reading:
    """How the text may be read; the defaults are the library's.

    rule       how a mask is stored: "storkey", "hebb", "storkey, no diagonal", or "centred": less the mean so far
    start      "mean": at μ; "sign": at its signs; "zero": at 0
    half       whether the energy is −½ zᵀΨz or −zᵀΨz
    energy_of  of what the energy is taken, and `entropy_of` the entropy: "signs" of the string, straight-through;
               "clipped": signs, with no gradient beyond ±1; "tanh" of it; or the "string" itself
    printed    m = ½z + 1 as printed, in the descent; the answers are given with ½(z + 1)
    first_step t of the first step: 1, or 0 with the last one at T − 1
    turn       which layers move: "both", or the "first" in one half of the steps and the "second" in the other
    order      of the test images: as they lie in the file, or "shuffled"
    total      the entropy summed over the images of a batch, not averaged
    """

    rule: Literal["storkey", "hebb", "storkey, no diagonal", "centred"] = "storkey"
    start: Literal["mean", "sign", "zero"] = "mean"
    learning_rate: float = 500.0
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    energy_weight: float = 1.5e-3
    half: bool = True
    energy_of: State = "signs"
    entropy_of: State = "signs"
    printed: bool = False
    batch_size: int = 64
    passes: int = 1
    first_step: int = 1
    turn: Literal["both", "first", "second"] = "both"
    order: Literal["file", "shuffled"] = "file"
    total: bool = False
    double: bool = False


PRINTED = Reading()
READINGS = {
    "as printed, slips mended": PRINTED,
    "energy without ½, as printed": replace(PRINTED, half=False),
    "γ halved": replace(PRINTED, energy_weight=0.75e-3),
    "γ four times": replace(PRINTED, energy_weight=6e-3),
    "energy of the string, not of its signs": replace(PRINTED, energy_of="string"),
    "energy of tanh": replace(PRINTED, energy_of="tanh"),
    "entropy of the string, not of its signs": replace(PRINTED, entropy_of="string"),
    "entropy of tanh": replace(PRINTED, entropy_of="tanh"),
    "both of the string": replace(PRINTED, energy_of="string", entropy_of="string"),
    "both of tanh": replace(PRINTED, energy_of="tanh", entropy_of="tanh"),
    "no gradient beyond ±1": replace(PRINTED, energy_of="clipped", entropy_of="clipped"),
    "m = ½z + 1 in the descent, as printed": replace(PRINTED, printed=True),
    "learning rate 250": replace(PRINTED, learning_rate=250),
    "learning rate 1,000": replace(PRINTED, learning_rate=1000),
    "learning rate 2,000": replace(PRINTED, learning_rate=2000),
    "learning rate 1,000, energy without ½": replace(PRINTED, learning_rate=1000, half=False),
    "no momentum": replace(PRINTED, momentum=0),
    "Nesterov's momentum": replace(PRINTED, nesterov=True),
    "no weight decay": replace(PRINTED, weight_decay=0),
    "entropy summed over a batch": replace(PRINTED, total=True),
    "batches of 32": replace(PRINTED, batch_size=32),
    "batches of 128": replace(PRINTED, batch_size=128),
    "batches of 128, two passes": replace(PRINTED, batch_size=128, passes=2),
    "two passes over the images": replace(PRINTED, passes=2),
    "images shuffled": replace(PRINTED, order="shuffled"),
    "t from 0 to T − 1": replace(PRINTED, first_step=0),
    "first layer first, then the second": replace(PRINTED, turn="first"),
    "second layer first, then the first": replace(PRINTED, turn="second"),
    "start at the signs of μ": replace(PRINTED, start="sign"),
    "start at 0": replace(PRINTED, start="zero"),
    "Hebb's rule, as in the main text": replace(PRINTED, rule="hebb"),
    "Storkey's rule with a diagonal of 0": replace(PRINTED, rule="storkey, no diagonal"),
    "masks stored less their mean": replace(PRINTED, rule="centred"),
    "in float64": replace(PRINTED, double=True),
}


def main() -> None:
    options = parse()
    if not options.page:
        record = measure(options)
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), json.loads(options.json.read_text())))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the figures go, or are")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page")
    parser.add_argument("--data-dir", type=Path, help="folder that holds mnist (default: $SUPSUP_DATA)")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--units", type=int, default=2048, help="of a hidden layer")
    parser.add_argument("--only", nargs="*", default=list(READINGS), help="names of readings")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All readings, with the masks of every seed."""
    device = resolve(options.device)
    stream = list(data.split(data.mnist(options.data_dir), 2))
    widths, recovery = (784, options.units, options.units, 10), Recovery(procedure="paper")
    models = [
        HopSupSup(nets.HopMLP(widths), seed, recipe=UnitRecipe(epochs=1), recovery=recovery, device=device)
        for seed in range(options.seeds)
    ]
    masks = [learn_in_parallel(models, task) for task in stream]
    weights = [torch.stack(layer) for layer in zip(*(model.net.weights.values() for model in models))]
    check(models, weights, masks, stream[0])
    rows = []
    for name in options.only:
        began = time.perf_counter()
        rows.append({"reading": name, **graded(weights, masks, stream, READINGS[name])})
        rows[-1]["seconds"] = round(time.perf_counter() - began, 2)
        print({key: value for key, value in rows[-1].items() if key != "accuracy % by seed"}, flush=True)
    return {"seeds": options.seeds, "units": options.units, "rows": rows, "made by": provenance(device)}


def check(models: Sequence[HopSupSup], weights: Layers, masks: Sequence[Layers], task: Task) -> None:
    """The reading that is the library's must find what the library finds."""
    x = task.test.tensors(models[0].device)[0]
    found = descend(weights, *stored(masks, PRINTED), x.flatten(1), PRINTED)
    library = recover_in_parallel(models, x).units
    differ = max(float(((a > 0) != b).float().mean()) for a, b in zip(found, library))
    assert differ < 1e-3, f"the library's own reading differs from it in {differ:.1%} of the units"


def graded(weights: Layers, masks: Sequence[Layers], stream: Sequence[Task], how: Reading) -> dict[str, Any]:
    """Accuracy with the masks that a reading finds, and how many of these are the right ones."""
    psi, mean = stored(masks, how)
    accuracy, right, first_output = [], 0, 0
    for task, true in zip(stream, masks):
        x, y = task.test.tensors(weights[0].device)
        found = descend(weights, psi, mean, x.flatten(1), how)
        accuracy.append(answered(weights, found, x.flatten(1), y + first_output))
        distance = torch.cat([(z > 0) != mask for z, mask in zip(found, true)], -1).float().mean(-1)
        right += int((distance < RIGHT).sum())
        first_output += task.classes
    by_seed = [round(100 * value, 3) for value in torch.stack(accuracy).mean(0).tolist()]
    return {
        "accuracy %": round(fmean(by_seed), 2),
        "deviation": round(stdev(by_seed), 2) if len(by_seed) > 1 else None,
        "right masks": right,
        "of": len(by_seed) * len(stream),
        "accuracy % by seed": by_seed,
    }


@torch.no_grad()
def answered(weights: Layers, found: Layers, x: Tensor, truth: Tensor) -> Tensor:
    """The share of right answers of each seed [n], in batches of about 64 as the library has them."""
    units = [(z[:, None] + 1) / 2 for z in found]
    pieces = zip(*(each.tensor_split(-(-len(x) // 64)) for each in (x, truth)))
    right = [(many_outputs(weights, a[None, None], units)[:, 0].argmax(-1) == b).sum(-1) for a, b in pieces]
    return torch.stack(right).sum(0) / len(x)


def stored(masks: Sequence[Layers], how: Reading) -> tuple[Layers, Layers]:
    """Ψ [n, d, d] and μ [n, d] of each hidden layer after all tasks."""
    made = []
    for layer in zip(*masks):
        psi, mean = torch.zeros(len(layer[0]), *layer[0].shape[1:] * 2).to(layer[0].device), torch.zeros(())
        for count, mask in enumerate(layer, 1):
            z = mask.float() * 2 - 1
            mean = running_mean(mean.to(z.device), z, count)
            if how.rule == "hebb":
                psi = hebb(psi, z)
            elif how.rule == "centred":
                psi = storkey(psi, z - mean)
            else:
                psi = storkey(psi, z)
            if how.rule == "storkey, no diagonal":
                psi = psi - torch.diag_embed(psi.diagonal(dim1=-2, dim2=-1))
        made.append((psi, mean))
    return [psi for psi, _ in made], [mean for _, mean in made]


def descend(weights: Layers, psi: Layers, mean: Layers, x: Tensor, how: Reading) -> Layers:
    """Where the strings of every seed end, as ±1."""
    if how.double:
        weights, psi, mean, x = ([each.double() for each in part] for part in (weights, psi, mean, [x]))  # type: ignore[assignment]
        x = x[0]
    if how.order == "shuffled":
        x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(x.device)]
    begin: dict[str, Callable[[Tensor], Tensor]] = {"mean": Tensor.clone, "sign": to_bipolar, "zero": torch.zeros_like}
    strings = [begin[how.start](mu).requires_grad_() for mu in mean]
    optimiser = torch.optim.SGD(
        strings, how.learning_rate, how.momentum, weight_decay=how.weight_decay, nesterov=how.nesterov
    )
    steps, size = how.passes * max(30, -(-len(x) // how.batch_size)), how.batch_size
    for step in range(steps):
        images = x[(torch.arange(size, device=x.device) + step * size) % len(x)]
        for_entropy = [_state(string, how.entropy_of) for string in strings]
        units = [z / 2 + (1 if how.printed else 0.5) for z in for_entropy]
        unsure = entropy(many_outputs(weights, images[None, None], [unit[:, None] for unit in units]), 0)
        level = unsure.sum() if how.total else unsure.mean(-1).sum()
        z = [_state(string, how.energy_of) for string in strings]
        energies = sum(-((a[:, None] @ matrix)[:, 0] * a).sum() for a, matrix in zip(z, psi))
        late = (step + how.first_step) / steps
        optimiser.zero_grad()
        (how.energy_weight * late * energies * (0.5 if how.half else 1.0) + (1 - late) * level).backward()
        if how.turn != "both":
            moving = int(step >= steps / 2) if how.turn == "first" else int(step < steps / 2)
            strings[1 - moving].grad = None
        optimiser.step()
    return [to_bipolar(string.detach()).to(weights[0].dtype).float() for string in strings]


def _state(string: Tensor, kind: State) -> Tensor:
    if kind == "string":
        return string
    if kind == "tanh":
        return string.tanh()
    through = hardtanh(string) if kind == "clipped" else string
    return through + (to_bipolar(string) - through).detach()


def with_table(text: str, record: dict[str, Any]) -> str:
    """The page with the table of readings."""
    lines = [
        f"| one descent, {record['seeds']} seeds; what is changed | accuracy % | deviation of a seed | right masks |",
        "|---|---:|---:|---:|",
    ]
    lines += [
        f"| {row['reading']} | {row['accuracy %']:.2f} | {row['deviation']:.2f} | {row['right masks']} of {row['of']} |"
        for row in record["rows"]
    ]
    block = "<!-- readings -->\n" + "\n".join(lines) + "\n<!-- /readings -->"
    return re.sub(r"<!-- readings -->.*?<!-- /readings -->", lambda _: block, text, flags=re.DOTALL)


if __name__ == "__main__":
    main()
