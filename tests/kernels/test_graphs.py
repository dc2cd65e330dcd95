import gc
from contextlib import suppress

from supsup.runtime.process import no_garbage_collection


def test_garbage_waits_and_collecting_goes_on_afterwards_whatever_happens() -> None:
    with suppress(ZeroDivisionError), no_garbage_collection():
        assert not gc.isenabled()
        _ = 1 / 0
    assert gc.isenabled()


def test_collecting_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with no_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
