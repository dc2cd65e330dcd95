"""Training a rival's next task on any module with autograd: the path that defines what is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.functional import cross_entropy

from supsup.data import Task
from supsup.training.order import batch_positions

if TYPE_CHECKING:
    from supsup.baselines.rival import Method


def learn_plain(method: Method, task: Task) -> None:
    """One task, batch after batch."""
    method.check(task)
    recipe, first = method.recipe_of_next(), not method.own
    state = {name: value.clone() for name, value in method.begin(task).items()}
    trained = [value.requires_grad_() for name, value in state.items() if method.trains(name, first)]
    optimiser = recipe.build(trained)
    part = task.train.on(method.device)
    steps, offset = recipe.steps_for(len(part)), method.label_offset(task)
    order = batch_positions(method.seed, task.name, len(part), recipe.batch_size, steps)
    for step, (x, y) in enumerate(part.training_batches(order, method.seed, task.name)):
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate(step, steps)
        method.net.train()
        loss = cross_entropy(method.run(state, x), y + offset)
        penalty = method.penalty(state)
        optimiser.zero_grad()
        (loss if penalty is None else loss + penalty).backward()
        method.before_update(state)
        optimiser.step()
        method.after_update(state)
    method.finish(task, {name: value.detach() for name, value in state.items()})
