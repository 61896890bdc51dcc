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

from zofc_device.directions import Array, stream, torch_uniform

TINY = 1e-12  # least length that a vector is divided by


class Slopes(NamedTuple):
    """The mean loss with its gradients."""

    loss: Array  # (...)
    features: Array  # (..., batch, width)
    parameters: dict[str, Array]


@dataclass(frozen=True)
class Head:
    """The scores of some tasks' classes. Values may have leading axes, such as rows (batch, classes, width) with
    features (batch, 1, width): a point of its own for each image."""

    kind: str  # cosine | linear
    tasks: Sequence[int]

    @property
    def names(self) -> list[str]:
        """The tensors that the scores depend on."""
        rows = [f"head.rows.{task}" for task in self.tasks]
        return (
            [*rows, "head.sigma"] if self.kind == "cosine" else [*rows, *(f"head.bias.{task}" for task in self.tasks)]
        )

    def scores(self, values: Mapping[str, Array], features: Array) -> Array:
        """Scores (..., batch, classes) in float64."""
        rows, f = self._gather(values, "rows", -2), features.astype(np.float64)
        if self.kind == "linear":
            return np.asarray(f @ _transposed(rows) + self._gather(values, "bias", -1)[..., None, :])
        sigma = np.asarray(values["head.sigma"], np.float64)
        return np.asarray(sigma[..., None, None] * (_unit(f)[0] @ _transposed(_unit(rows)[0])))

    def losses(self, values: Mapping[str, Array], features: Array, targets: Array) -> Array:
        """Mean loss over the batch, (...); targets (..., batch) are columns of the scores."""
        logs = _log_softmax(self.scores(values, features))
        chosen = np.take_along_axis(logs, np.broadcast_to(targets, logs.shape[:-1])[..., None], -1)
        return np.asarray(-chosen[..., 0].mean(-1))

    def slopes(self, values: Mapping[str, Array], features: Array, targets: Array) -> Slopes:
        """The mean loss over the batch and its gradients."""
        f, rows = features.astype(np.float64), self._gather(values, "rows", -2)
        scores = self.scores(values, f)
        logs, where = _log_softmax(scores), targets[..., None]
        d = np.exp(logs)  # (..., batch, classes)
        np.put_along_axis(d, where, np.take_along_axis(d, where, -1) - 1, -1)
        d /= d.shape[-2]
        loss = -np.take_along_axis(logs, where, -1)[..., 0].mean(-1)
        if self.kind == "linear":
            parts = {"rows": _transposed(d) @ f, "bias": d.sum(-2)}
            return Slopes(loss, d @ rows, self._scatter(values, parts))
        sigma = np.asarray(values["head.sigma"], np.float64)[..., None, None]
        (unit, length), (unit_rows, row_length) = _unit(f), _unit(rows)
        cosines = unit @ _transposed(unit_rows)
        slope = _along_sphere(sigma * (d @ unit_rows), unit, length)
        row_slope = _along_sphere(sigma * (_transposed(d) @ unit), unit_rows, row_length)
        found = self._scatter(values, {"rows": row_slope})
        return Slopes(loss, slope, found | {"head.sigma": (d * cosines).sum((-2, -1))})

    def _gather(self, values: Mapping[str, Array], part: str, axis: int) -> Array:
        return np.concatenate([values[f"head.{part}.{task}"] for task in self.tasks], axis).astype(np.float64)

    def _scatter(self, values: Mapping[str, Array], parts: Mapping[str, Array]) -> dict[str, Array]:
        """Gradients over all classes as tensors by name."""
        found: dict[str, Array] = {}
        for part, whole in parts.items():
            axis = -2 if part == "rows" else -1
            ends = np.cumsum([values[f"head.{part}.{task}"].shape[axis] for task in self.tasks])[:-1]
            names = [f"head.{part}.{task}" for task in self.tasks]
            found |= dict(zip(names, np.split(whole, ends, axis), strict=True))
        return found


def _transposed(matrices: Array) -> Array:
    return np.swapaxes(matrices, -1, -2)


def _unit(vectors: Array) -> tuple[Array, Array]:
    """Vectors of length one, and the lengths."""
    length = np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), TINY)
    return vectors / length, length


def _along_sphere(slope: Array, unit: Array, length: Array) -> Array:
    """The gradient of a vector from that of its direction."""
    return np.asarray((slope - unit * (slope * unit).sum(-1, keepdims=True)) / length)


def _log_softmax(scores: Array) -> Array:
    shifted = scores - scores.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def start_rows(kind: str, init: str, classes: int, width: int, seed: int, task: int) -> dict[str, Array]:
    """Rows and bias of a new task as torch would draw them; `normal` and `trunc-normal` come from a stream of our own
    with the same distribution."""
    bound = 1 / sqrt(width) if kind == "cosine" or init == "torch" else sqrt(3 / width)
    both = torch_uniform(classes * width + classes, bound, seed, "head", task)
    rows, bias = both[: classes * width].reshape(classes, width), np.zeros(classes, np.float32)
    if init in ("normal", "trunc-normal"):
        deviation = 0.001 if init == "normal" else 0.02
        rows = stream(seed, "head", task).normal(0, deviation, rows.shape).astype(np.float32)
    if init == "zeros":
        rows = np.zeros_like(rows)
    if init == "torch":
        bias = both[classes * width :]
    return {f"head.rows.{task}": rows} | ({f"head.bias.{task}": bias} if kind == "linear" else {})


def rows_at_means(kind: str, means: Array, scale: float) -> Array:
    """Rows that start at class means (classes, width): their directions; for a linear head of the length that makes
    scores `scale` times a cosine."""
    unit, length = _unit(means.astype(np.float64))
    return (unit if kind == "cosine" else unit * (scale / length.mean())).astype(np.float32)
