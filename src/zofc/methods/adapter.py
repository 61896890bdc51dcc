"""One shared adapter and a growing classifier. First-order on both groups it is the paper's "Adapter + Cls."; with the
adapter moved by zeroth-order steps and the classifier by first-order ones it is ZO-FC (Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zofc.methods.base import Batches, method
from zofc.methods.classifier import Classifier
from zofc.methods.fallback import FallbackReadout
from zofc.methods.ridge import RidgeSettings, held_out_stream, make_ridge_head
from zofc.model.backbone import Backbone
from zofc.model.params import Moving, under
from zofc.model.peft import make_peft
from zofc.model.ridge import CalibrationSample, RidgeHead, held_out
from zofc.model.vit import State
from zofc.recipe import Recipe

UNTRAINED = (
    "the adapter stays untrained, in later tasks too, since a task of one class has a constant loss: the frozen "
    "features answer. To train it, begin a new model with two classes or more"
)


@method("adapter")
class AdapterClassifier(Classifier):
    """The adapter is shared by all tasks and keeps moving; rows of old classes do not. With a regression in place of
    the rows, one on the frozen features may answer where the adapter does not help (`ridge.fallback`)."""

    group_names: ClassVar[tuple[str, ...]] = ("peft", "head")
    falls_back: ClassVar[bool] = True

    def __init__(self, backbone: Backbone, recipe: Recipe) -> None:
        super().__init__(backbone, recipe)
        self.peft = make_peft(recipe.peft, backbone, self.generator("peft"))
        self.fallback = None
        if self.guarded:
            self.fallback = FallbackReadout(lambda: make_ridge_head(self, backbone.width), self.device)

    @property
    def guarded(self) -> bool:
        """Whether the frozen features may answer."""
        return self.recipe.method.readout == "ridge" and self.recipe.section("ridge", RidgeSettings).fallback

    def make_ridge(self, width: int) -> RidgeHead | None:
        return None if self.guarded else super().make_ridge(width)

    def extend(self, classes: range) -> None:
        if self.fallback is not None and classes not in self.tasks:
            self.fallback.grow(len(classes))
        super().extend(classes)

    def groups(self) -> dict[str, dict[str, Tensor]]:
        head = super().groups()
        if not head:
            return {}
        return {"peft": self.named(dict(self.peft.named_parameters()), "peft."), **head}

    def prepare(self, images: Tensor) -> State:
        return self.backbone.enter(images, self.peft.entrance)

    def features(self, moving: Moving, prepared: State) -> Tensor:
        inserts = self.peft.inserts(under(moving, "peft"), self.noise)
        return self.backbone.leave(prepared, inserts)

    # -- the answer without the adapter ------------------------------------------------------------------------------

    def held_back(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.fallback is None or not self._moves:
            return np.arange(0)
        held = held_out(len(labels), held_out_stream(self))
        trained = np.delete(np.arange(len(labels)), held)
        alone = np.setdiff1d(labels, labels[trained])  # classes of which all images would be held back
        return np.sort(held[~np.isin(labels[held], alone)])

    @property
    def _moves(self) -> bool:
        """Whether the current task moves the adapter."""
        plan = self.recipe.optimize.get("peft")
        return plan is not None and len(self.tasks) <= (plan.tasks or math.inf) and not self.single

    @property
    def untrained(self) -> bool:
        """Whether the adapter is as it was drawn: no step has moved it."""
        own = self.peft.state_dict()
        drawn = make_peft(self.recipe.peft, self.backbone, self.generator("peft")).state_dict()
        return all(torch.equal(drawn[name].to(value), value) for name, value in own.items())

    @property
    def _stays_untrained(self) -> bool:
        """Whether the tasks that may move the adapter are over and none has: one of a single class cannot. Later ones
        must not, since the features of classes learned before would be those of another adapter."""
        plan = self.recipe.optimize.get("peft")
        return plan is not None and len(self.tasks) >= (plan.tasks or math.inf) and not self._moves and self.untrained

    def regress(self, batches: Batches, extract: Callable[[Tensor], Tensor], trained: bool = True) -> str | None:
        if self.fallback is None:
            return super().regress(batches, extract, trained)
        both, labels = self.all_features(
            batches,
            self.fixed_batches(lambda images: torch.stack([extract(images), self.backbone.features(images)], dim=1)),
        )
        unseen = torch.arange(len(labels))
        if trained and self._moves:  # all but a few were seen; of few images, all
            unseen = torch.from_numpy(self.held_back(labels.cpu().numpy()))
        notice = self.fallback.learn(both, labels, lambda: held_out_stream(self), unseen)
        if not self._stays_untrained:
            return notice
        first = trained and len(self.tasks) == self.recipe.optimize["peft"].tasks
        return UNTRAINED if first else None  # both answers are the same: there is nothing to compare

    def remove_classes(self, gone: Sequence[int]) -> None:
        super().remove_classes(gone)
        if self.fallback is not None:
            self.fallback.recount()

    @property
    def left_out(self) -> CalibrationSample | None:
        if self.fallback is None:
            return super().left_out
        return self.fallback.chosen.left_out if self.fallback.chosen.left_out_of_all else None

    def calibration_sample(self, batches: Batches, counts: Tensor) -> CalibrationSample:
        left_out = None if self.fallback is None else self.fallback.chosen.left_out
        return super().calibration_sample(batches, counts) if left_out is None else left_out

    def embed(self, images: Tensor) -> Tensor:
        frozen = self.fallback is not None and self.fallback.choice == "frozen"
        return self.backbone.features(images) if frozen else self.extract(images)

    def read_out(self, features: Tensor) -> Tensor:
        return super().read_out(features) if self.fallback is None else self.fallback.chosen.scores(features)

    @property
    def embedding(self) -> Hashable | None:
        fixed = super().embedding
        return fixed if fixed is None or self.fallback is None else (fixed, self.fallback.choice)
