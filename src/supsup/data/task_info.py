"""`TaskInfo`: what a model keeps about each task beside its mask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from supsup.data.inputs import Inputs
from supsup.data.labels import Label, Names


@dataclass(frozen=True)
class TaskInfo:
    """Metadata of one task; a model file stores it with the mask.

    names    class names as the user has them; None: the class numbers
    inputs   how raw inputs are turned into network inputs; None: inputs are given as the network takes them
    recipe   how the mask was trained, as plain values, where the recipe was chosen for this task
    normalisation  how pixels (bytes) become network inputs, where `inputs` is None; None: unknown
    rotated  the task was learned in all rotations of its images; each rotation has its outputs (`data/rotations.py`)
    """

    names: Names | None = None
    inputs: Inputs | None = None
    recipe: Mapping[str, str | int | float | None] | None = None
    rotated: bool = False
    normalisation: Inputs | None = None

    def called(self, label: int) -> Label:
        """The user's name for a class."""
        return label if self.names is None or label >= len(self.names) else self.names[label]

    def describe(self) -> dict[str, Any]:
        """The metadata as plain values: what `supsup tasks --json` and GET /tasks/NAME show; None: not known.

        A new field that users should see needs a line here and nowhere else in the command line and the server.
        """
        words = []
        if self.inputs is not None:
            count = self.inputs.gain.numel()
            words.append("tokens" if self.inputs.tokens else f"raw, {count} mean{'' if count == 1 else 's'}")
            words += ["channels last"] if self.inputs.channels_last else []
        words += ["in four rotations"] if self.rotated else []
        return {
            "class_names": None if self.names is None else list(self.names),
            "inputs": ", ".join(words) or None,
            "recipe": None if self.recipe is None else dict(self.recipe),
        }


NO_INFO = TaskInfo()
