"""Masks that stay on the disk: the answers are those of masks in memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from supsup import Recipe, SupSup, SupSupError, data, load, nets
from supsup.data import Stream
from supsup.file import task_blocks
from supsup.file.modelfile import ModelFile
from supsup.file.task_record import LearnedTask
from supsup.model.state import state_of

WIDTH = 8


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of eight tasks."""
    monkeypatch.setattr(task_blocks, "_WIDEST", WIDTH)


@pytest.fixture(scope="module")
def tasks() -> Stream:
    return data.permuted(data.digits(), tasks=20, seed=0)


@pytest.fixture(scope="module")
def learned(tasks: Stream, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two whole blocks and three tasks more; tests copy it."""
    model = SupSup(nets.FullyConnected((784, 30, 20)), seed=1, recipe=Recipe(steps=8), device="cpu")
    model.learn_many(tasks[: 2 * WIDTH + 3])
    path = tmp_path_factory.mktemp("masks") / "model.supsup"
    model.save(path)
    return path


@pytest.fixture
def file(learned: Path, tmp_path: Path) -> Path:
    path = tmp_path / "model.supsup"
    path.write_bytes(learned.read_bytes())
    return path


def same(one: SupSup, other: SupSup, x: torch.Tensor) -> bool:
    answers = [model.predict(x) for model in (one, other)]
    weighted = [model.infer_task(x, method="binary", per="batch") for model in (one, other)]
    return (
        one.tasks == other.tasks
        and all(
            torch.equal(state_of(one).bank.packed(i), state_of(other).bank.packed(i)) for i in range(len(one.tasks))
        )
        and all(
            torch.equal(state_of(one).bank.mean()[name], value) for name, value in state_of(other).bank.mean().items()
        )
        and torch.equal(answers[0].labels, answers[1].labels)
        and answers[0].tasks == answers[1].tasks
        and torch.equal(answers[0].confidence, answers[1].confidence)
        and weighted[0] == weighted[1]
    )


def test_answers_are_those_of_masks_in_memory(file: Path, tasks: Stream) -> None:
    x = tasks[5].test.batch(torch.arange(30))[0]
    memory = load(file, device="cpu")
    for _ in range(2):  # the blocks are made, then found
        disk = load(file, masks="disk", device="cpu")
        assert same(disk, memory, x)
        assert state_of(disk).bank.memory < state_of(memory).bank.memory
    assert len(list(file.with_name(file.name + "-masks").iterdir())) == 2


def test_learning_goes_on(file: Path, tasks: Stream) -> None:
    with load(file, masks="disk", in_place=True, device="cpu") as model:
        model.learn_many(tasks[2 * WIDTH + 3 :])
    assert same(
        load(file, masks="disk", device="cpu"), load(file, device="cpu"), tasks[19].test.batch(torch.arange(9))[0]
    )


def test_a_forgotten_task_leaves_no_bits_behind(file: Path, tasks: Stream) -> None:
    x = tasks[5].test.batch(torch.arange(9))[0]
    disk = load(file, masks="disk", device="cpu")
    with pytest.raises(SupSupError, match='masks="memory"'):
        disk.forget(disk.tasks[0])
    assert disk.tasks[0] == "permutation-0"
    with load(file, in_place=True, device="cpu") as model:
        model.forget("permutation-0")
        assert not file.with_name(file.name + "-masks").exists()
    assert same(load(file, masks="disk", device="cpu"), load(file, device="cpu"), x)


@pytest.mark.parametrize("damage", ["short", "another", "sums"])
def test_a_block_that_does_not_fit_is_made_anew(file: Path, tasks: Stream, damage: str) -> None:
    load(file, masks="disk", device="cpu")
    first, second = sorted(file.with_name(file.name + "-masks").iterdir())
    if damage == "short":
        first.write_bytes(first.read_bytes()[:-1000])
    elif damage == "another":
        first.write_bytes(second.read_bytes())
    else:
        content = bytearray(first.read_bytes())
        content[-5] ^= 1
        first.write_bytes(content)
    x = tasks[5].test.batch(torch.arange(9))[0]
    assert same(load(file, masks="disk", device="cpu"), load(file, device="cpu"), x)


def test_statistics_come_along(split: Stream, convolutional: nn.Module, tmp_path: Path) -> None:
    model = SupSup(convolutional, recipe=Recipe("adam", 1e-2, 2, 16), device="cpu")
    model.learn(split[0])
    for number in range(WIDTH):
        packed, statistics = state_of(model).bank.packed(0)[:, None], state_of(model).bank.statistics(0)
        more = {name: value[None] + number for name, value in statistics.items()}
        assert model.image_shape is not None
        state_of(model).add([LearnedTask(f"copy-{number}", 2)], packed, more, model.image_shape)
    model.save(tmp_path / "model")
    disk = load(tmp_path / "model", convolutional, masks="disk", device="cpu")
    assert all(
        torch.equal(state_of(disk).bank.flat_statistics(i), state_of(model).bank.flat_statistics(i))
        for i in range(WIDTH + 1)
    )


def test_a_word_that_is_no_place_is_refused(file: Path) -> None:
    with pytest.raises(SupSupError, match="masks"):
        load(file, masks="cloud", device="cpu")  # type: ignore[arg-type]


_LIMITED = """
import resource, sys
import torch
from supsup import load

def data_segment():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmData"))
    return 1024 * int(line.split()[1])

small, large, masks, more = *sys.argv[1:4], int(sys.argv[4])
image = torch.rand(1, 784, generator=torch.Generator().manual_seed(0))
load(small, masks="disk", device="cpu").predict(image)  # compiles
resource.setrlimit(resource.RLIMIT_DATA, (data_segment() + more,) * 2)
print(*load(large, masks=masks, device="cpu").predict(image).tasks)
"""


def _random(path: Path, tasks: int) -> SupSup:
    """A model file with random masks of 157 kB."""
    model = SupSup(nets.FullyConnected((784, 1600, 16)), device="cpu")
    masks = torch.randint(0, 256, (state_of(model).bank.length, tasks), dtype=torch.uint8, generator=torch.Generator())
    state_of(model).add([LearnedTask(f"task-{number}", 10) for number in range(tasks)], masks, {}, (784,))
    model.save(path)
    return model


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is limited as on Linux")
def test_a_model_larger_than_the_memory_answers(tmp_path: Path) -> None:
    """A process that may take less memory than the masks have bytes."""
    limit = 160 << 20
    _random(tmp_path / "small", 8)
    model = _random(tmp_path / "large", 1500)
    assert (tmp_path / "large").stat().st_size > 1.4 * limit
    image = torch.rand(1, 784, generator=torch.Generator().manual_seed(0))

    def answered(masks: str) -> subprocess.CompletedProcess[str]:
        arguments = [tmp_path / "small", tmp_path / "large", masks, str(limit)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
        command = [sys.executable, "-c", _LIMITED, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    disk = answered("disk")
    assert disk.stdout.split() == model.predict(image).tasks, disk.stderr
    assert answered("memory").returncode != 0


def test_blocks_are_what_a_bank_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_blocks, "_TASKS", 3)
    model = SupSup(nets.FullyConnected((20, 10, 4)), device="cpu")
    for number in range(7):
        chance = torch.Generator().manual_seed(number)
        mask = {key: torch.rand(shape, generator=chance) < 0.3 for key, shape in state_of(model).net.shapes.items()}
        state_of(model).add([LearnedTask(f"task-{number}", 4)], state_of(model).bank.pack(mask)[:, None], {}, (20,))
    model.save(tmp_path / "m")
    with ModelFile(tmp_path / "m") as file:
        blocks = list(task_blocks.read_blocks(file, state_of(model).net))
    assert [len(block.tasks) for block in blocks] == [3, 3, 1]
    assert torch.equal(
        torch.cat([block.packed for block in blocks], 1), torch.cat(list(state_of(model).bank.blocks()), 1)
    )
    assert state_of(load(tmp_path / "m", device="cpu")).tasks.unsaved() == {}
