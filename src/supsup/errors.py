"""The one exception type for everything a user can cause; its message says what to do."""


class SupSupError(ValueError):
    """Something the caller can put right: a wrong shape, an unknown name, a damaged file."""


class Damaged(SupSupError):
    """A file does not hold what was written to it."""
