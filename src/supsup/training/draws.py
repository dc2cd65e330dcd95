"""Random numbers that layers draw in training (dropout), from a seed and a task's name, whoever else draws meanwhile.

Layers draw from torch's own generator, of which a process has one. Who trains a network that may draw holds `DRAWING`
for each step, and puts the generator into the state that its own last step left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from supsup.masks import philox
from supsup.runtime.locks import new_lock

DRAWING = new_lock()  # held by who makes layers draw


class Draws:
    """The generator as one task's training finds it from step to step."""

    def __init__(self, seed: int, task: str, device: torch.device) -> None:
        self._start, self._device = _start(seed, task), device
        self._states: list[Tensor] | None = None  # after the last step

    def run(self, step: Callable[[], None]) -> None:
        """One step, drawing on from the last one."""
        with DRAWING:
            outer = _states(self._device)
            try:
                if self._states is None:
                    _seed(self._start, self._device)
                else:
                    _put(self._states, self._device)
                step()
                self._states = _states(self._device)
            finally:
                _put(outer, self._device)


@contextmanager
def seeded(seed: int, task: str, device: torch.device) -> Iterator[None]:
    """The same for as long as it lasts; hold `DRAWING` around it."""
    outer = _states(device)
    try:
        _seed(_start(seed, task), device)
        yield
    finally:
        _put(outer, device)


def _start(seed: int, task: str) -> int:
    return int(philox.words(seed, [f"layers/{task}"], 1))


def _seed(start: int, device: torch.device) -> None:
    torch.default_generator.manual_seed(start)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(start)


def _states(device: torch.device) -> list[Tensor]:
    """Of the generators that layers on a device may draw from."""
    host = [torch.get_rng_state()]
    return [*host, torch.cuda.get_rng_state(device)] if device.type == "cuda" else host


def _put(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state, device)
