"""Counters and histograms of a server, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Requests, batches and jobs of one server, and the memory of its process; safe to use from any thread."""

    def __init__(self) -> None:
        self._registry = every = CollectorRegistry()
        ProcessCollector(registry=every)
        self._requests = Counter(
            "supsup_requests", "Requests answered, by route and status.", ("route", "status"), registry=every
        )
        self._seconds = Histogram(
            "supsup_request_seconds", "Seconds to answer a request.", ("route",), buckets=_SECONDS, registry=every
        )
        self._batches = Histogram("supsup_batch_images", "Images in a batch.", buckets=_IMAGES, registry=every)
        self._jobs = Counter("supsup_jobs", "Finished jobs, by kind and outcome.", ("kind", "state"), registry=every)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, images: int) -> None:
        """Count a batch of predictions."""
        self._batches.observe(images)

    def job(self, kind: str, state: str) -> None:
        """Count a finished job."""
        self._jobs.labels(kind, state).inc()

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a value that is read whenever the metrics are."""
        Gauge(name, text, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        """Everything in the Prometheus text format."""
        return generate_latest(self._registry)
