"""One writer at a time: whatever lies in the lock's file, whoever dies or forks, there are never two and never none."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import supsup
from supsup import Recipe, SupSup, SupSupError, nets
from supsup.file.sqlite import WriterLock

HOLDER = """
import sys, time
from pathlib import Path
from supsup.file.sqlite import WriterLock
lock = WriterLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.supsup"


def test_a_second_one_is_refused_until_the_first_lets_go(path: Path) -> None:
    first = WriterLock(path)
    with pytest.raises(SupSupError, match="being written by another process or model"):
        WriterLock(path)
    first.release()
    WriterLock(path).release()
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("content", [b"", b"garbage", b"SQLite format 3\0" + bytes(5000)])
def test_what_lies_in_the_file_means_nothing(path: Path, content: bytes) -> None:
    """A file that is not empty is not ours: it is locked, and left as it is."""
    file = path.with_name("model.supsup-writer")
    file.write_bytes(content)
    lock = WriterLock(path)
    with pytest.raises(SupSupError, match="being written"):
        WriterLock(path)
    lock.release()
    assert file.exists() == bool(content)
    assert not content or file.read_bytes() == content


def test_no_link_is_followed(path: Path, tmp_path: Path) -> None:
    path.with_name("model.supsup-writer").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SupSupError, match=r"its lock model\.supsup-writer cannot be created"):
        WriterLock(path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_killed_writer_holds_nothing(path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(SupSupError, match="being written"):
            WriterLock(path)
        child.kill()
    WriterLock(path).release()
    assert os.listdir(path.parent) == []


def test_who_waited_on_a_file_that_is_gone_does_not_hold_the_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder removes the file while another has it open already: that one must not believe in it."""
    first = WriterLock(path)
    opened = os.open(path.with_name("model.supsup-writer"), os.O_RDWR)
    handles = [opened]
    real = os.open
    monkeypatch.setattr(os, "open", lambda *a, **k: handles.pop() if handles else real(*a, **k))
    first.release()
    second = WriterLock(path)  # gets the old file first, and sees that it is not at its path
    assert not handles
    monkeypatch.undo()
    with pytest.raises(SupSupError, match="being written"):
        WriterLock(path)
    second.release()


def test_many_at_once(path: Path) -> None:
    """Threads that take the lock again and again: never two of them hold it."""
    holding, most, taken = [0], [0], [0]
    guard = threading.Lock()

    def work() -> None:
        for _ in range(150):
            try:
                lock = WriterLock(path)
            except SupSupError:
                continue
            with guard:
                holding[0] += 1
                taken[0] += 1
                most[0] = max(most[0], holding[0])
            with guard:
                holding[0] -= 1
            lock.release()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert taken[0] > 5
    assert os.listdir(path.parent) == []


FORK = """
import os, sys, supsup
path = sys.argv[1]
model = supsup.load(path, in_place=True, device="cpu")
child = os.fork()
if child == 0:
    try:
        try:
            model._state.commit()
            os._exit(3)
        except supsup.SupSupError as error:
            assert "forked" in str(error), error
        model._state.close()
        os._exit(0)
    except BaseException as error:
        print(error)
        os._exit(4)
assert os.waitpid(child, 0)[1] == 0
try:
    supsup.load(path, in_place=True, device="cpu")
except supsup.SupSupError as error:
    assert "being written" in str(error)
else:
    raise AssertionError("the child took the lock away")
long_lived = os.fork()
if long_lived == 0:
    import time
    time.sleep(60)
    os._exit(0)
model.close()
supsup.load(path, in_place=True, device="cpu").close()  # although the child still has it open
os.kill(long_lived, 9)
os.waitpid(long_lived, 0)
print("done")
"""


def test_a_forked_child_neither_writes_nor_lets_go(path: Path) -> None:
    SupSup(nets.FullyConnected((20, 4)), recipe=Recipe(steps=1), device="cpu").save(path)
    child = subprocess.run([sys.executable, "-c", FORK, str(path)], capture_output=True, text=True, timeout=300)
    assert child.stdout == "done\n", child.stdout + child.stderr
    assert os.listdir(path.parent) == [path.name]
    assert supsup.load(path, device="cpu").tasks == []
