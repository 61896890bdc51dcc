"""LAE (learning, accumulation, ensemble): the PEFT module that is trained, and a slow copy that follows it.

The offline copy is made at the start of the second task, and the module's pause at the start of a task
(`optimize.peft.start`) is not made in the first one. Rows start from N(0, 0.001²) with a bias of zero.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from zofc.methods.adapter import AdapterClassifier
from zofc.methods.base import Batches, Method, method
from zofc.model.backbone import Backbone
from zofc.model.peft_base import PeftModule
from zofc.model.ridge import CalibrationSample
from zofc.recipe import Group, Recipe, Strict


class LaeSettings(Strict):
    """Learning, accumulation, ensemble."""

    decay: Annotated[float, Field(ge=0, lt=1)] = Field(0.9999, description="of the offline copy's moving average")
    frozen: bool | None = Field(
        None, description="true: the module stays as it starts; null: under zeroth order with method.variant=zofc"
    )


@method("lae", settings=LaeSettings)
class LearnAccumulateEnsemble(AdapterClassifier):
    """A trained module and its moving average; the answer is the larger of their two probabilities."""

    regressed: ClassVar[bool] = False
    linear_init: ClassVar[str] = "normal"
    copied_in: ClassVar[int] = 1  # the task at whose start the offline copy is made

    def __init__(self, backbone: Backbone, recipe: Recipe) -> None:
        super().__init__(backbone, recipe)
        self.settings = recipe.section("lae", LaeSettings)
        self.offline: PeftModule | None = None

    def extend(self, classes: range) -> None:
        super().extend(classes)
        if len(self.tasks) - 1 == self.copied_in:
            self.offline = deepcopy(self.peft)

    @property
    def frozen(self) -> bool:
        """Whether the classifier is trained alone."""
        return bool(self.settings.frozen)

    def groups(self) -> dict[str, dict[str, Tensor]]:
        groups = super().groups()
        return {name: group for name, group in groups.items() if name == "head" or not self.frozen}

    def plan(self, name: str, group: Group) -> Group:
        unpaused = name == "peft" and len(self.tasks) == 1
        return group.model_copy(update={"start": 0}) if unpaused else group

    def after_step(self) -> None:
        if self.offline is None:
            return
        for slow, fast in zip(self.offline.parameters(), self.peft.parameters(), strict=True):
            slow.lerp_(fast, 1 - self.settings.decay)

    @torch.no_grad()
    def calibration_sample(self, batches: Batches, counts: Tensor) -> CalibrationSample:
        return Method.calibration_sample(self, batches, counts)

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """log max(p_online, p_offline), whose order is that of the probabilities."""
        prepared = self.prepare(images)
        online = self.head.logits({}, self.features({}, prepared)).log_softmax(-1)
        if self.offline is None:
            return online
        features = self.backbone.leave(prepared, self.offline.inserts({}))
        return torch.maximum(online, self.head.logits({}, features).log_softmax(-1))
