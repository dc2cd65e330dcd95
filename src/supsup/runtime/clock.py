"""The current time, as model files and results state it."""

from datetime import UTC, datetime


def now() -> str:
    """UTC in ISO format, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
