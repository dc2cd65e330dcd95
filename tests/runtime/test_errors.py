"""Texts of unknown origin in messages: nothing that a terminal would obey."""

import pytest

from supsup.runtime.errors import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Aufgabe 3 ✓", "Aufgabe 3 ✓"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("two\nlines\tand\r", r"two\nlines\tand\r"),
        ("\u202eright to left", r"\u202eright to left"),
        ("\x9b31m", r"\x9b31m"),
        ("\ud800", r"\ud800"),
        (b"\x1b", r"b'\x1b'"),
        ("x" * 600, "x" * 500 + "…"),
    ],
)
def test_control_characters_are_spelt_out_and_long_texts_cut(text: object, shown: str) -> None:
    assert printable(text) == shown
    assert printable(text).isprintable()
