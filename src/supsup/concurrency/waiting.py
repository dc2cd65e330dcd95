"""How long OpenMP's threads spin while they wait for one another: hardly, or a busy machine comes to a halt.

Who imports supsup before torch has `OMP_WAIT_POLICY=PASSIVE` (`supsup/__init__.py`). With torch first it is too late
for that, and torch's threads spin for 300,000 turns, which is milliseconds, at every layer. But where OpenMP has more
threads than there are cores, 1,000 turns are all (libgomp's manual, `GOMP_SPINCOUNT`): a team that sleeps is enough.
"""

from __future__ import annotations

import os
import sys
import threading

import torch

from supsup.concurrency.locks import new_lock

NAME = "supsup's sleeping team"
_CHOSEN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # by the user, or by us in time
_NUMBERS = 1 << 20  # enough for torch to take all of its threads
_STARTING = new_lock()


def spin_shortly() -> None:
    """Have threads that wait go to sleep soon, unless the environment says how they wait; once for a process."""
    if sys.platform != "linux" or any(name in os.environ for name in _CHOSEN) or torch.get_num_threads() == 1:
        return
    with _STARTING:
        if any(thread.name == NAME for thread in threading.enumerate()):
            return
        asleep = threading.Event()
        threading.Thread(target=_sleep, args=(asleep,), name=NAME, daemon=True).start()
        asleep.wait()


def _sleep(asleep: threading.Event) -> None:
    """Have a team of one's own, and then nothing to do for it: a team lasts as long as the thread that has it."""
    torch.ones(_NUMBERS).add_(1)
    asleep.set()
    threading.Event().wait()
