"""What a task takes in a file is what lies there."""

from pathlib import Path

import pytest

from supsup import SupSup, SupSupError
from supsup.file.modelfile import ModelFile
from supsup.file.sizes import stored_bytes


def test_the_bytes_of_a_task_are_those_of_its_record(small: SupSup, tmp_path: Path) -> None:
    path = tmp_path / "model.supsup"
    small.save(path)
    with ModelFile(path) as file:
        sizes = {record.name: len(record.mask) + len(record.extras) for record in file.records()}
    assert {name: stored_bytes(path, name) for name in small.tasks} == sizes
    assert stored_bytes(path, "nobody") == 0


def test_a_file_that_is_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no model" * 100)
    with pytest.raises(SupSupError):
        stored_bytes(tmp_path / "text", "it")
