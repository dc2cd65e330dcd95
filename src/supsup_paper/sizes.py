"""What a saved model's masks and statistics take, coded by us and by the paper's own count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from supsup.file import codec
from supsup.file.codec import Bytes
from supsup.file.format import Header, TaskRecord
from supsup.file.modelfile import ModelFile
from supsup_paper import records

_BESIDE = "beside masks"


def bytes_of(file: Path) -> dict[str, int]:
    """Bytes of masks, of statistics and by the paper's count; without the entropy coder the masks are left out."""
    with ModelFile(file) as model:
        header, masks = model.header, _masks(model, list(model.records()))
    shapes = list(header.shapes.values())
    paper = sum(codec.paper_bytes(codec.kept(mask, header.sizes), shapes, channels(header)) for mask in masks)
    statistics = len(masks) * 8 * channels(header)
    return _coded(masks, header) | {"statistics": statistics, "paper's count": round(paper)}


def bytes_kept(file: Path) -> dict[str, int]:
    """Of all tasks: coded masks, and all else that the file has of them: heads, running statistics, what finds them."""
    with ModelFile(file) as model:
        rows = list(model.records())
        masks = _masks(model, rows)
    return _coded(masks, model.header) | {_BESIDE: sum(len(row.extras) for row in rows)}


def _masks(model: ModelFile, rows: Sequence[TaskRecord]) -> list[Bytes]:
    return [row.decoded(model.header, model.reference).packed for row in rows]


def _coded(masks: Sequence[Bytes], header: Header) -> dict[str, int]:
    """Their bytes; nothing without the entropy coder."""
    if not codec.available():
        return {}
    return {"masks": sum(len(codec.encode(mask, header.sizes)[1]) for mask in masks)}


def channels(header: Header) -> int:
    """Normalised channels: every convolution's outputs."""
    return sum(shape[0] for shape in header.shapes.values() if len(shape) == 4)


def add_bytes(folder: Path, entry: str) -> list[Path]:
    """Measure the models that lie beside an entry's rows, and write their bytes into the rows, counted as they were."""
    changed = []
    for path in sorted((folder / entry).glob("*-seed*.json")):
        record, file = records.read_record(path), path.with_suffix(".supsup")
        if record is not None and file.exists():
            count = bytes_kept if _BESIDE in record["bytes"] else bytes_of
            records.write_record(path, record | {"bytes": count(file)})
            changed.append(path)
    return changed
