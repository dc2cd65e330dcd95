"""What a saved model's masks and statistics take, coded by us and by the paper's own count."""

from __future__ import annotations

from pathlib import Path

from supsup.file import codec
from supsup.file.format import Header
from supsup.file.modelfile import ModelFile
from supsup.paper import records


def bytes_of(file: Path) -> dict[str, int]:
    """Bytes of masks, of statistics and by the paper's count; without the entropy coder the masks are left out."""
    masks, paper = 0, 0.0
    with ModelFile(file) as model:
        header, rows = model.header, list(model.records())
        for row in rows:
            packed = row.decoded(header, model.reference).packed
            if codec.available():
                masks += len(codec.encode(packed, header.sizes)[1])
            kept = codec.kept(packed, header.sizes)
            paper += codec.paper_bytes(kept, list(header.shapes.values()), channels(header))
    found = {"statistics": len(rows) * 8 * channels(header), "paper's count": round(paper)}
    return {"masks": masks} | found if codec.available() else found


def channels(header: Header) -> int:
    """Normalised channels: every convolution's outputs."""
    return sum(shape[0] for shape in header.shapes.values() if len(shape) == 4)


def add_bytes(folder: Path, entry: str) -> list[Path]:
    """Measure the models that lie beside an entry's rows, and write their bytes into the rows."""
    changed = []
    for path in sorted((folder / entry).glob("*-seed*.json")):
        record, file = records.read(path), path.with_suffix(".supsup")
        if record is not None and file.exists():
            records.write(path, record | {"bytes": bytes_of(file)})
            changed.append(path)
    return changed
