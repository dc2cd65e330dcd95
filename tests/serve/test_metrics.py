"""Counts in a form that Prometheus reads."""

import re

from supsup.serve.metrics import Metrics, resident_bytes

LINE = re.compile(r'^(# (HELP|TYPE) \w+ .+|\w+(\{(\w+="[^"\\\n]*",?)+\})? [0-9.e+-]+)$')


def test_every_line_is_in_prometheus_form_and_counts_add_up() -> None:
    metrics = Metrics()
    for seconds in (0.0005, 0.02, 99):
        metrics.request("predict", 200, seconds)
    metrics.request("predict", 400, 0.02)
    for images in (1, 16, 16, 300):
        metrics.batch(images)
    metrics.job("learn", "done")
    text = metrics.text({"supsup_tasks": ("Tasks.", 3)})
    lines = text.splitlines()
    assert all(LINE.match(line) for line in lines)
    assert 'supsup_requests_total{route="predict",status="200"} 3' in lines
    assert 'supsup_request_seconds_bucket{route="predict",le="0.025"} 3' in lines
    assert 'supsup_request_seconds_bucket{route="predict",le="+Inf"} 4' in lines
    assert 'supsup_batch_images_bucket{le="16"} 3' in lines
    assert "supsup_batch_images_count 4" in lines
    assert "supsup_batch_images_sum 333.000000" in lines
    assert 'supsup_jobs_total{kind="learn",state="done"} 1' in lines
    assert "supsup_tasks 3" in lines


def test_memory_is_that_of_this_process() -> None:
    assert resident_bytes() == 0 or 10 << 20 < resident_bytes() < 64 << 30
