"""Bytes of sparse masks at the paper's six densities: entropy bound, ours, the paper's count.

    python -m benchmarks mask_bytes

Random scores, 20 tasks; writes results/mask-bytes.json and prints the table. The paper's count includes 8 bytes for
each normalised channel in its published rows; here masks alone are compared, and the published rows are given beside.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch

from supsup.file import codec
from supsup_paper.provenance import provenance

TASKS = 20
PUBLISHED = {1: 408_432, 2: 508_432, 4: 695_592, 8: 1_035_792, 16: 1_630_032, 32: 2_487_472}  # with normalisation


def narrow_resnet18() -> list[tuple[int, ...]]:
    """Weight shapes: widths 20-40-80-160, a 3×3 stem, 1×1 shortcuts where the width changes, 5 outputs."""
    shapes: list[tuple[int, ...]] = [(20, 3, 3, 3)]
    before = 20
    for width in (20, 40, 80, 160):
        shapes += [(width, before, 3, 3)] + 3 * [(width, width, 3, 3)]
        shapes += [(width, before, 1, 1)] if width != before else []
        before = width
    return [*shapes, (5, 160)]


def random_mask(shapes: list[tuple[int, ...]], s: int, chance: np.random.Generator) -> codec.Bytes:
    """The top min(half, s·(in + out)) of random scores in each layer, as the bank packs it."""
    tensors = []
    for shape in shapes:
        scores = chance.random(math.prod(shape))
        keep = min(len(scores) // 2, s * (shape[0] + shape[1]))
        bits = np.zeros(len(scores), bool)
        bits[np.argpartition(scores, -keep)[-keep:]] = True
        tensors.append(np.packbits(bits, bitorder="little"))
    return np.concatenate(tensors)


def measure(s: int) -> dict[str, float]:
    """All figures of one row, in bytes for 20 tasks."""
    shapes, chance = narrow_resnet18(), np.random.default_rng(s)
    sizes, channels = [math.prod(shape) for shape in shapes], sum(shape[0] for shape in shapes[:-1])
    bound = ours = paper = published = seconds = 0.0
    for _ in range(TASKS):
        packed = random_mask(shapes, s, chance)
        counts = codec.kept_weights(packed, sizes)
        name, blob = codec.encode(packed, sizes)
        begin = time.perf_counter()
        assert np.array_equal(codec.decode(name, blob, sizes), packed)
        seconds += time.perf_counter() - begin
        bound += codec.entropy_bytes(packed, sizes)
        ours += len(blob)
        paper += codec.paper_bytes(counts, shapes)
        published += codec.paper_bytes(counts, shapes, channels)
    return {
        "s": s,
        "weights": sum(sizes),
        "kept": sum(counts),
        "density_percent": round(100 * sum(counts) / sum(sizes), 2),
        "entropy_bound": round(bound),
        "ours": round(ours),
        "paper_count": round(paper, 1),
        "ours_over_bound": round(ours / bound, 5),
        "ours_over_paper": round(ours / paper, 4),
        "paper_count_with_normalisation": round(published, 1),
        "published": PUBLISHED[s],
        "decode_ms": round(1000 * seconds / TASKS, 2),
    }


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    rows = [measure(s) for s in PUBLISHED]
    results = Path(__file__).parents[2] / "results"
    results.mkdir(exist_ok=True)
    record = {"tasks": TASKS, "rows": rows, "made by": provenance(torch.device("cpu"))}
    (results / "mask-bytes.json").write_text(json.dumps(record, indent=1) + "\n")
    print("| s | density % | entropy bound | ours | ours / bound | paper's count | ours / paper's |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['s']} | {row['density_percent']} | {row['entropy_bound']:,} | {row['ours']:,} | "
            f"{row['ours_over_bound']:.4f} | {row['paper_count']:,.0f} | {row['ours_over_paper']:.2f} |"
        )


if __name__ == "__main__":
    main()
