"""The Hessian of a loss, known only by its products with vectors: both ends of its spectrum by Lanczos' method, its
trace by Hutchinson's estimate Tr H = E[Δᵀ H Δ] over directions with E[Δ Δᵀ] = I."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zofc import seeds
from zofc.analysis.surface import BatchedLoss, Point, dot, size
from zofc.optim.directions import Directions, Space


@dataclass(frozen=True)
class Spectrum:
    """The ends of a spectrum. An eigenvalue lies within `residual` of `largest`; convergence is from below."""

    largest: float
    smallest: float
    residual: float
    products: int  # Hessian-vector products
    converged: bool


@dataclass(frozen=True)
class Trace:
    """A mean over probes and its standard error (0 for a single one, of which nothing is known)."""

    mean: float
    error: float
    probes: int


def lanczos_spectrum(
    loss: BatchedLoss, point: Point, products: int = 100, tolerance: float = 1e-6, seed: int = 0
) -> Spectrum:
    """Lanczos with full reorthogonalization until the largest eigenvalue's residual is small, or out of products."""
    space, count = Space(point), size(point)
    like = next(iter(point.values()))
    start = torch.randn(count, generator=seeds.torch_stream(seed, "lanczos"), dtype=torch.float64).to(like)
    basis = [start / start.norm()]
    diagonal: list[float] = []
    off: list[float] = []
    while True:
        product = loss.hvp(point, space.split(basis[-1]))
        image = torch.cat([value.reshape(-1) for value in product.values()])
        diagonal.append(float(basis[-1] @ image))
        known = torch.stack(basis)  # (products, size)
        for _ in range(2):  # once leaves rounding behind, twice is enough
            image = image - known.mT @ (known @ image)
        beta = float(image.norm())
        values, vectors = torch.linalg.eigh(_tridiagonal(diagonal, off))
        residual = abs(beta * float(vectors[-1, -1]))
        extent = max(abs(float(values[0])), abs(float(values[-1])))
        done = residual <= tolerance * extent or beta <= 1e-13 * extent or len(basis) == count
        if done or len(basis) >= products:
            return Spectrum(float(values[-1]), float(values[0]), residual, len(basis), done)
        off.append(beta)
        basis.append(image / beta)


def _tridiagonal(diagonal: Sequence[float], off: Sequence[float]) -> Tensor:
    main, below = (torch.tensor(values, dtype=torch.float64) for values in (diagonal, off))
    return torch.diag(main) + (torch.diag(below, 1) + torch.diag(below, -1) if len(below) else 0)


def probes(point: Point, number: int, kind: str = "rademacher", seed: int = 0) -> list[dict[str, Tensor]]:
    """Directions with independent entries of mean zero and variance one."""
    drawn = Directions(kind, seed, ("flatness", "probe"))
    return [drawn.draw(0, query, point) for query in range(number)]


def forms(loss: BatchedLoss, point: Point, directions: Sequence[Point]) -> list[float]:
    """Δᵀ H Δ of each direction."""
    return [float(dot(direction, loss.hvp(point, direction))) for direction in directions]


def trace(values: Sequence[float]) -> Trace:
    """Hutchinson's estimate from the forms of probes."""
    return Trace(statistics.fmean(values), standard_error(values), len(values))


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean; zero for a single value."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
