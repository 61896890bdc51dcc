"""A closed-form readout that is never much worse than without an adapter: regressions on the adapted and on the frozen
features learn side by side, and the one with more right answers so far speaks.

Only images that neither regression was fitted on are counted, and of a task that moved the adapter only those that its
steps did not see either. Where both are equally often right, the frozen features answer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from zofc.model.image_ridge import ImageRidge, content_keys
from zofc.model.params import Resizable
from zofc.model.ridge import RidgeHead

CHOICES = ("adapted", "frozen")


class FallbackReadout(Resizable):
    """Two regressions and how often each was right. `make` makes one. Regressions that keep the features of all images
    are asked about all of them after every task, so that the choice does not depend on how images came."""

    resizable = ("trained",)
    trained: Tensor  # keys of the images that the adapter was trained on, where the regressions have keys
    right: Tensor  # (choices,)
    asked: Tensor  # images

    def __init__(self, make: Callable[[], RidgeHead], device: torch.device) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({name: make() for name in CHOICES})
        self.register_buffer("right", torch.zeros(len(CHOICES), dtype=torch.int64, device=device))
        self.register_buffer("trained", torch.zeros(0, dtype=torch.int64, device=device))
        self.register_buffer("asked", torch.zeros((), dtype=torch.int64, device=device))

    @property
    def choice(self) -> str:
        """Which features answer: the frozen ones unless the adapted ones are better."""
        adapted, frozen = self.right.tolist()
        return "adapted" if adapted > frozen else "frozen"

    @property
    def chosen(self) -> RidgeHead:
        """The regression that answers."""
        head = self.heads[self.choice]
        assert isinstance(head, RidgeHead)
        return head

    def grow(self, classes: int) -> None:
        """Make room for the classes of a new task."""
        for head in self._heads():
            head.grow(classes)

    def learn(self, both: Tensor, labels: Tensor, seed: Callable[[], np.random.Generator], unseen: Tensor) -> str:
        """Include a task with its features (images, choices, width), of which `unseen` were not trained on; what is
        chosen, and why."""
        before = self.choice if self.asked else None
        if self._keep_images():
            keys = content_keys(both[:, CHOICES.index("frozen")])
            steps_saw = torch.ones(len(keys), dtype=torch.bool)
            steps_saw[unseen] = False
            self.trained = torch.cat([self.trained, keys[steps_saw].to(self.trained)])
            for number, one in enumerate(self._keep_images()):
                one.learn(both[:, number], labels, keys=keys)
            self.recount()
            return self._explain(before)
        for number, head in enumerate(self._heads()):
            left = head.learn(both[:, number], labels, seed())
            fair = torch.isin(left.images, unseen)
            guesses = left.scores.argmax(-1).cpu()[fair]
            self.right[number] += (guesses == labels.cpu()[left.images[fair]]).sum()
        self.asked += fair.sum()
        return self._explain(before)

    def recount(self) -> None:
        """Count right answers anew, where features are kept; of images that were removed, nothing is left."""
        for number, head in enumerate(self._keep_images()):
            if head.held is None:
                continue
            places = head.held.images.to(head.keys.device)
            fair = ~torch.isin(head.keys[places], self.trained.to(head.keys))
            right = head.held.scores.argmax(-1)[fair] == head.labels[places][fair]
            self.right[number], self.asked[...] = right.sum(), fair.sum()
            if head.complete:
                self.trained = self.trained[torch.isin(self.trained, head.keys.to(self.trained))]

    def _keep_images(self) -> list[ImageRidge]:
        return [head for head in self.heads.values() if isinstance(head, ImageRidge)]

    def _explain(self, before: str | None) -> str:
        if not self.asked:
            return "the frozen features answer: there are too few images to tell whether the adapter helps"
        adapted, frozen = (100 * float(count) / int(self.asked) for count in self.right)
        verb = "answer" if before in (None, self.choice) else "answer now"
        return (
            f"the {self.choice} features {verb}: of {int(self.asked)} images that the adapter was not trained on, "
            f"{adapted:.1f} % are right with it, {frozen:.1f} % without"
        )

    def _heads(self) -> list[RidgeHead]:
        return [head for head in self.heads.values() if isinstance(head, RidgeHead)]
