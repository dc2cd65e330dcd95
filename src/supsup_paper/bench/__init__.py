"""Measurements: ours, the plain way, and the floor that the machine sets, in one run."""

from supsup_paper.bench.inference import bench_growth as bench_growth
from supsup_paper.bench.inference import bench_inference as bench_inference
from supsup_paper.bench.masking import bench_masking as bench_masking
from supsup_paper.bench.measurement import Machine as Machine
from supsup_paper.bench.measurement import measure_machine as measure_machine
from supsup_paper.bench.memory import bench_memory as bench_memory
from supsup_paper.bench.training import bench_training as bench_training
from supsup_paper.bench.training import bench_unannounced as bench_unannounced
from supsup_paper.bench.training import learned as learned
from supsup_paper.bench.training import warmed_up as warmed_up
