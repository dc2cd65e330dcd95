"""What a mask costs in a forward pass of ResNet-50, from `supsup bench masking`."""

from __future__ import annotations

from supsup import nets
from supsup.bench import measure_machine
from supsup.bench.masking import bench_masking
from supsup.paper.jobs import Job, Work
from supsup.paper.records import Finished
from supsup.paper.workshop import Workshop


def mask_overhead(job: Job, shop: Workshop) -> Work:
    """Times of a plain pass, of one with a task selected, and of selecting another."""
    training = job.training
    begin = shop.clock()
    measured = bench_masking(
        nets.resnet50(10),
        tuple(training["image"]),
        training["batch"],
        training["tasks"],
        measure_machine(shop.device),
        shop.device,
        precision=training["precision"],
    )
    seconds = {"grading": shop.clock() - begin}
    figures = {
        "masking, % of a forward pass": {"": 100 * measured.switch_by_plain},
        "a selected task's pass, % of a plain one": {"": 100 * measured.selected_by_plain},
        "plain forward ms": {"": measured.plain_ms},
        "switching µs": {"": measured.switch_us},
    }
    for wanted in job.wanted:
        for seed in job.seeds:
            yield Finished(wanted, seed, figures, seconds=seconds)
