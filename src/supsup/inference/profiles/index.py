"""What features say of the tasks of a model: their Gaussians in one gallery, which grows with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from supsup.inference.profiles.gaussians import GaussianIndex
from supsup.inference.profiles.profile import TaskProfile


class ProfileIndex(NamedTuple):
    """Tasks whose traces suit so many features, at a version of the task table: their places in a gallery, by index."""

    version: object = None
    features: int = 0
    profiles: Sequence[TaskProfile] = ()
    gallery: GaussianIndex | None = None
    place: Mapping[int, int] = {}

    def at(
        self, version: object, features: int, every: Sequence[TaskProfile | None], device: torch.device
    ) -> ProfileIndex:
        """At another version, with the traces of all tasks; new ones are added to the gallery of the others."""
        suited = [
            (index, profile) for index, profile in enumerate(every) if profile is not None and profile.suits(features)
        ]
        profiles = [profile for _, profile in suited]
        added = self.gallery is not None and list(self.profiles) == profiles[: len(self.profiles)]
        gallery, new = (self.gallery, profiles[len(self.profiles) :]) if added else (None, profiles)
        if new:
            gallery = GaussianIndex([profile.gaussians for profile in new], device, gallery)
        return ProfileIndex(
            version, features, profiles, gallery, {index: number for number, (index, _) in enumerate(suited)}
        )

    def scores(
        self, seen: Sequence[Tensor], view_of: Mapping[int, int], candidates: Sequence[int]
    ) -> FeatureScores | None:
        """What features [r, b, d] say of each candidate's classes; None where one of them has left nothing that suits.

        seen     of the same images as different tasks see them
        view_of  which of those a task sees, by its index; the first where it is not there
        """
        if self.gallery is None or any(index not in self.place for index in candidates):
            return None
        gallery, several = self.gallery, len(seen) > 1
        of_classes = [gallery.class_scores(each.flatten(0, 1), absolute=several) for each in seen]
        of_tasks = [gallery.task_scores(scores).unflatten(0, seen[0].shape[:2]).mean(1) for scores in of_classes]
        columns = torch.tensor([self.place[index] for index in candidates], device=seen[0].device)
        levels = of_tasks[0][:, columns]
        for number in range(1, len(seen)):
            own = torch.tensor([view_of.get(index, 0) == number for index in candidates], device=seen[0].device)
            levels = torch.where(own, of_tasks[number][:, columns], levels)
        return FeatureScores([each.unflatten(0, seen[0].shape[:2]) for each in of_classes], view_of, self, levels)


class FeatureScores(NamedTuple):
    """What features say, for r decisions from b images each.

    all_classes  log p(features | class) [r, b, classes of all tasks], for each view
    view_of      which view a task has, by its index; the first where it is not there
    of_tasks     log p(features | task) [r, candidates]
    """

    all_classes: list[Tensor]
    view_of: Mapping[int, int]
    profile_index: ProfileIndex
    of_tasks: Tensor

    def of_classes(self, index: int) -> Tensor:
        """[r, b, classes] of one task."""
        assert self.profile_index.gallery is not None
        columns = self.profile_index.gallery.columns[self.profile_index.place[index]]
        return self.all_classes[self.view_of.get(index, 0)][..., columns]
