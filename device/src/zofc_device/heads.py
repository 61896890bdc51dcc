"""Classifiers with one tensor of rows for each task, and the gradients of their softmax cross-entropy in closed form.

Cosine: s_c = σ · cos(f, W_c); linear: s_c = f · W_c + b_c. With p = softmax(s), the mean loss of n images has
∂L/∂s = (p − onehot(y)) / n, from which the gradients of rows, scale, bias and features follow by the chain rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np

from zofc_device.directions import Array, torch_uniform

TINY = 1e-12  # least length that a vector is divided by


class Slopes(NamedTuple):
    """The mean loss with its gradients."""

    loss: Array
    features: Array  # (batch, width)
    parameters: dict[str, Array]


@dataclass(frozen=True)
class Head:
    """The scores of some tasks' classes."""

    kind: str  # cosine | linear
    tasks: Sequence[int]

    def scores(self, values: Mapping[str, Array], features: Array) -> Array:
        """Scores (..., batch, classes) in float64."""
        rows, f = self._gather(values, "rows"), features.astype(np.float64)
        if self.kind == "linear":
            return np.asarray(f @ rows.T + self._gather(values, "bias"))
        return np.asarray(float(values["head.sigma"]) * (_unit(f)[0] @ _unit(rows)[0].T))

    def losses(self, values: Mapping[str, Array], features: Array, targets: Array) -> Array:
        """The loss of each image (..., batch); targets (batch,) are columns of the scores."""
        return np.asarray(-log_softmax(self.scores(values, features))[..., np.arange(len(targets)), targets])

    def slopes(self, values: Mapping[str, Array], features: Array, targets: Array) -> Slopes:
        """The mean loss over the batch (batch, width) and its gradients."""
        f, rows = features.astype(np.float64), self._gather(values, "rows")
        logs, each = log_softmax(self.scores(values, f)), np.arange(len(targets))
        d = np.exp(logs)  # (batch, classes)
        d[each, targets] -= 1
        d /= len(d)
        loss = -logs[each, targets].mean()
        if self.kind == "linear":
            return Slopes(
                loss, d @ rows, self._scatter(values, "rows", d.T @ f) | self._scatter(values, "bias", d.sum(0))
            )
        sigma, (unit, length), (unit_rows, row_length) = float(values["head.sigma"]), _unit(f), _unit(rows)
        slope = _along_sphere(sigma * (d @ unit_rows), unit, length)
        row_slope = _along_sphere(sigma * (d.T @ unit), unit_rows, row_length)
        scale = {"head.sigma": np.asarray((d * (unit @ unit_rows.T)).sum())}
        return Slopes(loss, slope, self._scatter(values, "rows", row_slope) | scale)

    def _gather(self, values: Mapping[str, Array], part: str) -> Array:
        return np.concatenate([values[f"head.{part}.{task}"] for task in self.tasks]).astype(np.float64)

    def _scatter(self, values: Mapping[str, Array], part: str, whole: Array) -> dict[str, Array]:
        """A gradient over all classes as tensors by name."""
        names = [f"head.{part}.{task}" for task in self.tasks]
        return dict(zip(names, np.split(whole, np.cumsum([len(values[name]) for name in names])[:-1]), strict=True))


def _unit(vectors: Array) -> tuple[Array, Array]:
    """Vectors of length one, and the lengths."""
    length = np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), TINY)
    return vectors / length, length


def _along_sphere(slope: Array, unit: Array, length: Array) -> Array:
    """The gradient of a vector from that of its direction."""
    return np.asarray((slope - unit * (slope * unit).sum(-1, keepdims=True)) / length)


def log_softmax(scores: Array) -> Array:
    """Logarithms of probabilities (..., classes)."""
    shifted = scores - scores.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def start_rows(kind: str, init: str, classes: int, width: int, seed: int, task: int) -> dict[str, Array]:
    """Rows and bias of a new task as torch would draw them."""
    bound = 1 / sqrt(width) if kind == "cosine" or init == "torch" else sqrt(3 / width)
    both = torch_uniform(classes * width + classes, bound, seed, "head", task)
    rows, bias = both[: classes * width].reshape(classes, width), both[classes * width :]
    rows = np.zeros_like(rows) if init == "zeros" else rows
    bias = bias if init == "torch" else np.zeros_like(bias)
    return {f"head.rows.{task}": rows} | ({f"head.bias.{task}": bias} if kind == "linear" else {})


def rows_at_means(kind: str, means: Array, scale: float) -> Array:
    """Rows that start at class means (classes, width): their directions; for a linear head of the length that makes
    scores `scale` times a cosine."""
    unit, length = _unit(means.astype(np.float64))
    return (unit if kind == "cosine" else unit * (scale / length.mean())).astype(np.float32)
