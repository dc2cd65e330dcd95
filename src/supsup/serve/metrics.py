"""Counters and histograms of a server, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Requests, batches and finished jobs of one server, and the memory of its process; for use from any thread."""

    def __init__(self) -> None:
        self.registry = every = CollectorRegistry()
        ProcessCollector(registry=every)
        self.requests = Counter(
            "supsup_requests", "Requests answered, by route and status.", ("route", "status"), registry=every
        )
        self.seconds = Histogram(
            "supsup_request_seconds", "Seconds to answer a request.", ("route",), buckets=_SECONDS, registry=every
        )
        self.batches = Histogram("supsup_batch_images", "Images in a batch.", buckets=_IMAGES, registry=every)
        self.jobs = Counter("supsup_jobs", "Finished jobs, by kind and outcome.", ("kind", "state"), registry=every)
