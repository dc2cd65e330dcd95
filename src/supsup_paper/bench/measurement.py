"""What a measurement's figures are called in tables and JSON files.

A measurement is a frozen dataclass. A field `lone_ms: Annotated[float, "lone image ms"]` is written under the words
given, any other field under its name.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def as_record(measurement: DataclassInstance) -> dict[str, object]:
    """The figures of a measurement by their words, in order, without those that are None."""
    hints = get_type_hints(type(measurement), include_extras=True)
    record = {}
    for entry in fields(measurement):
        words: str = getattr(hints[entry.name], "__metadata__", (entry.name,))[0]
        value = getattr(measurement, entry.name)
        if value is not None:
            record[words] = value
    return record
