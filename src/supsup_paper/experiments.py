"""What an experiment of the paper is to the rest of this package, and how a dataclass of settings is written down.

Every kind of experiment is a frozen dataclass in mnist_experiments.py or image_experiments.py.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, fields, is_dataclass
from typing import Any, ClassVar, Protocol, Self, TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class FrozenSettings(Protocol):
    """A frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


class TrainingSettings(FrozenSettings, Protocol):
    """The settings of a training, which rows may share."""

    @property
    def tasks(self) -> int: ...


class Experiment(Protocol):
    """One row's experiment.

    kind      names the run that makes it; written to results/
    training  rows with equal ones are made from a single training
    own       what the row does with that training
    """

    kind: ClassVar[str]

    @property
    def training(self) -> TrainingSettings: ...

    @property
    def own(self) -> FrozenSettings: ...

    def quick(self) -> Self:
        """The same with fewer tasks and steps, for 2 cores."""
        ...


@dataclass(frozen=True)
class NoSettings:
    """For rows that have no settings of their own."""


def settings_json(settings: FrozenSettings) -> dict[str, Json]:
    """Settings by the names of their fields, with spaces; a field that is None by default is left out while it is."""
    values = {field: getattr(settings, field.name) for field in fields(settings)}
    return {
        field.name.replace("_", " "): _value(value)
        for field, value in values.items()
        if not (value is None and field.default is None)
    }


def _value(value: object) -> Json:
    if isinstance(value, tuple):
        return [_value(entry) for entry in value]
    if is_dataclass(value) and not isinstance(value, type):
        return settings_json(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"settings hold numbers, words, tuples and dataclasses, not {value!r}")
