"""How many threads compiled loops use: as many as torch, whose number they would otherwise change."""

from __future__ import annotations

import numba
import torch


def thread_count() -> int:
    """The number of threads for the next compiled loop of this Python thread.

    The first such loop starts numba's threads, one for each core, and with them sets the number of OpenMP threads that
    torch shares. Where somebody asked for fewer, torch would suddenly use all of them: on a busy machine that makes it
    many times slower.
    """
    wanted = torch.get_num_threads()
    usable: int = min(wanted, numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    numba.set_num_threads(usable)
    if torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)
    return usable
