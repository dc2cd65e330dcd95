"""The paper's experiments: each trains what a trial asks for and hands out its rows as they are graded."""

from supsup_paper.catalogue import experiments as images
from supsup_paper.catalogue import experiments as mnist
from supsup_paper.runs.cifar import split_cifar100, transfer_speed
from supsup_paper.runs.cifar_baselines import split_cifar100_rivals
from supsup_paper.runs.hopfield import hopfield
from supsup_paper.runs.imagenet import split_imagenet, split_imagenet_bounds
from supsup_paper.runs.mnist import supsup, unannounced
from supsup_paper.runs.mnist_baselines import batche, bounds, consolidation, psp
from supsup_paper.runs.overhead import mask_overhead
from supsup_paper.runs.schedule import Runner, runner_for
from supsup_paper.runs.unnamed import unnamed

RUNS: dict[str, Runner] = {
    mnist.SupSupExperiment.kind: runner_for(mnist.SupSupExperiment, supsup, spread=lambda _: True),
    mnist.UnannouncedExperiment.kind: runner_for(mnist.UnannouncedExperiment, unannounced, sequential=True),
    mnist.PSPExperiment.kind: runner_for(mnist.PSPExperiment, psp, in_step=True, sequential=True, rival=True),
    mnist.BoundsExperiment.kind: runner_for(mnist.BoundsExperiment, bounds, in_step=True, sequential=True, rival=True),
    mnist.ConsolidationExperiment.kind: runner_for(
        mnist.ConsolidationExperiment, consolidation, in_step=True, sequential=True, rival=True
    ),
    mnist.BatchEExperiment.kind: runner_for(mnist.BatchEExperiment, batche, rival=True),
    mnist.HopfieldExperiment.kind: runner_for(mnist.HopfieldExperiment, hopfield, in_step=True),
    images.SplitCifarExperiment.kind: runner_for(
        images.SplitCifarExperiment, split_cifar100, spread=lambda experiment: experiment.training.transfer == "none"
    ),
    images.SplitCifarRivalExperiment.kind: runner_for(
        images.SplitCifarRivalExperiment, split_cifar100_rivals, in_step=True, sequential=True, rival=True
    ),
    images.TransferSpeedExperiment.kind: runner_for(
        images.TransferSpeedExperiment, transfer_speed, spread=lambda experiment: experiment.training.transfer == "none"
    ),
    images.SplitImagenetExperiment.kind: runner_for(
        images.SplitImagenetExperiment,
        split_imagenet,
        spread=lambda experiment: experiment.training.source is not None,  # others are read while training
    ),
    images.ImagenetBoundsExperiment.kind: runner_for(
        images.ImagenetBoundsExperiment, split_imagenet_bounds, in_step=True
    ),
    images.ScratchUnnamedExperiment.kind: runner_for(images.ScratchUnnamedExperiment, unnamed, spread=lambda _: True),
    images.PretrainedUnnamedExperiment.kind: runner_for(
        images.PretrainedUnnamedExperiment, unnamed, spread=lambda _: True
    ),
    images.OverheadExperiment.kind: runner_for(images.OverheadExperiment, mask_overhead),
}
