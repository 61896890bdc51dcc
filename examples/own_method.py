"""First-session adaptation: class means, as in SimpleCIL, of features that an adapter learned in the first task.

zofc run zofc/base method.name=first-session data.source=folder:my_images --plugin examples/own_method.py
"""

import torch
from torch import Tensor

from zofc.methods import Batches, SimpleCIL, method
from zofc.model import Backbone, Moving, State, make_peft, under
from zofc.recipe import Recipe


@method("first-session")
class FirstSession(SimpleCIL):  # its cosine head grows by one tensor of rows per task
    """Class means of features adapted to the first task."""

    group_names = ("peft", "head")  # the keys of a recipe's `optimize`

    def __init__(self, backbone: Backbone, recipe: Recipe) -> None:
        super().__init__(backbone, recipe)
        self.peft = make_peft(recipe.peft, backbone, self.generator("peft")).to(self.device)

    def groups(self) -> dict[str, dict[str, Tensor]]:
        if len(self.tasks) > 1:
            return {}  # what is not returned cannot change, under any order
        peft = self.named(dict(self.peft.named_parameters()), "peft.")
        return {"peft": peft, "head": self.named(self.head.moving_names([0]), "head.")}

    def prepare(self, images: Tensor) -> State:  # once per step: everything before the first adapter
        return self.backbone.enter(images, self.peft.entrance)

    def features(self, moving: Moving, prepared: State) -> Tensor:  # ([queries,] batch, width)
        return self.backbone.leave(prepared, self.peft.inserts(under(moving, "peft")))

    def logits(self, moving: Moving, features: Tensor) -> Tensor:  # ([queries,] batch, classes of the first task)
        return self.head.logits(under(moving, "head"), features, [0])

    def loss(self, moving: Moving, features: Tensor, labels: Tensor) -> Tensor:  # one value per query
        log_probabilities = self.logits(moving, features).log_softmax(-1)
        return -log_probabilities[..., torch.arange(len(labels), device=labels.device), labels].mean(-1)

    def hits(self, moving: Moving, features: Tensor, labels: Tensor) -> Tensor:  # for the progress display
        return (self.logits(moving, features).argmax(-1) == labels).sum(-1)

    def extract(self, images: Tensor) -> Tensor:
        return self.features({}, self.prepare(images))

    def end_task(self, batches: Batches) -> None:  # class means replace the rows
        self.head.set_rows(len(self.tasks) - 1, self.class_means(batches, self.tasks[-1], self.extract))

    def scores(self, images: Tensor) -> Tensor:  # over all classes seen
        return self.head.logits({}, self.extract(images))
