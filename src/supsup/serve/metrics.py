"""What a server has done so far, in the text form of Prometheus."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """How often a value fell below each of some bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._counts, self._sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """One more value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: str = "") -> list[str]:
        """Prometheus' lines for it."""
        total, lines = 0, []
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{{labels}{"," if labels else ""}le="{bound}"}} {total}')
        braces = f"{{{labels}}}" if labels else ""
        return [*lines, f"{name}_sum{braces} {self._sum:.6f}", f"{name}_count{braces} {total}"]


class Metrics:
    """Counts of requests, batches and jobs; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._batches = Histogram(_IMAGES)
        self._jobs: Counter[tuple[str, str]] = Counter()

    def request(self, route: str, status: int, seconds: float) -> None:
        """A request that was answered."""
        with self._lock:
            self._requests[route, status] += 1
            self._seconds.setdefault(route, Histogram(_SECONDS)).add(seconds)

    def batch(self, images: int) -> None:
        """Images that were answered in one go."""
        with self._lock:
            self._batches.add(images)

    def job(self, kind: str, state: str) -> None:
        """A job that has ended."""
        with self._lock:
            self._jobs[kind, state] += 1

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Everything, with values of this moment: by name what each is, and its value."""
        with self._lock:
            lines = _head("supsup_requests_total", "counter", "Requests answered, by route and status.")
            for (route, status), count in sorted(self._requests.items()):
                lines.append(f'supsup_requests_total{{route="{route}",status="{status}"}} {count}')
            lines += _head("supsup_request_seconds", "histogram", "Seconds from a request to its answer, by route.")
            for route, seconds in sorted(self._seconds.items()):
                lines += seconds.lines("supsup_request_seconds", f'route="{route}"')
            lines += _head("supsup_batch_images", "histogram", "Images answered in one go.")
            lines += self._batches.lines("supsup_batch_images")
            lines += _head("supsup_jobs_total", "counter", "Changes of the model that have ended, by kind and outcome.")
            for (kind, state), count in sorted(self._jobs.items()):
                lines.append(f'supsup_jobs_total{{kind="{kind}",state="{state}"}} {count}')
        for name, (what, value) in gauges.items():
            lines += [*_head(name, "gauge", what), f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def resident_bytes() -> int:
    """Memory of this process, 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * 4096


def _head(name: str, kind: str, what: str) -> list[str]:
    return [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]
