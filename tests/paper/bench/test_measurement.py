"""The figures of a measurement are written under the words that the committed results have."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import pytest

from supsup_paper.bench.inference import GrowthMeasurement, InferenceMeasurement
from supsup_paper.bench.masking import MaskingMeasurement
from supsup_paper.bench.measurement import as_record
from supsup_paper.bench.memory import MemoryMeasurement

RESULTS = Path(__file__).parents[3] / "results" / "bench"


@dataclass(frozen=True)
class Measured:
    tasks: int
    lone_ms: Annotated[float | None, "lone image ms"]


def test_a_record_has_the_words_in_order_and_no_figure_that_was_not_measured() -> None:
    assert list(as_record(Measured(3, 1.5)).items()) == [("tasks", 3), ("lone image ms", 1.5)]
    assert as_record(Measured(3, None)) == {"tasks": 3}


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        (InferenceMeasurement, "bench-infer-h200.json"),
        (InferenceMeasurement, "bench-infer-2-cores-trained.json"),
        (InferenceMeasurement, "infer-20000-h200.json"),
        (GrowthMeasurement, "search-growth-h200.json"),
        (GrowthMeasurement, "search-growth-2-cores.json"),
        (MaskingMeasurement, "masking-h200.json"),
        (MaskingMeasurement, "masking-2-cores.json"),
        (MemoryMeasurement, "bench-memory.json"),
    ],
)
def test_committed_results_have_the_same_words(kind: type[Any], file: str) -> None:
    """The report and the README read them; a figure under another word would vanish from both."""
    hints = get_type_hints(kind, include_extras=True)
    words = [getattr(hint, "__metadata__", (name,))[0] for name, hint in hints.items()]
    for row in json.loads((RESULTS / file).read_text())["rows"]:
        assert [word for word in words if word in row] == list(row)
    assert set(words) >= set(row)
