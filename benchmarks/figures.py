"""Writes the figures of a benchmark as JSON, with the command, commit and device that made them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from supsup_paper.provenance import provenance


def write_figures(figures: dict[str, Any], out: Path | None, device: torch.device | None = None) -> None:
    """Print the figures, and write them to a file if one is named."""
    made_by = provenance(torch.device("cpu") if device is None else device)
    text = json.dumps({"figures": figures, "made by": made_by}, indent=1, default=str)
    if out is not None:
        out.write_text(text + "\n")
    print(text)
