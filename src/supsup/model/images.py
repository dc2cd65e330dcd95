"""The images of one call: as they were given, and preprocessed for the tasks that may answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from supsup.data.inputs import Inputs, inputs_key, to_learned_shape
from supsup.data.user_data import input_tensor
from supsup.model import checks
from supsup.model.task_table import InputGroups


class Images:
    """Images [n, …], or batches of them [r, b, …]; preprocessed once for all tasks that do it alike, when needed.

    ready  the network takes them as they are
    """

    def __init__(self, raw: Tensor, leading: int, ready: bool) -> None:
        self._raw, self._leading, self._ready = raw, leading, ready
        self._preprocessed: dict[object, Tensor] = {}

    def __len__(self) -> int:
        return len(self._raw)

    def preprocessed(self, inputs: Inputs | None) -> Tensor:
        """As the network takes them, for a task with these inputs."""
        if self._ready:
            return self._raw
        key = inputs_key(inputs)
        if key not in self._preprocessed:
            self._preprocessed[key] = (
                self._raw.float() if inputs is None else inputs.preprocess(self._raw, self._leading)
            )
        return self._preprocessed[key]


def images_for(
    x: Any, groups: InputGroups, shape: tuple[int, ...] | None, device: torch.device, leading: int = 1
) -> Images:
    """Images for the tasks of these groups, or an error if no task takes them.

    Tasks without preprocessing are strict: floating point, and the shape that was learned.
    """
    kinds: Sequence[Inputs] = [inputs for inputs, _ in groups if inputs is not None]
    if not kinds:
        images = (checks.check_images if leading == 1 else checks.check_batches)(x, device)
        checks.check_shape(tuple(images.shape[leading:]), shape)
        return Images(images, leading, True)
    raw = input_tensor(x) if leading == 1 else checks.check_raw_batches(x)
    if shape is not None:
        raw = to_learned_shape(raw, shape, kinds[0].channels_last, leading)
    return Images(raw.to(device), leading, False)
