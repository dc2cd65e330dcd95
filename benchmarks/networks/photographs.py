"""`supsup learn` on a folder of photographs: the pretrained network compared with the small one.

    python -m benchmarks photographs --data-dir DIR    DIR/tiny-imagenet/part-0.zip, DIR/cifar100 and the weights

Ten classes of 100 images each, of Tiny-ImageNet (64 × 64 pixels; its classes are among those that the weights were
trained on) and of CIFAR-100 (32 × 32; they are not from there). Some minutes on two cores. A run that was
interrupted goes on: what is in results/photographs-2-cores.json already is not measured again.
"""

from __future__ import annotations

import json
import resource
import tempfile
import zipfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from PIL import Image

from benchmarks.task_inference.omniglot_commands import ROOT, supsup
from supsup import data
from supsup_paper.provenance import provenance

CLASSES, IMAGES = 10, 100
NETWORKS = {"chosen": [], "small_resnet": ["--net", "small_resnet"]}


def main(
    data_dir: Annotated[Path, typer.Option(envvar="SUPSUP_DATA", help="The folder with the data sets.")],
    out: Path = ROOT / "results" / "photographs-2-cores.json",
) -> None:
    measured: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny_imagenet(data_dir, folder / "tiny-imagenet")
        cifar100(data_dir, folder / "cifar100")
        for pictures in ("tiny-imagenet", "cifar100"):
            for network, options in NETWORKS.items():
                if network not in measured.setdefault(pictures, {}):
                    measured[pictures][network] = learned(folder, pictures, [f"{network}.supsup", pictures, *options])
                    out.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


def tiny_imagenet(data_dir: Path, folder: Path) -> None:
    """The first images of each class, by name."""
    with zipfile.ZipFile(data_dir / "tiny-imagenet" / "part-0.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.startswith("train/") and name.endswith(".JPEG"))
        for kind in sorted({name.split("/")[1] for name in names})[:CLASSES]:
            (folder / kind).mkdir(parents=True)
            for name in [name for name in names if name.split("/")[1] == kind][:IMAGES]:
                (folder / kind / Path(name).name).write_bytes(archive.read(name))


def cifar100(data_dir: Path, folder: Path) -> None:
    """The first images of every tenth class."""
    source = data.cifar100(data_dir)
    for kind in range(0, 10 * CLASSES, 10):
        (folder / f"class-{kind}").mkdir(parents=True)
        chosen = (source.train_labels == kind).nonzero().flatten()[:IMAGES]
        for number, image in enumerate(source.train_images[chosen].permute(0, 2, 3, 1).numpy()):
            Image.fromarray(image).save(folder / f"class-{kind}" / f"{number}.png")


def learned(folder: Path, task: str, arguments: list[str]) -> dict[str, Any]:
    """What the model file and the system say of one `supsup learn`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    supsup(folder, "learn", *arguments, "--device", "cpu", "--task", task)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    (replaced,) = [each for each in json.loads(supsup(folder, "tasks", arguments[0], "--json")) if each["task"] == task]
    about = json.loads(supsup(folder, "info", arguments[0], "--json"))
    (folder / arguments[0]).unlink()
    return {
        "command": " ".join(["supsup", "learn", *arguments]),
        "network": about["network"],
        "right, %": round(100 * replaced["accuracy"], 1),
        "seconds of the CPU": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "bytes": replaced["bytes"],
        "made by": provenance(torch.device("cpu")),
    }


if __name__ == "__main__":
    typer.run(main)
