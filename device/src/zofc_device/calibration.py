"""Probabilities softmax(β s) of scores s: β minimises the negative log-likelihood of n images, with labels smoothed by
1 / (n + 1), so that it stays finite where every image is classified right."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from zofc_device.directions import Array
from zofc_device.heads import log_softmax
from zofc_device.ridge import Sample

MOST_IMAGES = 500  # of a lesson, where scoring them takes a pass through the backbone
REMEMBERED_IMAGES = 50  # earlier images weigh at most as much as so many of this lesson
BISECTIONS = 60
STEEPEST, FLATTEST = 1e4, 1e-3  # limits of β, times the spread of the scores
Calibration = dict[str, Any]  # scale (β) and images, as in a state


def calibrate(sample: Sample, start: int, counts: Array, before: Calibration | None) -> Calibration | None:
    """The calibration with a sample of images included, `counts` (classes,) of each class; one image of a class tells
    nothing. Images of classes before `start` replace what was before."""
    several = np.maximum(counts, np.bincount(sample.labels, minlength=len(counts)))[sample.labels] > 1
    scores, labels = sample.scores[several], sample.labels[several]
    n = len(labels)
    if not n:
        return before
    scale = best_scale(scores, labels)
    if before is None or (labels < start).any():
        return {"scale": scale, "images": n}
    weight = n / (n + min(before["images"], REMEMBERED_IMAGES))
    scale = math.exp(weight * math.log(scale) + (1 - weight) * math.log(before["scale"]))
    return {"scale": scale, "images": n + before["images"]}


def best_scale(scores: Array, labels: Array) -> float:
    """β for scores (n, classes), by bisection of the derivative; 1 where there is nothing to tell it from."""
    n, classes = scores.shape
    s = scores.astype(np.float64)
    s = s - s.mean(-1, keepdims=True)  # probabilities are the same, and a smoothed label adds nothing
    spread = float(np.sqrt(np.square(s).mean()))
    if classes < 2 or not spread or not math.isfinite(spread):
        return 1.0
    own = s[np.arange(n), labels].sum() * n / (n + 1)
    low, high = math.log(FLATTEST / spread), math.log(STEEPEST / spread)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        expected = (np.exp(log_softmax(math.exp(middle) * s)) * s).sum()
        low, high = (low, middle) if expected > own else (middle, high)
    return math.exp((low + high) / 2)
