"""Probabilities that mean what they say, and "none of these": a temperature and a threshold, fitted after each task.

Scores are what a method compares, not log-probabilities: the softmax of regression values or cosines is nearly uniform.
With scores s of an image, p = softmax(β s), where β (an inverse temperature) minimizes the negative log-likelihood of n
training images of known label y,

    Σ_i [ log Σ_c exp(β s_ic) − β Σ_c t_ic s_ic ],    t_i = (1 − δ) onehot(y_i) + δ / C,    δ = 1 / (n + 1).

It is convex, so its derivative, Σ_i (E_p[s_i] − Σ_c t_ic s_ic), has one zero, found by bisection. The smoothed labels t
keep β finite where every image is classified right: n images are no evidence for an error rate below about 1 / n.

A readout answers the images that it was fitted on too confidently. Closed forms (ridge regression, class means) are
therefore scored with each image left out. Where rows are trained there is no such form: their scores are those of
training images in the test view, and the probabilities are too high by as much as the classifier overfits.

An image is "none of these" if its confidence is below that of all but a share `rate` of the same held-back images,
which are images of learned classes: `rate` of those will be rejected too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

MOST_CALIBRATION_IMAGES = 500  # of a task, where scoring them takes a pass through the backbone
REMEMBERED_IMAGES = 50  # earlier images weigh at most as much as so many of this task
QUANTILES = 201
BISECTIONS = 60
STEEPEST, FLATTEST = 1e4, 1e-3  # limits of β, times the spread of the scores


@dataclass(frozen=True)
class Calibration:
    """The inverse temperature, the number of images it was fitted on, and quantiles of their confidence."""

    scale: float
    images: int
    confidence: Sequence[float]  # ascending, evenly spaced quantiles from 0 to 1

    def probabilities(self, scores: Tensor) -> Tensor:
        """softmax(β s), (..., classes), in float64."""
        return (self.scale * scores.double()).softmax(-1)

    def threshold(self, rate: float) -> float:
        """The confidence that a share `rate` of known images is below. Fewer than 1 / rate images cannot tell: then
        it is the lowest confidence of them, which a share 1 / (images + 1) is below."""
        place = (rate * (self.images + 1) - 1) / max(self.images - 1, 1)  # of the order statistic, from 0 to 1
        return float(np.interp(place, np.linspace(0, 1, len(self.confidence)), self.confidence))


def confidence(scores: Tensor) -> Tensor:
    """How sure an answer is that it is one of the classes at all: the largest score, (...)."""
    return scores.double().amax(-1)


def fit_calibration(scores: Tensor, labels: Tensor, before: Calibration | None = None) -> Calibration:
    """The calibration by scores (n, classes) of n held-back images; `before` stands for images of earlier tasks."""
    scale, n = best_scale(scores, labels), len(labels)
    levels, own = np.linspace(0, 1, QUANTILES), np.sort(confidence(scores).cpu().numpy())
    if before is None:
        return Calibration(scale, n, tuple(np.quantile(own, levels).tolist()))
    weight = n / (n + min(before.images, REMEMBERED_IMAGES))
    scale = float(np.exp(weight * np.log(scale) + (1 - weight) * np.log(before.scale)))
    values = np.concatenate([own, before.confidence])
    weights = np.repeat([1.0, before.images / len(before.confidence)], [n, len(before.confidence)])
    return Calibration(scale, n + before.images, tuple(weighted_quantiles(values, weights, levels).tolist()))


def best_scale(scores: Tensor, labels: Tensor) -> float:
    """β for scores (n, classes); 1 where there is nothing to tell it from."""
    n, classes = scores.shape
    s = scores.double()
    s = s - s.mean(-1, keepdim=True)  # probabilities are the same, and a smoothed label adds nothing
    spread = float(s.square().mean().sqrt())
    if classes < 2 or not n or not spread or not np.isfinite(spread):
        return 1.0
    own = s.gather(1, labels.to(s.device)[:, None])[:, 0].sum() * n / (n + 1)
    low, high = np.log(FLATTEST / spread), np.log(STEEPEST / spread)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        expected = ((np.exp(middle) * s).softmax(-1) * s).sum()
        low, high = (low, middle) if expected > own else (middle, high)
    return float(np.exp((low + high) / 2))


def weighted_quantiles(
    values: NDArray[np.float64], weights: NDArray[np.float64], levels: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Quantiles of values that count `weights` times each."""
    order = np.argsort(values)
    values, weights = values[order], weights[order]
    middle = np.cumsum(weights) - weights / 2
    return np.interp(levels, (middle - middle[0]) / (middle[-1] - middle[0] or 1), values)


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error, from 0 to 1: images in bins of equal size by the probability of their answer; the
    mean over images of |share of right answers − mean probability| of their bin."""
    top = probabilities.max(-1)
    order = top.values.argsort()
    gap = ((top.indices == labels).double() - top.values.double())[order]
    parts = [part for part in gap.tensor_split(min(bins, max(len(gap), 1))) if len(part)]
    return sum(abs(float(part.sum())) for part in parts) / max(len(gap), 1)
