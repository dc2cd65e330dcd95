"""Images that a question is about: as they were handed in, and as each task's network sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from supsup.data import formats
from supsup.data.inputs import Inputs, as_learned, key_of
from supsup.model import checks
from supsup.model.task_table import InputGroups


class Images:
    """Images [n, …] of one question, or batches of them [r, b, …]; made for each kind of task when it is asked for."""

    def __init__(self, raw: Tensor, leading: int, as_they_are: bool) -> None:
        self._raw, self._leading, self._as_they_are = raw, leading, as_they_are
        self._seen: dict[object, Tensor] = {}

    def __len__(self) -> int:
        return len(self._raw)

    def seen(self, inputs: Inputs | None) -> Tensor:
        """As the network sees them for a task with these inputs."""
        if self._as_they_are:
            return self._raw
        key = key_of(inputs)
        if key not in self._seen:
            self._seen[key] = self._raw.float() if inputs is None else inputs.seen(self._raw, self._leading)
        return self._seen[key]


def images_for(
    x: Any, views: InputGroups, shape: tuple[int, ...] | None, device: torch.device, leading: int = 1
) -> Images:
    """Images for tasks of these kinds, or an error if none of them takes such.

    Tasks that take their inputs as the network sees them are strict: floating point, and the shape learned.
    """
    kinds: Sequence[Inputs] = [inputs for inputs, _ in views if inputs is not None]
    if not kinds:
        images = (checks.images if leading == 1 else checks.batches)(x, device)
        checks.same_shape(tuple(images.shape[leading:]), shape)
        return Images(images, leading, True)
    raw = formats.tensor(x) if leading == 1 else checks.raw_batches(x)
    if shape is not None:
        raw = as_learned(raw, shape, kinds[0].channels_last, leading)
    return Images(raw.to(device), leading, False)
