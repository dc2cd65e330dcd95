"""A program that learns what is not yet in a model file, on a Ray cluster: python driver.py ADDRESS FILE TASKS."""

import sys

from supsup import Recipe, SupSup, data, load, nets
from supsup.data import Stream

RECIPE = Recipe(steps=60)


def stream_of(tasks: int) -> Stream:
    """Permutations of real digits."""
    return data.permuted(data.digits(), tasks=tasks, seed=0)


def new_model() -> SupSup:
    """A model without tasks."""
    return SupSup(nets.FullyConnected((784, 60, 20)), seed=1, recipe=RECIPE, device="cpu")


def main(address: str, path: str, tasks: int) -> None:
    with load(path, in_place=True, device="cpu") as model:
        model.learn_many([task for task in stream_of(tasks) if task.name not in model.tasks], cluster=address)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
