"""Whether an adapter does harm, checked after each task that moved one: images of the task are classified by the
nearest class mean, on the adapted and on the frozen features; McNemar's exact test compares the answers.

The images are a sample of the training images in the test view, so that no advice rests on test images; each is
compared with means that leave it out. The adapter was trained on them, which favours it: the check finds features that
a too large learning rate has spoiled, not overfitting. Where class means do worse on the adapted features, the method's
own answer counts if it does better, since a trained classifier may read what class means cannot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from zofc import seeds
from zofc.data.loading import BatchSequence, Loader
from zofc.data.selection import Indices, select_per_class
from zofc.methods.classifier import Classifier
from zofc.training.incremental_model import IncrementalModel

FEWEST_IMAGES, MOST_IMAGES = 50, 500
SEEN_PER_IMAGE = 20  # images that the task's steps saw, for each one of the check: 1 to 5 % of the time
LEAST_LOSS = 1.0  # points of accuracy
SIGNIFICANCE = 0.01


@dataclass(frozen=True)
class AdapterCheck:
    """Accuracies in percent of two answers to the same images, and how likely so many more mistakes of the adapted one
    are by chance."""

    images: int
    adapted: float
    frozen: float
    chance: float

    @property
    def harmful(self) -> bool:
        """Whether the adapted answer is clearly worse."""
        return self.frozen - self.adapted >= LEAST_LOSS and self.chance < SIGNIFICANCE

    def warning(self, remedy: str) -> str:
        """What the user is told of a harmful adapter."""
        return (
            f"the adapter does harm: on {self.images} training images of the task, accuracy is {self.adapted:.1f} % "
            f"with it and {self.frozen:.1f} % on the frozen features; try a smaller learning rate: {remedy}"
        )


def check_adapter(model: IncrementalModel, loader: Loader, seen: int) -> AdapterCheck | None:
    """The check on the task just learned, whose steps saw `seen` images; None if it has no classes to compare."""
    method, task = model.method, len(model.tasks) - 1
    if not isinstance(method, Classifier):
        return None  # a plug-in: only a classifier says what its features are
    indices = _sample(loader.image_set.labels, seen, seeds.stream(model.recipe.seed, "adapter check", task))
    if len(np.unique(loader.image_set.labels[indices])) < 2:
        return None

    def batches() -> BatchSequence:
        return model.plain_batches(loader, indices)

    both, labels = method.all_features(
        batches, lambda images: torch.stack([method.extract(images), method.backbone.features(images)], dim=1)
    )  # (images, 2, width)
    adapted, frozen = both.unbind(1)
    right = nearest_mean_hits(frozen, labels)
    check = compare_hits(nearest_mean_hits(adapted, labels), right)
    if not check.harmful:
        return check
    classes = model.tasks[task]
    own, labels = method.all_features(batches, lambda images: model.scores(images)[:, classes.start : classes.stop])
    return max(check, compare_hits(own.argmax(-1) + classes.start == labels, right), key=lambda one: one.adapted)


def _sample(labels: Indices, seen: int, rng: np.random.Generator) -> Indices:
    """Images of all classes that have two, equally many of each."""
    names, counts = np.unique(labels, return_counts=True)
    most = min(max(seen // SEEN_PER_IMAGE, FEWEST_IMAGES), MOST_IMAGES)
    chosen = select_per_class(labels, max(most // len(names), 2), rng)
    return chosen[np.isin(labels[chosen], names[counts > 1])]


def nearest_mean_hits(features: Tensor, labels: Tensor) -> Tensor:
    """Whether the class mean nearest to an image by cosine is that of its class, its own mean without itself, (n,)."""
    x = features.double()
    classes, where = torch.unique(labels, return_inverse=True)
    sums = torch.zeros(len(classes), x.shape[-1], dtype=x.dtype).index_add(0, where, x)  # a cosine knows no length
    scores = F.normalize(x, dim=-1) @ F.normalize(sums, dim=-1).mT
    scores[torch.arange(len(x)), where] = F.cosine_similarity(x, sums[where] - x, dim=-1)
    hits: Tensor = scores.argmax(-1) == where
    return hits


def compare_hits(adapted: Tensor, frozen: Tensor) -> AdapterCheck:
    """McNemar's exact test, one-sided: of the images that one answer alone has right, each is as likely either's."""
    lost, won = int((frozen & ~adapted).sum()), int((adapted & ~frozen).sum())
    differing = lost + won
    chance = sum(math.comb(differing, count) for count in range(lost, differing + 1)) / 2**differing
    accuracy, without = (100 * float(hits.double().mean()) for hits in (adapted, frozen))
    return AdapterCheck(len(frozen), accuracy, without, chance)
