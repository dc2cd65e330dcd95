"""`SupSupError`, for every mistake that a user can correct; the message says what to do."""

_MOST_CHARACTERS = 500  # of a text quoted in a message or table


class SupSupError(ValueError):
    """A mistake that the caller can correct: a wrong shape, an unknown name, a damaged file."""


class Damaged(SupSupError):
    """The content of a file is not what was written."""


def printable(text: object, most: int = _MOST_CHARACTERS) -> str:
    """Untrusted text, safe for a terminal: control characters are escaped, and long text is cut."""
    whole = str(text)
    shown = whole[:most]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
    return shown if len(whole) <= most else f"{shown}…"
