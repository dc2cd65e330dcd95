"""The one exception type for everything a user can cause; its message says what to do."""

_MOST_CHARACTERS = 500  # of one text that a message or a table quotes


class SupSupError(ValueError):
    """Something the caller can put right: a wrong shape, an unknown name, a damaged file."""


class Damaged(SupSupError):
    """A file does not hold what was written to it."""


def printable(text: object, most: int = _MOST_CHARACTERS) -> str:
    """A text of unknown origin, fit for a terminal: control characters and escapes are spelt out, the rest is cut."""
    whole = str(text)
    shown = whole[:most]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
    return shown if len(whole) <= most else f"{shown}…"
