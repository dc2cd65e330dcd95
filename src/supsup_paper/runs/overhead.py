"""What a mask costs in a forward pass of ResNet-50, from `supsup bench masking`."""

from __future__ import annotations

from supsup import nets
from supsup_paper.bench import measure_machine
from supsup_paper.bench.masking import bench_masking
from supsup_paper.catalogue.experiments import OverheadExperiment
from supsup_paper.records import RowResult
from supsup_paper.runs.environment import Environment
from supsup_paper.runs.schedule import PlannedTraining, Work


def run_mask_overhead(trial: PlannedTraining[OverheadExperiment], environment: Environment) -> Work:
    """Times of a plain pass, of one with a task selected, and of selecting another."""
    training = trial.experiment.training
    begin = environment.clock()
    measured = bench_masking(
        nets.resnet50(10),
        training.image,
        training.batch,
        training.tasks,
        measure_machine(environment.device),
        environment.device,
        precision=training.precision,
    )
    seconds = {"grading": environment.clock() - begin}
    figures = {
        "masking, % of a forward pass": {"": 100 * measured.switch_by_plain},
        "a selected task's pass, % of a plain one": {"": 100 * measured.selected_by_plain},
        "plain forward ms": {"": measured.plain_ms},
        "switching µs": {"": measured.switch_us},
    }
    for wanted in trial.wanted:
        for seed in trial.seeds:
            yield RowResult(wanted, seed, figures, seconds=seconds)
