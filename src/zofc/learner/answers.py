"""What a learner answers: a class with its probability for an image, accuracy and confusions for a set of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from zofc.training.calibration import calibration_error


@dataclass(frozen=True)
class Prediction:
    """A class name and its probability."""

    name: str
    probability: float


@dataclass(frozen=True)
class Answer:
    """The most likely classes of an image, best first, and whether it is of a learned class at all."""

    best: list[Prediction]
    known: bool


@dataclass(frozen=True)
class Evaluation:
    """Accuracy (percent) in all and per class, and how often class i (row) was taken for class j (column)."""

    classes: tuple[str, ...]
    accuracy: float
    per_class: dict[str, float]
    confusion: NDArray[np.int64]  # (true, predicted)
    left_out: tuple[str, ...] = ()  # classes of the source that were never learned
    calibration_error: float | None = None  # percent: how far probabilities are from the share of right answers; None
    # for a lone class, which is answered whatever the image is

    def confused(self, most: int = 10) -> list[tuple[str, str, int]]:
        """The pairs that were taken for each other most often: true class, answer, images."""
        wrong = self.confusion * (1 - np.eye(len(self.classes), dtype=np.int64))
        pairs = np.argsort(-wrong, axis=None, kind="stable")[:most]
        counts = [(*divmod(int(pair), len(self.classes)), int(wrong.flat[pair])) for pair in pairs]
        return [(self.classes[true], self.classes[guess], count) for true, guess, count in counts if count]


def evaluate_answers(
    classes: tuple[str, ...], answers: Tensor, labels: Tensor, probabilities: Tensor, left_out: tuple[str, ...] = ()
) -> Evaluation:
    """Compare answered and true class ids (images,), and the probabilities (images, classes) of the answers."""
    size = len(classes)
    confusion = np.bincount(labels.numpy() * size + answers.numpy(), minlength=size * size).reshape(size, size)
    totals, hits = confusion.sum(1), confusion.diagonal()
    per_class = {name: 100 * float(hits[i]) / int(totals[i]) for i, name in enumerate(classes) if totals[i]}
    accuracy = 100 * float(hits.sum()) / int(totals.sum())
    error = 100 * calibration_error(probabilities, labels) if size > 1 else None
    return Evaluation(classes, accuracy, per_class, confusion, left_out, error)
