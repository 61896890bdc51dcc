"""Gradient estimators: each turns a loss that can only be evaluated into coefficients along random directions.

The estimate is ĝ = (1/Q) Σ_q c_q Δ_q; an estimator says what c_q is. Perturbed values are new tensors; the
parameters themselves are never written to: after the queries they are what they were, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zofc.errors import RecipeError, nearest
from zofc.optim.directions import Directions

Point = Mapping[str, Tensor]


class Part(Protocol):
    """A piece of a batch on which the loss can be evaluated at several points at once."""

    @property
    def share(self) -> float:
        """Of the batch's images."""
        ...

    def losses(self, points: Point, count: int) -> Tensor:
        """Mean loss of this piece at `count` points, stacked along a first axis if more than one; (count,), float64."""
        ...


@dataclass(frozen=True)
class Probe:
    """What an estimator may do: evaluate the batch's loss at `center` plus multiples of this step's directions."""

    parts: Callable[[], Iterable[Part]]
    center: Point
    directions: Directions
    step: int
    queries: int
    chunk: int = 1  # points per evaluation

    def direction(self, query: int) -> dict[str, Tensor]:
        return self.directions.draw(self.step, query, self.center)

    def losses(self, offsets: Sequence[tuple[int, float]]) -> Tensor:
        """Loss at center + length · Δ_query for each (query, length); (points,) in float64."""
        chunks = [offsets[i : i + self.chunk] for i in range(0, len(offsets), self.chunk)]
        total: Tensor | None = None
        for part in self.parts():
            values = torch.cat([part.losses(self._points(chunk), len(chunk)) for chunk in chunks]) * part.share
            total = values if total is None else total + values
        assert total is not None, "an empty batch"
        return total

    def _points(self, offsets: Sequence[tuple[int, float]]) -> dict[str, Tensor]:
        points = []
        for query, length in offsets:
            direction = self.direction(query)
            points.append(
                {name: torch.add(value, direction[name], alpha=length) for name, value in self.center.items()}
            )
        if len(points) == 1:
            return points[0]
        return {name: torch.stack([point[name] for point in points]) for name in self.center}


Estimator = Callable[[Probe, float], tuple[Tensor, Tensor]]  # (probe, ε) -> coefficients (Q,), losses seen
ESTIMATORS: dict[str, Estimator] = {}


def estimator(name: str) -> Callable[[Estimator], Estimator]:
    def register(function: Estimator) -> Estimator:
        ESTIMATORS[name] = function
        return function

    return register


def get_estimator(name: str) -> Estimator:
    if name not in ESTIMATORS:
        raise RecipeError(f"unknown estimator '{name}'{nearest(name, ESTIMATORS)}")
    return ESTIMATORS[name]


@estimator("spsa")
def two_point(probe: Probe, epsilon: float) -> tuple[Tensor, Tensor]:
    """Simultaneous perturbation (the paper's eq. 1): c_q = (L(φ + εΔ_q) − L(φ − εΔ_q)) / 2ε."""
    offsets = [(query, sign * epsilon) for query in range(probe.queries) for sign in (1.0, -1.0)]
    losses = probe.losses(offsets)
    up, down = losses.view(-1, 2).unbind(1)  # (queries,) each
    return (up - down) / (2 * epsilon), losses
