"""Ridge regression on the frozen features, in closed form: nothing is trained, nothing is forgotten (`model.ridge`)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from zofc import seeds
from zofc.methods.base import FROZEN, Batches, Method, method
from zofc.model.backbone import Backbone
from zofc.model.image_ridge import ImageRidge
from zofc.model.ridge import CalibrationSample, RidgeHead, draw_projection
from zofc.recipe import Recipe, Strict
from zofc.recipe.bounds import Bytes, Megabytes, Projection


class RidgeSettings(Strict):
    """The closed-form head: ridge regression on the features."""

    projection: Projection = Field(0, description="width of the random projection; 0: none")
    orthogonal: bool = Field(False, description="projection: blocks of directions at right angles")
    budget: Bytes | None = Field(
        64_000_000, description="bytes for the largest matrix, which caps the projection; null: no limit"
    )
    fallback: bool = Field(
        False,
        description="also regress from the frozen features, which answer where they do better on images that the "
        "adapter was not trained on; a fifth of a task's images is held back for that",
    )
    strength_from: Literal["all", "task", "images"] = Field(
        "all",
        description="what λ is chosen with: all tasks so far; the current task alone, as in RanPAC; or all images, by "
        "a rule that does not depend on how they were divided into tasks, with their features kept",
    )
    keep_features: Megabytes = Field(
        256_000_000, description="bytes for the features that strength_from=images keeps; beyond, no class is removed"
    )


def make_ridge_head(method: Method, width: int) -> RidgeHead:
    """The regression with the recipe's settings, on features of so many numbers."""
    settings = method.recipe.section("ridge", RidgeSettings)

    def draw(size: int) -> Tensor:
        return draw_projection(width, size, settings.orthogonal, method.generator("projection"))

    shape = width, settings.projection, settings.budget, draw, method.device
    if settings.strength_from == "images":
        return ImageRidge(*shape, settings.keep_features)
    head = RidgeHead(*shape)
    head.strength_from = settings.strength_from
    return head


def held_out_stream(method: Method) -> np.random.Generator:
    """The random stream that chooses the images of the current task which are held out."""
    return seeds.stream(method.recipe.seed, "held out", len(method.tasks) - 1)


@method("ridge", settings=RidgeSettings)
class Ridge(Method):
    """The training-free row that a user would pick today; with a random projection it is RanPAC without its adapter."""

    def __init__(self, backbone: Backbone, recipe: Recipe) -> None:
        super().__init__(backbone, recipe)
        self.head = make_ridge_head(self, backbone.width)

    def extend(self, classes: range) -> None:
        if classes not in self.tasks:
            self.head.grow(len(classes))
        super().extend(classes)

    def end_task(self, batches: Batches) -> None:
        features, labels = self.all_features(batches, self.fixed_batches(self.backbone.features))
        self.head.learn(features, labels, held_out_stream(self))

    @classmethod
    def includes_images(cls, recipe: Recipe) -> bool:
        return True

    def include(self, batches: Batches) -> None:
        self.end_task(batches)

    @property
    def left_out(self) -> CalibrationSample | None:
        return self.head.left_out if self.head.left_out_of_all else None

    def calibration_sample(self, batches: Batches, counts: Tensor) -> CalibrationSample:
        return self.head.left_out or super().calibration_sample(batches, counts)

    @property
    def embedding(self) -> str:
        return FROZEN

    def read_out(self, features: Tensor) -> Tensor:
        return self.head.scores(features)
