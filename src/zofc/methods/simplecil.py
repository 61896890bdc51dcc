"""SimpleCIL: nothing is trained; a class is the mean feature of its training images, scored by cosine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from zofc.errors import RecipeError
from zofc.methods.base import FROZEN, Batches, Method, method
from zofc.model.backbone import Backbone
from zofc.model.class_means import ClassMeans
from zofc.model.heads import CosineHead
from zofc.model.ridge import CalibrationSample
from zofc.recipe import Recipe


@method("simplecil")
class SimpleCIL(Method):
    """Class means of the frozen features; the anchor row of every table."""

    refuses_domains: ClassVar[str | None] = "the means of a new domain would take the place of those before"

    def __init__(self, backbone: Backbone, recipe: Recipe) -> None:
        super().__init__(backbone, recipe)
        self.head = CosineHead(backbone.width)
        self.means = ClassMeans(backbone.width)

    @classmethod
    def check(cls, recipe: Recipe, task_sizes: Sequence[int], learned: int = 0) -> None:
        super().check(recipe, task_sizes, learned)
        if recipe.head.kind != "cosine":
            raise RecipeError("head.kind: class means are scored by cosine; use head.kind=cosine")

    def extend(self, classes: range) -> None:
        super().extend(classes)
        self.means.grow(len(classes))
        self.head.grow(len(classes), self.generator("head", len(self.tasks) - 1), self.device)

    def end_task(self, batches: Batches) -> None:
        self.add_to_means(self.means, self.head, batches, self.backbone.features, self.tasks[-1])

    @classmethod
    def includes_images(cls, recipe: Recipe) -> bool:
        return True

    def include(self, batches: Batches) -> None:
        self.add_to_means(self.means, self.head, batches, self.backbone.features, range(0))

    def calibration_sample(self, batches: Batches, counts: Tensor) -> CalibrationSample:
        return self.means_left_out(self.head, batches, self.means.counts, self.backbone.features)

    @property
    def embedding(self) -> str:
        return FROZEN

    def read_out(self, features: Tensor) -> Tensor:
        return self.head.logits({}, features)
