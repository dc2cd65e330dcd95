"""A process forked from one in which torch has computed: its threads are gone, and waiting for them would never end."""

from __future__ import annotations

import os
from functools import cache

import torch


@cache
def one_thread_when_forked() -> None:
    """Torch has one thread in every process that is forked from now on."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_one_thread)


def _one_thread() -> None:
    torch.set_num_threads(1)
