"""Damaged files: what is intact is rescued, what is not is named, and nothing false is kept."""

import hashlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import supsup
from supsup import Recipe, SupSup, SupSupError, nets
from supsup.file.modelfile import ModelFile
from supsup.file.repair import repair, verify
from supsup.file.task_record import LearnedTask
from supsup.model.state import state_of


def model_file(path: Path, tasks: int = 12) -> dict[str, bytes]:
    """A file of random masks; what must come back of each task that is rescued."""
    model = SupSup(nets.FullyConnected((200, 40, 20)), recipe=Recipe(steps=2), device="cpu")
    chance = torch.Generator().manual_seed(0)
    for number in range(tasks):
        mask = {name: torch.rand(shape, generator=chance) < 0.4 for name, shape in state_of(model).net.shapes.items()}
        state_of(model).add([LearnedTask(f"task-{number}", 10)], state_of(model).bank.pack(mask)[:, None], {}, (200,))
        state_of(model).commit()
    model.save(path)
    return masks(model)


def masks(model: SupSup) -> dict[str, bytes]:
    return {name: state_of(model).bank.packed(i).numpy().tobytes() for i, name in enumerate(model.tasks)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.supsup"


def rescued(path: Path) -> dict[str, bytes]:
    out = path.with_name("rescued.supsup")
    out.unlink(missing_ok=True)
    before = path.read_bytes()
    repair(path, out)
    assert path.read_bytes() == before
    found = masks(supsup.load(out, device="cpu"))
    assert verify(out).clean
    return found


def position_of(path: Path, task: str) -> int:
    """Where in the file some bytes of a task's mask lie."""
    with ModelFile(path) as file:
        mask = next(row.mask for row in file.records() if row.name == task)
    return path.read_bytes().index(mask[600:630])


def overwrite(path: Path, where: int, what: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(where)
        file.write(what)


def test_a_sound_file_is_clean(path: Path) -> None:
    expected = model_file(path)
    findings = verify(path)
    assert findings.clean
    assert [task.name for task in findings.intact] == list(expected)
    assert rescued(path) == expected


def test_a_flipped_bit_costs_one_task(path: Path) -> None:
    expected = model_file(path)
    where = position_of(path, "task-5")
    overwrite(path, where, bytes([path.read_bytes()[where] ^ 16]))
    findings = verify(path)
    assert list(findings.damaged) == ["task-5"]
    assert not findings.structure
    expected.pop("task-5")
    assert rescued(path) == expected


def test_a_damaged_spare_header_is_found(path: Path) -> None:
    expected = model_file(path)
    content = path.read_bytes()
    spare = content.index(b'"seed"', content.index(b'"seed"') + 1)
    overwrite(path, spare, b'"SEED"')
    assert masks(supsup.load(path, device="cpu")) == expected
    assert verify(path).structure == ["the spare copy of the header is damaged"]
    assert rescued(path) == expected


def test_ruined_pages_cost_the_tasks_on_them(path: Path) -> None:
    expected = model_file(path)
    for task in ("task-3", "task-8"):
        overwrite(path, position_of(path, task) // 1024 * 1024, b"\xff" * 1024)
    found = rescued(path)
    assert 8 <= len(found) <= 10
    assert found.items() <= expected.items()
    assert not verify(path).clean


def test_a_file_cut_off_keeps_the_tasks_before_the_cut(path: Path) -> None:
    expected = model_file(path, tasks=60)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 3 // 4])
    with pytest.raises(SupSupError, match=r"`supsup repair model\.supsup`"):
        supsup.load(path)
    found = rescued(path)
    assert len(found) > 35
    assert found.items() <= expected.items()


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("length", [16, 100, 1024, 2048])
def test_a_ruined_beginning_costs_nothing(path: Path, length: int, compacted: bool) -> None:
    """The tables lie in known places and the header is there twice."""
    expected = model_file(path)
    if compacted:
        with ModelFile(path, write=True) as file:
            file.remove("task-1")
            file.compact()
        expected.pop("task-1")
    overwrite(path, 0, b"\xff" * length)
    assert rescued(path) == expected


def test_a_row_that_claims_to_be_huge(path: Path) -> None:
    """The definition of a table, behind which SQLite takes a gigabyte; Python makes an error of memory of it."""
    expected = model_file(path)
    overwrite(path, path.read_bytes().index(b" NOT NULL, codec TEXT NOT NULL, levels"), b"\xff" * 60)
    with pytest.raises(SupSupError, match="supsup repair"):
        supsup.load(path)
    assert not verify(path).clean
    assert rescued(path) == expected


@pytest.mark.parametrize("start", [0, 1024])
def test_without_any_header_the_tasks_say_what_their_network_was(path: Path, start: int) -> None:
    """Both copies gone, and with them the settings; not the masks, names, classes and the shape of the images."""
    expected = model_file(path)
    overwrite(path, start, b"\xff" * (3072 - start))
    with pytest.raises(SupSupError, match=r"`supsup repair model\.supsup`"):
        supsup.load(path)
    assert rescued(path) == expected
    again = supsup.load(path.with_name("rescued.supsup"), device="cpu")
    assert (again.classes("task-3"), again.image_shape, again.seed) == (10, (200,), 0)
    assert "header was lost" in again.notes["repaired"]
    assert again.recipe == Recipe()


def test_a_header_that_says_nonsense_does_not_cost_the_tasks(path: Path) -> None:
    """Under right checksums, in both places, as an earlier version could write it."""
    expected = model_file(path)
    text = '{"notes": "text"}'
    with closing(sqlite3.connect(path)) as connection:
        (digest,) = connection.execute("SELECT tasks FROM model").fetchone()
        total = hashlib.blake2b(digest + text.encode(), digest_size=16).digest()
        for table in ("model", "spare"):
            connection.execute(f"UPDATE {table} SET header = ?, checksum = ?", (text, total))
        connection.commit()
    assert rescued(path) == expected


def test_a_network_of_ones_own_is_given(path: Path, tmp_path: Path) -> None:
    def net(width: int = 8) -> nn.Module:
        return nn.Sequential(nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 4))

    model = SupSup(net(), recipe=Recipe(steps=3), device="cpu")
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))
    for name in ("one", "two"):
        model.learn((x, torch.arange(32) % 4), task=name)
    model.save(path)
    overwrite(path, 1024, b"\xff" * 2048)
    with pytest.raises(SupSupError, match=r"nothing can be rescued.*net=your_module"):
        repair(path, tmp_path / "out")
    with pytest.raises(SupSupError, match=r"nothing can be rescued"):
        repair(path, tmp_path / "out", net(7))
    repair(path, tmp_path / "out", net())
    again = supsup.load(tmp_path / "out", net(), device="cpu")
    for name in ("one", "two"):
        assert again.subnetwork(name).keys() == model.subnetwork(name).keys()
        assert all(torch.equal(value, again.subnetwork(name)[key]) for key, value in model.subnetwork(name).items())


def test_a_full_disk_is_said_to_be_full(tmp_path: Path) -> None:
    """For repair, and for what export writes."""
    model_file(tmp_path / "sound", tasks=40)
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=16k tmpfs {disk} 2>/dev/null"):
        pytest.skip("mounting a small file system needs root")
    try:
        with pytest.raises(SupSupError, match="disk is full"):
            repair(tmp_path / "sound", disk / "out")
        model = supsup.load(tmp_path / "sound", device="cpu")
        for name in ("out.safetensors", "out.onnx"):
            with pytest.raises(SupSupError, match="could not be written"):
                supsup.export(model, "task-0", disk / name)
        assert os.listdir(disk) == []
    finally:
        os.system(f"umount {disk}")


def test_no_room_for_a_copy(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_file(path)
    overwrite(path, 1024, b"\xff" * 500)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(SupSupError, match="set TMPDIR to a folder with room"):
        repair(path, tmp_path / "out")


def test_what_cannot_be_rescued(path: Path, tmp_path: Path) -> None:
    model_file(path)
    with pytest.raises(SupSupError, match="exists; give the name of a new file"):
        repair(path, path)
    overwrite(path, 0, b"\xff" * 4096)
    picture = tmp_path / "cat.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(5000))
    for file in (path, picture):
        with pytest.raises(SupSupError, match="nothing can be rescued"):
            repair(file, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_no_mutation_is_rescued_as_another_mask(path: Path) -> None:
    expected = model_file(path)
    original = path.read_bytes()
    chance = np.random.default_rng(0)
    kept = []
    for _ in range(100):
        path.write_bytes(original)
        for _ in range(3):
            where = int(chance.integers(len(original) - 50))
            overwrite(path, where, chance.bytes(int(chance.integers(1, 50))))
        try:
            found = rescued(path)
        except SupSupError:
            continue
        assert found.items() <= expected.items()
        kept.append(len(found))
    assert np.mean(kept) > 8
