"""The paper's experiments: each trains what a job asks for and hands out its rows as they are graded."""

from supsup.paper.jobs import Run
from supsup.paper.runs.cifar import split_cifar100
from supsup.paper.runs.cifar_rivals import split_cifar100_rivals
from supsup.paper.runs.hop import hopfield
from supsup.paper.runs.imagenet import split_imagenet
from supsup.paper.runs.masks import supsup, unannounced
from supsup.paper.runs.overhead import mask_overhead
from supsup.paper.runs.rivals import batche, bounds, consolidation, psp
from supsup.paper.runs.transfer import transfer_speed

RUNS: dict[str, Run] = {
    "supsup": Run(supsup),
    "unannounced": Run(unannounced, sequential=True),
    "psp": Run(psp, in_step=True, sequential=True, rival=True),
    "bounds": Run(bounds, in_step=True, sequential=True, rival=True),
    "consolidation": Run(consolidation, in_step=True, sequential=True, rival=True),
    "batche": Run(batche, rival=True),
    "hopfield": Run(hopfield, in_step=True),
    "split-cifar100": Run(split_cifar100),
    "split-cifar100-rivals": Run(split_cifar100_rivals, sequential=True, rival=True),
    "transfer-speed": Run(transfer_speed),
    "split-imagenet": Run(split_imagenet),
    "mask-overhead": Run(mask_overhead),
}
