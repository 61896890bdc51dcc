"""One shared adapter and a growing classifier. First-order on both groups it is the paper's "Adapter + Cls."; with the
adapter moved by zeroth-order steps and the classifier by first-order ones it is ZO-FC (Algorithm 1)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from zofc.methods.base import method
from zofc.methods.classifier import Classifier
from zofc.model.backbone import Backbone
from zofc.model.params import Moving, under
from zofc.model.peft import make_peft
from zofc.model.vit import State
from zofc.recipe import Recipe


@method("adapter")
class AdapterClassifier(Classifier):
    """The adapter is shared by all tasks and keeps moving; rows of old classes do not."""

    group_names: ClassVar[tuple[str, ...]] = ("peft", "head")

    def __init__(self, backbone: Backbone, recipe: Recipe) -> None:
        super().__init__(backbone, recipe)
        self.peft = make_peft(recipe.peft, backbone, self.generator("peft"))

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
