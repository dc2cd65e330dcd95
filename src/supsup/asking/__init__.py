"""Questions to a model: images as its tasks see them, the task they belong to, and the answer under its mask."""

from supsup.asking.asking import Asking as Asking
