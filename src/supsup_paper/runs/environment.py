"""What all experiments of one call share: the device, the data, and the streams made from them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from supsup import data, nets
from supsup.data import Source, Stream
from supsup.runtime.devices import on_device
from supsup.runtime.errors import SupSupError
from supsup_paper.catalogue.experiments import FC, LENET, MnistTraining

NETS = {LENET: nets.lenet_300_100, FC: nets.fc_1024}


@dataclass
class Environment:
    """A device, and data that are read when they are first needed.

    cluster  who trains, as in `learn_many`
    """

    device: torch.device
    data_dir: Path | None = None
    cluster: str | None = None
    _sources: dict[str, Source] = field(default_factory=dict)

    def source(self, name: str) -> Source:
        """MNIST or CIFAR-100, read once; copied to the device here, before trainings side by side share the copy."""
        if name not in self._sources:
            source = data.named(name, self.data_dir)
            device = torch.empty(0, device=self.device).device  # "cuda" as tensors report it: "cuda:0"
            for tensor in (source.train_images, source.train_labels, source.test_images, source.test_labels):
                on_device(tensor, device)
            for tensor in (source.gain, source.offset):
                on_device(tensor, device)
            self.wait()
            self._sources[name] = source
        return self._sources[name]

    def mnist_stream(self, training: MnistTraining, seed: int) -> Stream:
        """The permutations of a seed, or the rotations, which are the same for all."""
        source = self.source("mnist")
        if training.stream == "rotated":
            return data.rotated(source, training.tasks, corners=training.corners or "black")
        return data.permuted(source, training.tasks, seed=seed)

    def cifar_stream(self, tasks: int, seed: int) -> Stream:
        """The first so many tasks of 5 classes, from a partition of the 100 classes that the seed draws."""
        return data.split(self.source("cifar100"), 5, seed=seed, tasks=tasks)

    def imagenet(self, size: int) -> Source:
        """ImageNet, or anything of its shape, read while training."""
        root = self.data_dir
        candidates = [] if root is None else [root / "imagenet", root]
        folder = next((folder for folder in candidates if (folder / "train").is_dir()), None)
        if folder is None:
            raise SupSupError(
                "imagenet-gg needs --data-dir with a folder that holds train/ and val/ (or imagenet/ with both), "
                "and in each a folder of images for every class"
            )
        return data.image_folder(folder, size=size, normalisation="imagenet", stream=True)

    def tiny_imagenet(self) -> Source:
        """Tiny-ImageNet, or some of its classes, read once and kept in memory."""
        name = "tiny-imagenet"
        if name not in self._sources:
            folder = None if self.data_dir is None else self.data_dir / name
            if folder is None or not (folder / "train").is_dir():
                raise SupSupError(
                    "Tiny-ImageNet needs --data-dir with a folder that holds tiny-imagenet/train/ and "
                    "tiny-imagenet/val/ (unzip the archive there), and in each a folder of images for every class"
                )
            self._sources[name] = data.image_folder(folder, normalisation="imagenet", stream=False)
        return self._sources[name]

    def wait(self) -> None:
        """Wait until the device has finished the work of the current stream; other streams go on."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def clock(self) -> float:
        """Seconds on a clock, read once the device has finished the work of the current stream."""
        self.wait()
        return time.perf_counter()


def net_of(training: MnistTraining) -> nets.FullyConnected:
    """The fully connected network of a training, by name or by its widths ("784-1000-1000")."""
    if training.net in NETS:
        return NETS[training.net](outputs=training.outputs)
    return nets.FullyConnected([*map(int, training.net.split("-")), training.outputs])
