"""The one exception type for everything a user can cause; its message says what to do."""


class SupSupError(ValueError):
    """Something the caller can put right: a wrong shape, an unknown name, a damaged file."""


class Damaged(SupSupError):
    """A file does not hold what was written to it."""


def printable(text: str, most: int = 200) -> str:
    """Text from a file or a user as a terminal may show it: control characters escaped, cut after `most` characters."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:most])
    return shown if len(text) <= most else shown + "…"
