"""LAE (learning, accumulation, ensemble): the PEFT module that is trained, and a slow copy that follows it.

`official`: the offline copy is made at the start of the second task, and the module's pause at the start of a task
(`optimize.peft.start`) is not made in the first one. `zofc`: the copy is there from the start, so that it stays near
"no module" for thousands of steps, the pause is made in every task, and an adapter stands beside the MLP.
"""

from __future__ import annotations

from copy import deepcopy
from typing import ClassVar

import torch
from torch import Tensor

from zofc.methods.adapter import AdapterClassifier
from zofc.methods.base import method
from zofc.model.backbone import Backbone
from zofc.model.heads import LinearHead
from zofc.model.peft_base import PeftModule
from zofc.recipe import Group, Recipe


@method("lae")
class LearnAccumulateEnsemble(AdapterClassifier):
    """A trained module and its moving average; the answer is the larger of their two probabilities."""

    regressed: ClassVar[bool] = False

    def __init__(self, backbone: Backbone, recipe: Recipe) -> None:
        self.official = recipe.method.variant == "official"
        if not self.official:
            recipe = recipe.model_copy(update={"peft": recipe.peft.model_copy(update={"beside": "mlp"})})
        super().__init__(backbone, recipe)
        self.offline: PeftModule | None = None

    def extend(self, classes: range) -> None:
        new = classes not in self.tasks
        super().extend(classes)
        task = len(self.tasks) - 1
        if new and self.official and isinstance(self.head, LinearHead):  # its authors start the rows near zero
            rows = torch.empty(len(classes), self.head.width)
            self.head.set_rows(self.block, rows.normal_(0, 0.001, generator=self.generator("head", self.block)))
        if task == (1 if self.official else 0):
            self.offline = deepcopy(self.peft)

    def plan(self, name: str, group: Group) -> Group:
        unpaused = name == "peft" and self.official and len(self.tasks) == 1
        return group.model_copy(update={"start": 0}) if unpaused else group

    def after_step(self) -> None:
        if self.offline is None:
            return
        for slow, fast in zip(self.offline.parameters(), self.peft.parameters(), strict=True):
            slow.lerp_(fast, 1 - self.recipe.lae.decay)

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """log max(p_online, p_offline), whose order is that of the probabilities."""
        prepared = self.prepare(images)
        online = self.head.logits({}, self.features({}, prepared)).log_softmax(-1)
        if self.offline is None:
            return online
        features = self.backbone.leave(prepared, self.offline.inserts({}))
        return torch.maximum(online, self.head.logits({}, features).log_softmax(-1))
