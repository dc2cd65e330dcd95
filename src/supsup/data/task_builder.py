"""One task from data as people have it, with what they call their classes and how their numbers are normalised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from supsup.data import formats as forms
from supsup.data.inputs import Inputs, Pixels, channels_first, fits, is_last, measured
from supsup.data.labels import encoded, numbered
from supsup.data.task import Part, Task
from supsup.runtime.errors import SupSupError
from supsup.runtime.validation import flag, quoted

Normalise = bool | Literal["own"]


def task(
    data: Any,
    name: str,
    *,
    test: Any = None,
    label: Any = None,
    layout: str | None = None,
    normalise: Normalise = True,
    tokens: bool = False,
) -> Task:
    """A task from arrays, frames, data sets or batches (docs/own-data.md), to learn with others by `learn_many`.

    test       data of the same form to test on; the training data by default
    label      the column or key of the labels, where data has names
    layout     "NCHW" or "NHWC", where the shape leaves doubt
    normalise  True: by this data's mean and deviation, or by those of the model's first task where they suit; "own": by
               this data's own; False: not at all
    tokens     whole numbers reach the network as they are, for an embedding
    """
    return made(
        forms.read(data, label), name, None if test is None else forms.read(test, label), layout, normalise, tokens
    )


def made(
    data: forms.Read, name: str, test: forms.Read | None, layout: str | None, normalise: Normalise, tokens: bool
) -> Task:
    """A task from data that was read."""
    labels, classes, names = encoded(data.labels)
    if len(labels) != len(data.inputs):
        raise SupSupError(f"there are {len(data.inputs)} inputs and {len(labels)} labels; give one label each")
    last = is_last(data.inputs, layout)
    images = _kept(data.inputs, last, flag(tokens, "tokens"))
    inputs = replace(_inputs(images, normalise), channels_last=last)
    train = Part(images, labels, inputs.gain, inputs.offset)
    if test is None:
        return Task(name, train, train, classes, names, inputs)
    held = _kept(test.inputs, is_last(test.inputs, layout), tokens)
    if held.shape[1:] != images.shape[1:]:
        raise SupSupError(f"test inputs have shape {list(held.shape[1:])}, those to learn {list(images.shape[1:])}")
    part = Part(held, numbered(test.labels, names, classes, "test labels"), inputs.gain, inputs.offset)
    return Task(name, train, part, classes, names, inputs)


def in_terms_of(own: Task, others: Inputs | None, always: bool = False) -> Task:
    """The task with the normalisation of a model's other tasks, where it suits and the user did not say otherwise.

    others  None: the model takes its inputs as the network sees them
    always  whether it suits or not
    """
    inputs = own.inputs
    if inputs is None or not (always or (fits(inputs, others) and not inputs.fixed)):
        return own
    gain, offset = (torch.tensor(1.0), torch.tensor(0.0)) if others is None else (others.gain, others.offset)
    return _seen_by(own, replace(inputs, gain=gain, offset=offset))


def as_trained(own: Task, pixels: Pixels) -> Task:
    """The task with the normalisation that trained weights expect, where the user did not say otherwise."""
    if own.inputs is None or own.inputs.fixed:
        return own
    return _seen_by(own, pixels.inputs_of(own.train.images, own.inputs))


def _seen_by(task: Task, inputs: Inputs) -> Task:
    train, test = (replace(part, gain=inputs.gain, offset=inputs.offset) for part in (task.train, task.test))
    return replace(task, train=train, test=test, inputs=inputs)


def _kept(raw: Tensor, last: bool, tokens: bool) -> Tensor:
    """Inputs as a part holds them: channels first; whole numbers as they are only if they are tokens."""
    if tokens and raw.is_floating_point():
        raise SupSupError("tokens are whole numbers; the inputs are real ones")
    images = channels_first(raw) if last else raw.contiguous()
    kept = images.long() if tokens else images if images.dtype == torch.uint8 else images.float()
    return kept.view(kept.shape)  # an object of its own: tasks that share one are normalised together


def _inputs(images: Tensor, normalise: Any) -> Inputs:
    if images.dtype == torch.int64:
        return Inputs(tokens=True)
    if isinstance(normalise, str) and normalise == "own":
        return Inputs(*measured(images), fixed=True)
    if not isinstance(normalise, bool):
        raise SupSupError(f"normalise is {quoted(normalise)}; give True, False or 'own'")
    return Inputs(*measured(images)) if normalise else Inputs(fixed=True)
