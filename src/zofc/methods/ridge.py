"""Ridge regression on the frozen features, in closed form: nothing is trained, nothing is forgotten (`model.ridge`)."""

from __future__ import annotations

import torch
from torch import Tensor

from zofc import seeds
from zofc.methods.base import Batches, Method, method
from zofc.model.backbone import Backbone
from zofc.model.ridge import RidgeHead
from zofc.recipe import Recipe


@method("ridge")
class Ridge(Method):
    """The training-free row that a user would pick today; with a random projection it is RanPAC without its adapter."""

    def __init__(self, backbone: Backbone, recipe: Recipe) -> None:
        super().__init__(backbone, recipe)
        plan = recipe.ridge
        generator = self.generator("projection")
        self.head = RidgeHead(backbone.width, plan.projection, plan.budget, generator, self.device)

    def extend(self, classes: range) -> None:
        if classes not in self.tasks:
            self.head.grow(len(classes))
        super().extend(classes)

    def end_task(self, batches: Batches) -> None:
        features, labels = self.all_features(batches, self.backbone.features)
        self.head.learn(features, labels, seeds.stream(self.recipe.seed, "held out", len(self.tasks) - 1))

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        return self.head.scores(self.backbone.features(images))
