"""Responses of filters to grey images on a CPU, compiled; `inference/profiles/filters.py` defines them."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from supsup.kernels.numba_loops import shared_out, thread_count


def numba_filter_responses(pictures: Tensor, weights: Tensor, faint: float, least: float, at_once: int) -> Tensor:
    """[n, 2 · filters, 2, 2] for images [n, height, width] and filters [count, patch, patch]; `at_once` at a time.

    The result equals torch's to the bit: sums are taken in the same order, over many places or filters at once. Buffers
    are reused from one group of images to the next.
    """
    (n, *sides), (filters, patch, _) = pictures.shape, weights.shape
    height, width = (side - patch + 1 for side in sides)
    threads, by_pixel = thread_count(), weights.flatten(1).T.contiguous()
    patches, answers = torch.empty(at_once, patch**2, height * width), torch.empty(at_once, height * width, filters)
    contrast, out = torch.empty(at_once, height, width), torch.empty(n, 2, filters, 2, 2)
    for some, means in zip(pictures.split(at_once), out.split(at_once)):
        shown = some.unfold(1, patch, 1).unfold(2, patch, 1).permute(0, 3, 4, 1, 2)
        patches[: len(some)].view(shown.shape).copy_(shown)
        found = torch.bmm(patches[: len(some)].mT, by_pixel.expand(len(some), -1, -1), out=answers[: len(some)])
        _contrasts(threads)(some.numpy(), patch, np.float32(faint**2), contrast[: len(some)].numpy(), threads)
        divisors = contrast[: len(some)].sqrt()  # torch's square root, which rounds differently
        _quarters(threads)(found.numpy(), divisors.numpy(), np.float32(least), means.numpy(), threads)
    return out.flatten(1, 2)


@shared_out()
def _contrasts(pictures, patch, faint, out, threads):  # type: ignore[no-untyped-def]
    """The variance of every patch, plus `faint`."""
    images, height, width = out.shape
    zero, size = np.float32(0), np.float32(patch * patch)
    for thread in numba.prange(threads):
        level, square = np.empty(width, np.float32), np.empty(width, np.float32)
        for image in range(thread * images // threads, (thread + 1) * images // threads):
            for row in range(height):
                level[:] = zero
                square[:] = zero
                for down in range(patch):
                    for right in range(patch):
                        for column in range(width):
                            pixel = pictures[image, row + down, column + right]
                            level[column] += pixel
                            square[column] += pixel * pixel
                for column in range(width):
                    mean = level[column] / size
                    variance = square[column] / size - mean * mean
                    out[image, row, column] = (zero if variance < zero else variance) + faint


@shared_out()
def _quarters(answers, contrast, least, out, threads):  # type: ignore[no-untyped-def]
    """Means over quarters of answers [n, h · w, filters] by contrast [n, h, w], of either sign, above the least."""
    images, height, width = contrast.shape
    filters, zero = answers.shape[2], np.float32(0)
    rows, columns = (height + 1) // 2, (width + 1) // 2  # of a quarter; quarters share the middle of odd sides
    size = np.float32(rows), np.float32(columns)
    for thread in numba.prange(threads):
        sums = np.empty((2, 2, 2, filters), np.float32)
        more, less = np.empty(filters, np.float32), np.empty(filters, np.float32)
        for image in range(thread * images // threads, (thread + 1) * images // threads):
            sums[:] = zero
            for row in range(height):
                for column in range(width):
                    divisor = contrast[image, row, column]
                    for index in range(filters):
                        answer = answers[image, row * width + column, index] / divisor
                        above, below = answer - least, -answer - least
                        more[index] = zero if above < zero else above  # NaN stays NaN
                        less[index] = zero if below < zero else below
                    for lower in range(0 if row < rows else 1, 2 if row >= height // 2 else 1):
                        for right in range(0 if column < columns else 1, 2 if column >= width // 2 else 1):
                            for index in range(filters):
                                sums[0, lower, right, index] += more[index]
                                sums[1, lower, right, index] += less[index]
            for sign in range(2):
                for lower in range(2):
                    for right in range(2):
                        for index in range(filters):
                            out[image, sign, index, lower, right] = sums[sign, lower, right, index] / size[0] / size[1]
