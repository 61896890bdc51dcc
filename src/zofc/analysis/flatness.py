"""How flat a loss is around a point (the paper's section 5.3), and what that has to do with forgetting (its section 3).

The score is Φ(θ; ρ) = (L(θ⁺) − L(θ)) / (ρ (L(θ) + 10⁻¹²)) with θ⁺ = θ + ρ g/‖g‖, g = ∇L(θ): lower is flatter. The same
with random θ⁺ needs no gradient. Forgetting is expanded with its first-order term, which the paper drops.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from zofc.analysis.curvature import standard_error
from zofc.analysis.surface import BatchedLoss, Point, difference, dot, moved, norm, size
from zofc.optim.directions import Directions

SMALL = 1e-12  # the paper's ε in the denominator of Φ
Norm = Literal["l2", "linf"]
NORMS: tuple[Norm, ...] = ("l2", "linf")


@dataclass(frozen=True)
class Sharpness:
    """Φ, and what it is made of."""

    rho: float
    loss: float  # L(θ)
    gradient: float  # ‖∇L(θ)‖
    increase: float  # L(θ⁺) − L(θ), the published code's "ZO-SAM"
    gradient_change: float  # ‖∇L(θ⁺) − ∇L(θ)‖, its "FO-SAM"
    score: float  # Φ


@dataclass(frozen=True)
class RandomSharpness:
    """Φ with random θ⁺ at the distance ρ, over so many directions."""

    norm: Norm
    rho: float
    directions: int
    mean: float
    std: float
    max: float


@dataclass(frozen=True)
class Forgetting:
    """F = L(θ + Δθ) − L(θ), beside gᵀΔθ + ½ ΔθᵀHΔθ and the bound ½ λ_max ‖Δθ‖², which has no first-order term."""

    distance: float  # ‖Δθ‖
    change: float  # F
    first: float  # gᵀΔθ
    second: float  # ½ ΔθᵀHΔθ
    bound: float
    rest: float  # what two orders do not explain
    within_bound: bool
    first_share: float  # |gᵀΔθ| / (|gᵀΔθ| + |½ ΔθᵀHΔθ|): near 0 where the first-order term may be dropped


@dataclass(frozen=True)
class Smoothed:
    """L_ε − L = E[L(θ + εΔ)] − L(θ), beside its expansion ε²/2 Tr H along the same directions."""

    epsilon: float
    increase: float
    increase_error: float  # standard errors over the directions
    expansion: float
    rest: float  # increase − expansion; paired, so that the directions' spread cancels
    rest_error: float


def sam_score(loss: BatchedLoss, point: Point, rho: float) -> Sharpness:
    """Φ along the gradient; where there is none, nothing rises."""
    before, slope = loss.value_and_gradient(point)
    length = norm(slope)
    if not length:
        return Sharpness(rho, before, 0.0, 0.0, 0.0, 0.0)
    after, there = loss.value_and_gradient(moved(point, slope, rho / length))
    change = norm(difference(there, slope))
    return Sharpness(rho, before, length, after - before, change, _score(after - before, before, rho))


def random_score(
    loss: BatchedLoss, point: Point, rho: float, kind: Norm, number: int, seed: int = 0
) -> RandomSharpness:
    """Φ with θ⁺ = θ + ρ N/‖N‖ (l2), or θ + ρ sign N (linf), N normal."""
    drawn = Directions("sphere" if kind == "l2" else "rademacher", seed, ("flatness", kind))
    length = rho / math.sqrt(size(point)) if kind == "l2" else rho  # a direction on the sphere is √size long
    before = loss.value(point)
    scores = [
        _score(loss.value(moved(point, drawn.draw(0, query, point), length)) - before, before, rho)
        for query in range(number)
    ]
    return RandomSharpness(kind, rho, number, statistics.fmean(scores), statistics.pstdev(scores), max(scores))


def _score(increase: float, loss: float, rho: float) -> float:
    return increase / (rho * (loss + SMALL))


def expand_forgetting(loss: BatchedLoss, start: Point, end: Point, largest: float) -> Forgetting:
    """The expansion of L(end) − L(start) around the start, whose largest eigenvalue is given."""
    step = difference(end, start)
    before, slope = loss.value_and_gradient(start)
    distance, change = norm(step), loss.value(end) - before
    first, second = float(dot(slope, step)), 0.5 * float(dot(step, loss.hvp(start, step)))
    bound, both = 0.5 * largest * distance**2, abs(first) + abs(second)
    share = abs(first) / both if both else 0.0
    return Forgetting(distance, change, first, second, bound, change - first - second, change <= bound, share)


def smoothed(
    loss: BatchedLoss, point: Point, epsilon: float, directions: Sequence[Point], forms: Sequence[float]
) -> Smoothed:
    """The smoothed loss by pairs θ ± εΔ, in which odd orders cancel; `forms` are Δᵀ H Δ of the directions."""
    before = loss.value(point)
    rises = [
        (loss.value(moved(point, along, epsilon)) + loss.value(moved(point, along, -epsilon))) / 2 - before
        for along in directions
    ]
    halves = [epsilon**2 / 2 * form for form in forms]
    rests = [rise - half for rise, half in zip(rises, halves, strict=True)]
    increase, expansion, rest = map(statistics.fmean, (rises, halves, rests))
    return Smoothed(epsilon, increase, standard_error(rises), expansion, rest, standard_error(rests))
