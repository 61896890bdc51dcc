"""APER: an adapter learns in the first task alone; every class is then the mean of plain and adapted features side by
side, scored by one cosine over both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from zofc.methods.adapter import AdapterClassifier
from zofc.methods.base import FROZEN, Batches, Method, method
from zofc.methods.classifier import Classifier
from zofc.model.backbone import Backbone
from zofc.model.heads import CosineHead
from zofc.model.ridge import CalibrationSample
from zofc.recipe import Recipe


@method("aper")
class Aper(AdapterClassifier):
    """Class means of plain and first-task-adapted features; nothing moves after the first task."""

    falls_back: ClassVar[bool] = False
    trained_tasks: ClassVar[float] = 1
    refuses_domains: ClassVar[str | None] = "the means of a new domain would take the place of those before"

    def __init__(self, backbone: Backbone, recipe: Recipe) -> None:
        super().__init__(backbone, recipe)
        self.means = CosineHead(2 * backbone.width)
        self.ridge = self.make_ridge(2 * backbone.width)

    @property
    def mean_width(self) -> int:
        return 2 * self.backbone.width

    @classmethod
    def check(cls, recipe: Recipe, task_sizes: Sequence[int], learned: int = 0) -> None:
        super().check(recipe, task_sizes[: max(0, 1 - learned)], learned)  # only the first task is trained

    def extend(self, classes: range) -> None:
        if not self.tasks:
            Classifier.extend(self, classes)  # the classifier that trains the adapter, dropped after the task
        else:
            Method.extend(self, classes)
            for part in (self.ridge, self.sums):
                if part is not None:
                    part.grow(len(classes))
        self.means.grow(len(classes), self.generator("means", len(self.tasks) - 1), self.device)

    def groups(self) -> dict[str, dict[str, Tensor]]:
        return super().groups() if len(self.tasks) <= self.trained_tasks else {}

    def begin_task(self, batches: Batches) -> str | None:
        return super().begin_task(batches) if len(self.tasks) == 1 else None

    def end_task(self, batches: Batches) -> str | None:
        self.average(batches, self.tasks[-1])
        return self.regress(batches, self.embed)

    @classmethod
    def keeps_means(cls, recipe: Recipe) -> bool:
        return True

    def include(self, batches: Batches) -> str | None:
        self.average(batches, range(0))
        return self.regress(batches, self.embed, trained=False)

    def average(self, batches: Batches, new: range) -> None:
        if self.sums is not None:
            self.add_to_means(self.sums, self.means, batches, self.embed, new)

    def calibration_sample(self, batches: Batches, counts: Tensor) -> CalibrationSample:
        if self.ridge is not None and self.ridge.left_out is not None:
            return self.ridge.left_out
        return self.means_left_out(self.means, batches, counts if self.sums is None else self.sums.counts, self.embed)

    @torch.no_grad()
    def embed(self, images: Tensor) -> Tensor:
        """Plain and adapted features, (batch, 2 · width)."""
        return torch.cat([self.backbone.features(images), self.extract(images)], dim=-1)

    @property
    def embedding(self) -> str:
        return FROZEN  # after the first task, and nothing is asked before its end

    def read_out(self, features: Tensor) -> Tensor:
        return self.means.logits({}, features) if self.ridge is None else self.ridge.scores(features)
