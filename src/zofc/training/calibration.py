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

An image is "none of these" if its confidence (`typicality`) is below that of all but a share `rate` of the same
held-back images, which are images of learned classes: `rate` of those will be rejected too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zofc.model.ridge import CalibrationSample
from zofc.training.typicality import REMEMBERED_IMAGES, Typicality, learn_typicality

MOST_CALIBRATION_IMAGES = 500  # of a task, where scoring them takes a pass through the backbone
BISECTIONS = 60
STEEPEST, FLATTEST = 1e4, 1e-3  # limits of β, times the spread of the scores


@dataclass(frozen=True)
class Calibration:
    """The inverse temperature and the number of images that it was fitted on."""

    scale: float
    images: int

    def probabilities(self, scores: Tensor) -> Tensor:
        """softmax(β s), (..., classes), in float64."""
        return (self.scale * scores.double()).softmax(-1)


def calibrate(
    sample: CalibrationSample, task: range, counts: Tensor, before: tuple[Calibration, Typicality | None] | None
) -> tuple[Calibration, Typicality | None] | None:
    """The calibration with a sample of a task's images included. `task` are its classes, `counts` (classes,) its images
    of each class; where there is one image of a class it tells nothing. A sample of all tasks' images replaces what was
    before. Where classes were learned without statistics of their features (on a device), there are none from then on.
    """
    labels = sample.labels.cpu()
    several = torch.maximum(counts, labels.bincount(minlength=len(counts)))[labels] > 1
    scores, labels, features = (part.cpu()[several] for part in sample[:3])
    if not len(labels):
        return before
    if bool((labels < task.start).any()):
        before = None
    calibration, typicality = before or (None, None)
    fitted = fit_calibration(scores, labels, calibration)
    if before is not None and typicality is None:
        return fitted, None
    every = sample.every or (sample.features, sample.labels)
    return fitted, learn_typicality(scores, labels, features, typicality, every)


def fit_calibration(scores: Tensor, labels: Tensor, before: Calibration | None = None) -> Calibration:
    """The calibration by scores (n, classes) of n held-back images; `before` stands for images of earlier tasks."""
    scale, n = best_scale(scores, labels), len(labels)
    if before is None:
        return Calibration(scale, n)
    weight = n / (n + min(before.images, REMEMBERED_IMAGES))
    scale = math.exp(weight * math.log(scale) + (1 - weight) * math.log(before.scale))
    return Calibration(scale, n + before.images)


def best_scale(scores: Tensor, labels: Tensor) -> float:
    """β for scores (n, classes); 1 where there is nothing to tell it from."""
    n, classes = scores.shape
    s = scores.double()
    s = s - s.mean(-1, keepdim=True)  # probabilities are the same, and a smoothed label adds nothing
    spread = float(s.square().mean().sqrt())
    if classes < 2 or not n or not spread or not math.isfinite(spread):
        return 1.0
    own = s.gather(1, labels.to(s.device)[:, None])[:, 0].sum() * n / (n + 1)
    low, high = math.log(FLATTEST / spread), math.log(STEEPEST / spread)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        expected = ((math.exp(middle) * s).softmax(-1) * s).sum()
        low, high = (low, middle) if expected > own else (middle, high)
    return math.exp((low + high) / 2)


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error, from 0 to 1: images in bins of equal size by the probability of their answer; the
    mean over images of |share of right answers − mean probability| of their bin."""
    top = probabilities.max(-1)
    order = top.values.argsort()
    gap = ((top.indices == labels).double() - top.values.double())[order]
    parts = [part for part in gap.tensor_split(min(bins, max(len(gap), 1))) if len(part)]
    return sum(abs(float(part.sum())) for part in parts) / max(len(gap), 1)
