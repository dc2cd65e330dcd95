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
    offset = method.label_offset(task)
    method.net.train()
    for positions in batch_positions(method.seed, task.name, len(part), recipe.batch_size, recipe.steps):
        x, y = part.batch(positions.to(method.device))
        loss = cross_entropy(method.run(state, x), y + offset)
        penalty = method.penalty(state)
        optimiser.zero_grad()
        (loss if penalty is None else loss + penalty).backward()
        method.before_update(state)
        optimiser.step()
        method.after_update(state)
    method.finish(task, {name: value.detach() for name, value in state.items()})
