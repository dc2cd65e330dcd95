"""Files must be found where the user put them, fetched when they are nowhere, and never trusted unchecked."""

from __future__ import annotations

import gzip
import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from supsup.data.datasets import Archive, find_file, locate_archive, read_verified
from supsup.runtime.downloads import kept_in
from supsup.runtime.errors import SupSupError

PLAIN = {"images.gz": b"many pixels", "labels.gz": b"some labels"}
STORED = {name: gzip.compress(plain, mtime=0) for name, plain in PLAIN.items()}
UNREACHABLE = "http://127.0.0.1:9"  # the discard port: nothing listens there
ARCHIVE = Archive(
    folders=("toys", "toy-data"),
    checksums={name: (hashlib.md5(stored).hexdigest(), None) for name, stored in STORED.items()},
    mirrors=(UNREACHABLE,),
)


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def fill(folder: Path, files: dict[str, bytes] = STORED) -> Path:
    folder.mkdir(parents=True)
    for name, stored in files.items():
        (folder / name).write_bytes(stored)
    return folder


def contents(archive: Archive, data_dir: Path | None = None) -> dict[str, bytes]:
    folder = locate_archive(archive, data_dir)
    return {name: read_verified(archive, find_file(folder, name)) for name in archive.checksums}


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data folder, an empty cache, no proxy between us and 127.0.0.1."""
    monkeypatch.delenv("SUPSUP_DATA", raising=False)
    monkeypatch.delenv("SUPSUP_OFFLINE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    """The address of a server over the folder tmp_path / "served"."""
    (tmp_path / "served").mkdir()
    handler = partial(QuietHandler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("inner", ["", "toys", "toy-data"])
def test_a_named_folder_may_hold_the_files_or_a_folder_of_them(tmp_path: Path, inner: str) -> None:
    fill(tmp_path / "data" / inner)
    assert contents(ARCHIVE, tmp_path / "data") == PLAIN


def test_unzipped_files_do_as_well(tmp_path: Path) -> None:
    fill(tmp_path / "data", {name.removesuffix(".gz"): plain for name, plain in PLAIN.items()})
    assert contents(ARCHIVE, tmp_path / "data") == PLAIN


@pytest.mark.parametrize("inner", ["toys", "toy-data"])
def test_the_variable_names_the_folder_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inner: str) -> None:
    fill(tmp_path / "data" / inner)
    monkeypatch.setenv("SUPSUP_DATA", str(tmp_path / "data"))
    assert contents(ARCHIVE) == PLAIN


def test_a_named_folder_without_the_files_is_an_error_even_where_they_could_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silently using other data than the folder the user named would be worse than stopping."""
    fill(tmp_path / "elsewhere" / "toys")
    monkeypatch.setenv("SUPSUP_DATA", str(tmp_path / "elsewhere"))
    fill(tmp_path / "data" / "toys", {"images.gz": STORED["images.gz"]})
    with pytest.raises(SupSupError, match=r"^labels.gz not found in .*data \(nor in its folder toys\)"):
        locate_archive(ARCHIVE, tmp_path / "data")


def test_a_wrong_checksum_names_file_and_both_sums(tmp_path: Path) -> None:
    fill(tmp_path / "data", {**STORED, "labels.gz": b"damaged"})
    found = hashlib.md5(b"damaged").hexdigest()
    message = f"labels.gz is damaged .* {found}, not {ARCHIVE.checksums['labels.gz'][0]}; delete it"
    with pytest.raises(SupSupError, match=message):
        contents(ARCHIVE, tmp_path / "data")


def test_the_first_mirror_that_answers_is_used_and_only_once(tmp_path: Path, mirror: str) -> None:
    served = tmp_path / "served"
    fill(served / "good")
    archive = replace(ARCHIVE, mirrors=(UNREACHABLE, f"{mirror}/missing", f"{mirror}/good"))
    assert contents(archive) == PLAIN
    assert sorted(path.name for path in kept_in(archive.folders[0]).iterdir()) == ["images.gz", "labels.gz"]
    for path in (served / "good").iterdir():
        path.unlink()
    assert contents(archive) == PLAIN


def test_a_mirror_with_damaged_files_leaves_nothing_in_the_cache(tmp_path: Path, mirror: str) -> None:
    fill(tmp_path / "served" / "bad", dict.fromkeys(STORED, b"damaged"))
    archive = replace(ARCHIVE, mirrors=(f"{mirror}/bad",))
    with pytest.raises(SupSupError, match=f"bad/images.gz: the MD5 is .*, not {ARCHIVE.checksums['images.gz'][0]}"):
        locate_archive(archive)
    assert not kept_in(archive.folders[0]).exists()


def test_without_a_network_the_error_says_which_files_to_put_where() -> None:
    with pytest.raises(SupSupError) as caught:
        locate_archive(ARCHIVE)
    message = str(caught.value)
    assert f"{UNREACHABLE}/images.gz: " in message
    assert f"Put images.gz, labels.gz into {kept_in(ARCHIVE.folders[0])}, or into DIR/toys" in message


def test_a_cache_that_cannot_be_written_is_reported_the_same_way(tmp_path: Path, mirror: str) -> None:
    fill(tmp_path / "served" / "good")
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(SupSupError, match=r"Put images.gz, labels.gz into"):
        locate_archive(replace(ARCHIVE, mirrors=(f"{mirror}/good",)))


def test_what_a_killed_download_has_left_goes_with_the_next(tmp_path: Path, mirror: str) -> None:
    """Parts would pile up in the cache; those of a process that may still be at work stay."""
    fill(tmp_path / "served" / "good")
    archive = replace(ARCHIVE, mirrors=(f"{mirror}/good",))
    cache = kept_in(archive.folders[0])
    cache.mkdir(parents=True)
    old, new = cache / ".images.gz.0123abcd.part", cache / ".images.gz.4567abcd.part"
    for part in (old, new):
        part.write_bytes(b"half")
    os.utime(old, (0, 0))
    assert contents(archive) == PLAIN
    assert sorted(path.name for path in cache.iterdir()) == [new.name, "images.gz", "labels.gz"]


def test_a_file_larger_than_it_may_be_is_not_kept(tmp_path: Path, mirror: str) -> None:
    fill(tmp_path / "served" / "good")
    archive = replace(ARCHIVE, mirrors=(f"{mirror}/good",), most=5)
    with pytest.raises(SupSupError, match="at most 5 are allowed"):
        locate_archive(archive)
    assert not kept_in(archive.folders[0]).exists()


def test_unzipped_files_with_a_known_checksum_are_checked(tmp_path: Path) -> None:
    checksums = {name: (sum, hashlib.md5(PLAIN[name]).hexdigest()) for name, (sum, _) in ARCHIVE.checksums.items()}
    known = replace(ARCHIVE, checksums=checksums)
    fill(tmp_path / "data", {name.removesuffix(".gz"): plain for name, plain in PLAIN.items()})
    assert contents(known, tmp_path / "data") == PLAIN
    (tmp_path / "data" / "labels").write_bytes(b"other labels")
    with pytest.raises(SupSupError, match="labels is damaged or another file"):
        contents(known, tmp_path / "data")


def test_without_a_home_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(SupSupError, match="set SUPSUP_DATA"):
        locate_archive(ARCHIVE)
