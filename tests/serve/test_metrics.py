"""Metrics that Prometheus can read."""

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from supsup.serve.app import Metrics


def test_counts_add_up() -> None:
    """Dashboards depend on these names and labels."""
    metrics = Metrics()
    for seconds in (0.0005, 0.02, 99):
        metrics.requests.labels("predict", 200).inc()
        metrics.seconds.labels("predict").observe(seconds)
    for images in (1, 16, 16, 300):
        metrics.batches.observe(images)
    metrics.jobs.labels("learn", "done").inc()
    samples = {
        (sample.name, *(sample.labels[key] for key in sorted(sample.labels, reverse=True))): sample.value
        for family in text_string_to_metric_families(generate_latest(metrics.registry).decode())
        for sample in family.samples
    }
    assert samples["supsup_requests_total", "200", "predict"] == 3
    assert samples["supsup_request_seconds_bucket", "predict", "0.025"] == 2
    assert samples["supsup_request_seconds_bucket", "predict", "+Inf"] == 3
    assert samples["supsup_batch_images_bucket", "16.0"] == 3
    assert samples[("supsup_batch_images_count",)] == 4
    assert samples[("supsup_batch_images_sum",)] == 333
    assert samples["supsup_jobs_total", "done", "learn"] == 1
    assert samples.get(("process_resident_memory_bytes",), 1 << 30) > 10 << 20
