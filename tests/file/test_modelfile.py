"""The model file: what was saved comes back, what was committed stays, and every mistake gets an answer."""

import hashlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import supsup
from supsup import Inference, NewTaskRule, Recipe, SupSup, SupSupError, nets
from supsup.data import Stream
from supsup.file import codec, sqlite
from supsup.file.header import Header
from supsup.file.modelfile import ModelFile, stored_bytes
from supsup.file.task_record import LearnedTask
from supsup.model.state import state_of


def masks(model: SupSup) -> dict[str, bytes]:
    return {name: state_of(model).bank.packed(i).cpu().numpy().tobytes() for i, name in enumerate(model.tasks)}


def tiny(tasks: int = 0, seed: int = 0) -> SupSup:
    """A model with random masks in which nothing was ever trained."""
    model = SupSup(nets.FullyConnected((200, 40, 20)), seed, recipe=Recipe(steps=2), device="cpu")
    for number in range(tasks):
        add(model, f"task-{number}")
    return model


def add(model: SupSup, name: str, density: float = 0.3) -> None:
    chance = torch.Generator().manual_seed(len(name) + 100 * len(model.tasks))
    mask = {key: torch.rand(shape, generator=chance) < density for key, shape in state_of(model).net.shapes.items()}
    state_of(model).add([LearnedTask(name, 10)], state_of(model).bank.pack(mask)[:, None], {}, (200,))
    state_of(model).commit()


def forge_header(connection: sqlite3.Connection, header: Header, checksums: list[bytes]) -> None:
    """Write any header under right checksums, as no model of ours would."""
    values = {key: value for key, value in asdict(header).items() if key not in ("kind", "details")}
    text, digest = json.dumps(values), hashlib.blake2b(b"".join(checksums), digest_size=16).digest()
    row = (text, digest, hashlib.blake2b(digest + text.encode(), digest_size=16).digest())
    for table in ("model", "spare"):
        connection.execute(f"REPLACE INTO {table} VALUES (1, ?, ?, ?)", row)


def add_many(model: SupSup, count: int) -> None:
    for number in range(count):
        add(model, f"more-{number}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.supsup"


class TestSaveAndLoad:
    def test_the_answers_are_the_same(self, learned: SupSup, images: Tensor, path: Path) -> None:
        learned.save(path)
        again = supsup.load(path)
        one, two = learned.predict(images), again.predict(images)
        assert one.tasks == two.tasks
        assert torch.equal(one.labels, two.labels)
        assert torch.equal(one.confidence, two.confidence)
        assert os.listdir(path.parent) == [path.name]

    def test_everything_comes_back(self, path: Path) -> None:
        settings = {"recipe": Recipe("adam", 0.01, 7), "inference": Inference("binary", "G", ["layers.0.weight"])}
        model = SupSup(nets.lenet_300_100(outputs=12), seed=2**40, new_task_rule=NewTaskRule(every=3), **settings)  # type: ignore[arg-type]
        model.notes["data"] = {"name": "digits", "Größe": 5000}
        for number, density in enumerate((0.0, 0.003, 0.5, 1.0)):
            mask = {n: torch.rand(s) < density for n, s in state_of(model).net.shapes.items()}
            state_of(model).add(
                [LearnedTask(f"Aufgabe {number} ✓", number + 1)],
                state_of(model).bank.pack(mask)[:, None],
                {},
                (1, 28, 28),
            )
            state_of(model).commit()
        model.extras["Aufgabe 2 ✓"] = {"running_mean": torch.randn(5), "count": torch.tensor(3)}
        model.save(path)
        again = supsup.load(path)
        assert (again.recipe, again.inference, again.new_task_rule) == (
            model.recipe,
            model.inference,
            model.new_task_rule,
        )
        assert (again.seed, again.notes, again.tasks) == (model.seed, model.notes, model.tasks)
        assert [again.classes(t) for t in again.tasks] == [1, 2, 3, 4]
        assert masks(again) == masks(model)
        assert list(again.extras) == ["Aufgabe 2 ✓"]
        assert torch.equal(again.extras["Aufgabe 2 ✓"]["running_mean"], model.extras["Aufgabe 2 ✓"]["running_mean"])
        assert [again.learned_at(t) for t in again.tasks] == [model.learned_at(t) for t in model.tasks]
        assert again.image_shape == (1, 28, 28)

    def test_saving_again_replaces_the_older_file(self, path: Path) -> None:
        tiny(3).save(path)
        path.chmod(0o640)
        tiny(2, seed=5).save(path)
        assert supsup.load(path).seed == 5
        assert path.stat().st_mode & 0o777 == 0o640

    def test_an_observed_mask_is_saved_as_it_stands(self, stream: Stream, path: Path, images: Tensor) -> None:
        model = SupSup(nets.FullyConnected((784, 40, 20)), new_task_rule=NewTaskRule(every=2), device="cpu")
        for start in (0, 64, 128):
            model.observe(*stream[0].train.batch(torch.arange(start, start + 64)))
        model.save(path)
        assert torch.equal(supsup.load(path).predict(images).confidence, model.predict(images).confidence)
        name = supsup.load(path).observe(*stream[0].train.batch(torch.arange(64)))
        assert name is not None
        assert name.startswith("observed-")

    def test_a_failed_save_leaves_the_older_file(self, path: Path) -> None:
        tiny(3).save(path)
        before = path.read_bytes()
        broken = tiny(3, seed=1)
        with pytest.raises(SupSupError, match="'not a tensor' must be a dense tensor"):
            broken.extras["task-2"] = {"not a tensor": 3}  # type: ignore[dict-item]
        broken.extras["task-2"] = {"one": torch.ones(1)}
        broken.extras["task-2"]["statistics/two"] = torch.ones(1)
        with pytest.raises(SupSupError, match="'statistics/two'"):
            broken.save(path)
        assert path.read_bytes() == before
        assert os.listdir(path.parent) == [path.name]

    def test_what_is_not_a_model_is_not_overwritten(self, tmp_path: Path) -> None:
        picture, database = tmp_path / "cat.png", tmp_path / "other.db"
        picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(5000))
        sqlite3.connect(database).execute("CREATE TABLE cats (name)").connection.close()
        for file in (picture, database):
            before = file.read_bytes()
            with pytest.raises(SupSupError, match="not overwritten"):
                tiny(1).save(file)
            assert file.read_bytes() == before
        with pytest.raises(SupSupError, match="is a folder"):
            tiny(1).save(tmp_path)
        with pytest.raises(SupSupError, match="no folder"):
            tiny(1).save(tmp_path / "nowhere" / "model.supsup")
        with pytest.raises(SupSupError, match="has no file; give a path"):
            tiny(1).save()
        (tmp_path / "empty").touch()
        tiny(1).save(tmp_path / "empty")
        assert supsup.load(tmp_path / "empty").tasks == ["task-0"]

    def test_a_journal_left_by_a_file_that_is_gone_does_no_harm(self, path: Path) -> None:
        path.with_name(path.name + "-journal").write_bytes(os.urandom(3000))
        tiny(2).save(path)
        assert os.listdir(path.parent) == [path.name]
        assert len(supsup.load(path).tasks) == 2


class TestWhatIsSavedCanBeLoaded:
    """What a file could not give back is refused when it is given, before anything is trained or written."""

    @pytest.mark.parametrize(
        "notes",
        ["text", None, [1], {1: 2}, {"x": object()}, {"x": float("nan")}, {"x": {3: 4}}, {"x": {1, 2}}, {"x": b"y"}],
    )
    def test_notes(self, notes: Any, path: Path) -> None:
        model = tiny(1)
        with pytest.raises(SupSupError, match="notes"):
            model.notes = notes
        if isinstance(notes, dict):
            model.notes.update(notes)  # behind the setter's back
            with pytest.raises(SupSupError, match="notes"):
                model.save(path)
        assert not path.exists()

    def test_notes_that_are_nested_without_end(self, path: Path) -> None:
        model = tiny(1)
        model.notes["x"] = model.notes
        with pytest.raises(SupSupError, match="notes"):
            model.save(path)

    @pytest.mark.parametrize(
        "extras",
        [
            "text",
            {"__metadata__": torch.ones(1)},
            {"statistics/x": torch.ones(1)},
            {"": torch.ones(1)},
            {5: torch.ones(1)},
            {"\ud800": torch.ones(1)},
            {"x": [1.0]},
            {"x": torch.ones(1, device="meta")},
            {"x": torch.ones(2, 2).to_sparse()},
            {"x": torch.ones(1, dtype=torch.complex128)},
        ],
    )
    def test_extras(self, extras: Any) -> None:
        model = tiny(1)
        with pytest.raises(SupSupError, match="extra"):
            model.extras["task-0"] = extras
        assert list(model.extras) == []

    def test_extras_that_share_memory_or_want_gradients(self, path: Path) -> None:
        model, whole = tiny(1), torch.arange(6.0)
        model.extras["task-0"] = {
            "all": whole,
            "some": whole[::2],
            "same": whole,
            "leaf": torch.ones(2, requires_grad=True),
        }
        model.save(path)
        again = supsup.load(path, device="cpu").extras["task-0"]
        assert [again[name].tolist() for name in ("all", "some", "same", "leaf")] == [
            [0, 1, 2, 3, 4, 5], [0, 2, 4], [0, 1, 2, 3, 4, 5], [1, 1],
        ]  # fmt: skip

    @pytest.mark.parametrize("classes", [True, 2.5, "x", 0, -1, None, 2**40])
    def test_classes(self, classes: Any, stream: Stream) -> None:
        model = SupSup(nets.FullyConnected((784, 10)), recipe=Recipe(steps=1), device="cpu")
        for learn in (model.learn, lambda task: model.learn_many([task])):
            with pytest.raises(SupSupError, match=r"classes.*give a whole number"):
                learn(replace(stream[0], classes=classes))
        assert model.tasks == []

    @pytest.mark.parametrize("name", ["", None, 5, b"x", "a\0b", "x" * 1001, "\ud800", ("a",)])
    def test_names(self, name: Any, stream: Stream) -> None:
        model = SupSup(nets.FullyConnected((784, 10)), recipe=Recipe(steps=1), device="cpu")
        for learn in (model.learn, lambda task: model.learn_many([task])):
            with pytest.raises(SupSupError, match="name"):
                learn(replace(stream[0], name=name))
        assert model.tasks == []

    def test_statistics_of_a_training_that_went_wrong(self, convolutional: nn.Module, path: Path) -> None:
        model = SupSup(convolutional, recipe=Recipe(steps=1), device="cpu")
        model.learn((torch.randn(8, 784), torch.arange(8) % 5), task="a")
        next(iter(state_of(model).bank.statistics(0).values()))[0] = torch.nan
        with pytest.raises(SupSupError, match="statistics of task 'a' are not finite"):
            model.save(path)

    def test_a_header_that_does_not_come_back_is_not_committed(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tiny(1).save(path)
        before = path.read_bytes()
        with supsup.load(path, in_place=True, device="cpu") as model:
            with monkeypatch.context() as patch:
                patch.setattr("supsup.file.tables._header_sum", lambda text, digest: os.urandom(16))
                with pytest.raises(SupSupError, match="checksum of its header"):
                    add(model, "more")
                with pytest.raises(SupSupError, match="checksum of its header"):
                    tiny(1).save(path.with_name("other"))
            assert path.read_bytes() == before
            assert not path.with_name("other").exists()
        assert supsup.load(path, device="cpu").tasks == ["task-0", "more"]


class TestOnesOwnModule:
    @staticmethod
    def net(width: int = 4, scale: float = 1.0) -> nn.Module:
        net = nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 20))
        nn.init.constant_(net[2].weight, scale)  # type: ignore[arg-type]
        return net

    def test_it_is_given_again(self, stream: Stream, path: Path, images: Tensor) -> None:
        model = SupSup(self.net(), recipe=Recipe(steps=2), device="cpu")
        model.learn(stream[0])
        model.save(path)
        again = supsup.load(path, self.net())
        assert torch.equal(again.predict(images).confidence, model.predict(images).confidence)

    def test_another_one_is_refused(self, path: Path) -> None:
        SupSup(self.net()).save(path)
        with pytest.raises(SupSupError, match=r"model.supsup: .* load\(path, net=your_module\)"):
            supsup.load(path)
        with pytest.raises(SupSupError, match=r"weight '1.weight' is \[5, 784\], but in the file \[4, 784\]"):
            supsup.load(path, self.net(width=5))
        with pytest.raises(SupSupError, match="values or those of other parameters"):
            supsup.load(path, self.net(scale=2.0))
        with pytest.raises(SupSupError, match=r"weight '1.weight' is missing"):
            supsup.load(path, nets.lenet_300_100())


class TestInPlace:
    def test_each_task_is_in_the_file_when_learn_returns(self, stream: Stream, path: Path) -> None:
        SupSup(nets.FullyConnected((784, 10)), recipe=Recipe(steps=1), device="cpu").save(path)
        with supsup.load(path, in_place=True) as model:
            model.learn(stream[0])
            assert supsup.load(path).tasks == ["permutation-0"]
            model.learn_many(stream[1:3])
            model.forget("permutation-1")
            model.save(path)
            found = supsup.load(path)
            assert found.tasks == model.tasks == ["permutation-0", "permutation-2"]
            assert masks(found) == masks(model)
        assert os.listdir(path.parent) == [path.name]
        model.learn(stream[4])
        assert len(supsup.load(path).tasks) == 2

    def test_learn_many_commits_task_by_task(self, stream: Stream, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        SupSup(nets.FullyConnected((784, 10)), recipe=Recipe(steps=1), device="cpu").save(path)
        with supsup.load(path, in_place=True) as model:
            commit, seen = state_of(model).commit, []

            def watched() -> None:
                commit()
                seen.append(len(supsup.load(path).tasks))

            monkeypatch.setattr(state_of(model), "commit", watched)
            model.learn_many(stream[:3])
        assert seen[:3] == [1, 2, 3]

    def test_going_on_gives_the_same_masks_as_never_stopping(self, stream: Stream, path: Path, small: SupSup) -> None:
        small.learn(stream[2])
        SupSup(nets.FullyConnected((784, 40, 20)), seed=1, recipe=Recipe(steps=10), device="cpu").save(path)
        for task in stream[:3]:
            with supsup.load(path, in_place=True, device="cpu") as model:
                model.learn(task)
        assert masks(supsup.load(path)) == masks(small)

    def test_what_is_observed_is_committed_when_masks_are_chosen_and_on_close(self, stream: Stream, path: Path) -> None:
        SupSup(nets.FullyConnected((784, 40, 20)), new_task_rule=NewTaskRule(every=2), device="cpu").save(path)
        batches = [stream[0].train.batch(torch.arange(start, start + 64)) for start in (0, 64, 128)]
        with supsup.load(path, in_place=True) as model:
            model.observe(*batches[0])
            assert supsup.load(path).tasks == []
            model.observe(*batches[1])
            model.observe(*batches[2])
            assert len(supsup.load(path).tasks) >= 1
        assert masks(supsup.load(path)) == masks(model)

    def test_a_second_writer_is_turned_away_at_once(self, path: Path) -> None:
        tiny(1).save(path)
        with supsup.load(path, in_place=True) as model:
            for attempt in (lambda: supsup.load(path, in_place=True), lambda: tiny(2).save(path)):
                with pytest.raises(SupSupError, match="being written by another process or model"):
                    attempt()
            add(model, "more")
        with supsup.load(path, in_place=True) as model:
            assert model.tasks == ["task-0", "more"]

    def test_an_interruption_right_after_a_commit(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ctrl-C while the commit is being written: it is there, and it is not written twice."""
        tiny(1).save(path)
        with supsup.load(path, in_place=True) as model:
            file = state_of(model).file
            assert file is not None
            real = sqlite.transaction

            @contextmanager
            def interrupted(connection: sqlite3.Connection, kind: str = "DEFERRED") -> Iterator[None]:
                with real(connection, kind):
                    yield
                if kind == "IMMEDIATE":
                    raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr("supsup.file.modelfile.transaction", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    add(model, "late")
            add(model, "later")
        assert supsup.load(path).tasks == ["task-0", "late", "later"]

    def test_what_cannot_be_written_is_named(self, path: Path) -> None:
        tiny(1).save(path)
        with supsup.load(path, in_place=True) as model:
            with pytest.raises(SupSupError, match="is not text that can be written"):
                add(model, "\ud800")
            model.notes["why"] = object()
            with pytest.raises(SupSupError, match="must be JSON values"):
                model.save()
            model.notes.clear()
        assert supsup.load(path).tasks == ["task-0"]

    def test_readers_go_on_beside_a_writer(self, path: Path) -> None:
        tiny(3).save(path)
        with supsup.load(path, in_place=True) as writer, ModelFile(path) as reader, ModelFile(path) as other:
            first = reader.records()
            next(first)
            add_later = sum(1 for _ in other.records())
            assert len(list(first)) == 2
            add(writer, "late")
            assert add_later == 3
            assert [row.name for row in reader.records()][-1] == "late"

    def test_a_change_behind_the_writers_back_is_noticed(self, path: Path) -> None:
        tiny(2).save(path)
        one = supsup.load(path, in_place=True)
        (path.parent / "model.supsup-writer").unlink()
        with supsup.load(path, in_place=True) as other:
            other.forget("task-1")
        with pytest.raises(SupSupError, match="another process has changed it"):
            add(one, "mine")
        with pytest.raises(SupSupError, match="another process has changed it"):
            one.close()
        assert supsup.load(path).tasks == ["task-0"]

    def test_a_full_disk_loses_nothing(self, path: Path) -> None:
        tiny(2).save(path)
        with supsup.load(path, in_place=True) as model:
            file = state_of(model).file
            assert file is not None
            pages = file._connection.execute("PRAGMA page_count").fetchone()[0]
            file._connection.execute(f"PRAGMA max_page_count={pages}")
            with pytest.raises(SupSupError, match=r"model.supsup: the disk is full; free some space"):
                add(model, "task-2", density=0.5)
            assert supsup.load(path).tasks == ["task-0", "task-1"]
            assert model.tasks == ["task-0", "task-1", "task-2"]
            file._connection.execute("PRAGMA max_page_count=100000")
            model.save()
        assert masks(supsup.load(path)) == masks(model)

    def test_a_really_full_disk(self, tmp_path: Path, path: Path) -> None:
        """On a file system of 256 KiB, for saving and for learning in place."""
        if os.system(f"mount -t tmpfs -o size=256k tmpfs {tmp_path} 2>/dev/null"):
            pytest.skip("mounting a small file system needs root")
        try:
            tiny(20).save(path)
            with pytest.raises(SupSupError, match="the disk is full"):
                tiny(300).save(path)
            assert len(supsup.load(path).tasks) == 20
            assert os.listdir(tmp_path) == [path.name]
            model = supsup.load(path, in_place=True, device="cpu")
            with pytest.raises(SupSupError, match="the disk is full"):
                add_many(model, 300)
            assert len(supsup.load(path).tasks) == len(model.tasks) - 1 > 40
            with pytest.raises(SupSupError, match="the disk is full"):
                model.close()
        finally:
            os.system(f"umount {tmp_path}")

    @pytest.fixture
    def read_only(self) -> Iterator[Path]:
        """A model that this process may read and not write, even where it is root otherwise."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.supsup"
            tiny(2).save(file)
            file.chmod(0o444)
            Path(folder).chmod(0o555)
            if os.geteuid() == 0:
                os.seteuid(65534)
                try:
                    yield file
                finally:
                    os.seteuid(0)
            else:
                yield file
            Path(folder).chmod(0o755)

    def test_a_read_only_file_can_be_read(self, read_only: Path) -> None:
        assert len(supsup.load(read_only).tasks) == 2
        for attempt in (lambda: supsup.load(read_only, in_place=True), lambda: tiny(1).save(read_only)):
            with pytest.raises(SupSupError, match="make the folder writable"):
                attempt()


class TestForget:
    def test_the_bytes_and_the_name_are_gone_from_the_file(self, path: Path) -> None:
        tiny(5).save(path)
        with ModelFile(path) as file:
            gone = next(row for row in file.records() if row.name == "task-2")
        pieces = [gone.mask[i : i + 24] for i in range(0, len(gone.mask) - 24, 24)]
        assert sum(piece in path.read_bytes() for piece in pieces) > len(pieces) * 0.9
        with supsup.load(path, in_place=True) as model:
            before = masks(model)
            model.forget("task-2")
        content = path.read_bytes()
        assert not any(piece in content for piece in [*pieces, gone.checksum, b"task-2"])
        assert masks(supsup.load(path)) == {name: mask for name, mask in before.items() if name != "task-2"}

    def test_compaction_gives_the_space_back(self, path: Path) -> None:
        tiny(30).save(path)
        size = path.stat().st_size
        with ModelFile(path, write=True) as file:
            for number in range(5, 30):
                file.remove(f"task-{number}")
            file.compact()
            with pytest.raises(SupSupError, match="no task 'nobody'"):
                file.remove("nobody")
        assert path.stat().st_size < size / 3
        assert masks(supsup.load(path)) == masks(tiny(5))

    @pytest.mark.skipif(not codec.available(), reason="needs the entropy coder")
    def test_compaction_codes_what_a_machine_without_the_coder_wrote(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sparse = tiny()
        bits = (torch.rand(state_of(sparse).bank.pack(tiny(1).mask("task-0")).shape[0]) < 0.05).byte()
        state_of(sparse).add([LearnedTask("sparse", 10)], bits[:, None], {}, (200,))
        with monkeypatch.context() as without:
            without.setattr(codec, "available", lambda: False)
            sparse.save(path)
        with ModelFile(path, write=True) as file:
            before = [row.codec for row in file.records()]
            file.compact()
            assert (before, [row.codec for row in file.records()]) == ([codec.PLAIN], [codec.CODED])
        assert masks(supsup.load(path)) == masks(sparse)

    @pytest.mark.skipif(not codec.available(), reason="needs the entropy coder")
    def test_masks_coded_against_their_mean_do_not_outlive_a_task_in_it(self, path: Path) -> None:
        """Alike masks get smaller; the mean goes with the first task that it was taken over."""
        alike = tiny()
        common = torch.rand(
            state_of(alike).bank.pack(tiny(1).mask("task-0")).shape[0], generator=torch.Generator().manual_seed(1)
        )
        for number in range(40):
            noise = torch.rand(len(common), generator=torch.Generator().manual_seed(number))
            state_of(alike).add(
                [LearnedTask(f"task-{number}", 10)], ((common < 0.3) ^ (noise < 0.05)).byte()[:, None] * 37, {}, (200,)
            )
            state_of(alike).commit()
        alike.save(path)
        with ModelFile(path, write=True) as file:
            size = sum(len(row.mask) for row in file.records())
            file.compact(against_mean=True)
            assert sum(len(row.mask) for row in file.records()) < 0.75 * size
        assert masks(supsup.load(path)) == masks(alike)
        with supsup.load(path, in_place=True) as model:
            add(model, "later")
            model.forget("later")
            with ModelFile(path) as file:
                assert file.reference is not None
            model.forget("task-3")
        with ModelFile(path) as file:
            assert file.reference is None
        assert masks(supsup.load(path)) == masks(model)
        assert len(model.tasks) == 39

    def test_the_mean_is_not_kept_where_it_does_not_help(self, path: Path) -> None:
        tiny(10).save(path)
        with ModelFile(path, write=True) as file:
            file.compact(against_mean=True)
            assert file.reference is None
        assert masks(supsup.load(path)) == masks(tiny(10))

    def test_a_name_can_be_learned_again(self, path: Path) -> None:
        tiny(3).save(path)
        with supsup.load(path, in_place=True) as model:
            model.forget("task-0")
            add(model, "task-0")
        assert supsup.load(path).tasks == ["task-1", "task-2", "task-0"]


class TestStrangeFiles:
    def test_each_gets_its_own_message(self, tmp_path: Path) -> None:
        model = tmp_path / "model.supsup"
        tiny(3).save(model)
        good = model.read_bytes()

        def with_pragma(name: str, pragma: str) -> Path:
            file = tmp_path / name
            file.write_bytes(good)
            connection = sqlite3.connect(file)
            connection.execute(pragma)
            connection.commit()
            connection.close()
            return file

        other = tmp_path / "other.db"
        sqlite3.connect(other).execute("CREATE TABLE cats (name)").connection.close()
        picture, empty, cut = tmp_path / "cat.png", tmp_path / "empty", tmp_path / "cut"
        picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(5000))
        empty.touch()
        cut.write_bytes(good[: len(good) // 2])
        cases: list[tuple[Path, str]] = [
            (tmp_path / "nowhere", "there is no file"),
            (tmp_path, "is a folder"),
            (empty, "is empty"),
            (picture, "not a supsup model file"),
            (other, "an SQLite file of another program"),
            (with_pragma("newer", "PRAGMA user_version=3"), "format 3 is newer .* pip install -U supsup"),
            (with_pragma("older", "PRAGMA user_version=0"), "damaged"),
            (with_pragma("view", "CREATE VIEW more AS SELECT 1"), "its tables are not those of a model file"),
            (with_pragma("lost", "DELETE FROM tasks WHERE position = 1"), "tasks are missing"),
            (with_pragma("renamed", "UPDATE tasks SET name = 'x' WHERE position = 1"), "task 'x' is damaged"),
            (
                with_pragma("swapped", "UPDATE tasks SET position = 9 WHERE position = 0"),
                "tasks are missing or changed",
            ),
            (
                with_pragma("classes", "UPDATE tasks SET classes = 3"),
                "'task-0' is damaged .*supsup repair classes",
            ),
            (with_pragma("null", "UPDATE tasks SET mask = 5"), "task 'task-0' is damaged"),
            (with_pragma("header", "UPDATE model SET header = replace(header, '0', '1')"), "checksum of its header"),
            (with_pragma("headless", "DELETE FROM model"), "no header"),
            (cut, "damaged"),
        ]
        for file, message in cases:
            with pytest.raises(SupSupError, match=message) as caught:
                supsup.load(file)
            assert str(file) in str(caught.value)

    def test_a_forged_header_is_an_error_too(self, path: Path) -> None:
        """Checksums can be forged: nonsense under a right checksum must not get further than an error of ours."""
        tiny(2).save(path)
        expected, original = masks(supsup.load(path)), path.read_bytes()
        with ModelFile(path) as file:
            header = file.header
        nonsense: list[Any] = [None, -1, 2**70, "x", [], {}, [0], ["x"], {"x": 1}, {"": [-1]}, {"a": "b"}, [[]] * 9]
        arguments: list[Any] = [{}, [], {"widths": [-3, 9]}, {"widths": 5}, {"widths": [10**7, 10**8]}]
        nonsense += [{"name": "FullyConnected", "arguments": value} for value in arguments]
        nonsense += [{"layers.0.weight": [10**9] * 4}]
        for name in (field.name for field in fields(header)):
            for value in nonsense:
                path.write_bytes(original)
                connection = sqlite3.connect(path)
                with ModelFile(path) as file:
                    checksums = [row.checksum for row in file.records()]
                forge_header(connection, replace(header, **{name: value}), checksums)
                connection.commit()
                connection.close()
                try:
                    found = supsup.load(path, device="cpu")
                except SupSupError:
                    continue
                assert masks(found) == expected, (name, value)

    @pytest.mark.parametrize("density", [0.05, 0.5])
    def test_no_mutation_loads_another_mask(self, path: Path, density: float) -> None:
        """Flips, cuts and overwrites anywhere: the same masks or an error of ours, never anything else."""
        model = tiny()
        for number in range(6):
            add(model, f"task-{number}", density)
        model.save(path)
        original, expected = path.read_bytes(), (masks(model), model.seed, model.recipe)
        chance = np.random.default_rng(int(os.environ.get("SUPSUP_MUTATION_SEED", "0")))
        counts = {"same": 0, "error": 0}
        for _ in range(int(os.environ.get("SUPSUP_MUTATIONS", "1600"))):
            path.write_bytes(mutated(original, chance))
            try:
                found = supsup.load(path, device="cpu")
            except SupSupError:
                counts["error"] += 1
                continue
            assert (masks(found), found.seed, found.recipe) == expected
            counts["same"] += 1
        print(counts)
        assert min(counts.values()) > 0


def mutated(content: bytes, chance: np.random.Generator) -> bytes:
    changed = bytearray(content)
    where = int(chance.integers(len(changed)))
    if chance.random() < 0.25:  # the first page and the other beginnings of pages are where structure lies
        where = min(len(changed) - 1, int(chance.integers(len(changed) // 1024)) * 1024 + int(chance.integers(100)))
    length = min(int(chance.integers(1, 40)), len(changed) - where)
    kinds: list[Callable[[], object]] = [
        lambda: changed.__setitem__(where, changed[where] ^ 1 << int(chance.integers(8))),
        lambda: changed.__setitem__(slice(where, where + length), chance.bytes(length)),
        lambda: changed.__setitem__(slice(where, where + length), bytes(length)),
        lambda: changed.__delitem__(slice(where, None)),
        lambda: changed.__delitem__(slice(where, where + length)),
        lambda: changed.__setitem__(slice(where, where), chance.bytes(length)),
        lambda: changed.__setitem__(slice(where, where + 1024), changed[:1024]),
    ]
    kinds[int(chance.choice(len(kinds), p=[0.4, 0.2, 0.1, 0.1, 0.05, 0.05, 0.1]))]()
    return bytes(changed)


def test_the_bytes_of_a_task_are_those_of_its_record(small: SupSup, tmp_path: Path) -> None:
    path = tmp_path / "model.supsup"
    small.save(path)
    with ModelFile(path) as file:
        sizes = {record.name: len(record.mask) + len(record.extras) for record in file.records()}
    assert {name: stored_bytes(path, name) for name in small.tasks} == sizes
    assert stored_bytes(path, "nobody") == 0


def test_the_bytes_of_a_task_in_no_model_file(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no model" * 100)
    with pytest.raises(SupSupError):
        stored_bytes(tmp_path / "text", "it")
