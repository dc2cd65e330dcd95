"""Paths that nobody should give, and links that lead where one does not want to write."""

import os
import tempfile
from pathlib import Path

import pytest

import supsup
from supsup import Recipe, SupSup, SupSupError, nets
from supsup.file.paths import existing_file, new_part, writable_path
from supsup.file.repair import repair, verify


@pytest.fixture
def model() -> SupSup:
    return SupSup(nets.FullyConnected((5, 4)), recipe=Recipe(steps=1), device="cpu")


KINDS = ["NUL", "too long", "much too long", "loop", "two links", "below a file", "below a loop", "surrogates"]


def strange(folder: Path) -> dict[str, str]:
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "round").symlink_to(folder / "about")
    (folder / "about").symlink_to(folder / "round")
    (folder / "file").touch()
    return {
        "NUL": f"{folder}/a\0b",
        "too long": f"{folder}/{'x' * 300}",
        "much too long": f"{folder}/{'x/' * 5000}",
        "loop": f"{folder}/loop",
        "two links": f"{folder}/round",
        "below a file": f"{folder}/file/model",
        "below a loop": f"{folder}/loop/model",
        "surrogates": f"{folder}/\ud800\0",
    }


@pytest.mark.parametrize("which", KINDS)
def test_strange_paths_are_errors_of_ours(tmp_path: Path, model: SupSup, which: str) -> None:
    path = strange(tmp_path)[which]
    for attempt in (
        lambda: supsup.load(path),
        lambda: supsup.load(path, in_place=True),
        lambda: verify(path),
        lambda: repair(path, tmp_path / "out"),
        lambda: model.save(path),
    ):
        with pytest.raises(SupSupError):
            attempt()


def test_what_is_no_ordinary_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(SupSupError, match="not an ordinary file"):
            existing_file(path)


def test_what_may_not_be_read(tmp_path: Path, model: SupSup) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        model.save(path)
        journal = path.with_name("model-journal")
        for closed, mode in ((path, 0o000), (journal, 0o000)):
            journal.write_bytes(b"x")
            os.chmod(folder, 0o755)
            path.chmod(0o644)
            closed.chmod(mode)
            os.seteuid(65534)
            try:
                for attempt in (lambda: supsup.load(path), lambda: verify(path)):
                    with pytest.raises(SupSupError, match="permissions"):
                        attempt()
            finally:
                os.seteuid(0)


def test_ones_own_link_is_followed_and_anothers_is_not(tmp_path: Path, model: SupSup) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    model.save(target)
    link.symlink_to(target)
    model.save(link)
    assert link.is_symlink()
    if os.geteuid() == 0:
        os.lchown(link, 12345, 12345)
        assert supsup.load(link, device="cpu").tasks == []
        for attempt in (
            lambda: model.save(link),
            lambda: supsup.load(link, in_place=True),
            lambda: writable_path(link),
        ):
            with pytest.raises(SupSupError, match="another user's link"):
                attempt()


def test_what_killed_saves_left_is_removed_and_nothing_else(tmp_path: Path, model: SupSup) -> None:
    path = tmp_path / "model.supsup"
    model.save(path)
    living = supsup.load(path, in_place=True, device="cpu")
    ours = [new_part(path), new_part(path)]
    ours += [ours[0].with_name(ours[0].name + "-journal")]
    others = [
        tmp_path / ".model.supsup.backup",
        new_part(tmp_path / "other"),
        tmp_path / "model.supsup.0123456789abcdef",
    ]
    for file in [*ours, *others]:
        file.write_text("half")
    with pytest.raises(SupSupError, match="being written"):
        model.save(path)
    assert all(file.exists() for file in ours), "their writer may be alive"
    living.close()
    model.save(path)
    assert not any(file.exists() for file in ours)
    assert all(file.read_text() == "half" for file in others)
