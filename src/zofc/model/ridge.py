"""Ridge regression to one-hot labels, task by task, with all data ever seen in two sums (as in RanPAC).

With Φ the features of all images so far (after ReLU of a fixed random projection, if one is asked for) and Y their
one-hot labels: G = ΦᵀΦ, C = ΦᵀY, W = (G + λI)⁻¹ C. Both sums only ever grow, so nothing is forgotten, and the order of
the tasks matters only to the choice of λ. They are float64: λ may be far below G's largest eigenvalues.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from zofc.errors import DataError, RecipeError

BYTES = 8  # of a number in the Gram matrix
RIDGE_STRENGTHS = tuple(10.0**power for power in range(-8, 10))
ROWS = 1024  # images projected at once


def regressors(width: int, projection: int, budget: int | None) -> int:
    """How many numbers an image is regressed from: the features, or the projection as wide as the budget allows."""
    most = math.isqrt(budget // BYTES) if budget is not None else None
    if projection:
        if most == 0:
            raise RecipeError(f"ridge.budget: {budget} bytes hold no Gram matrix; the smallest has {BYTES}")
        return projection if most is None else min(projection, most)
    if most is not None and most < width:
        raise RecipeError(
            f"ridge.budget: the Gram matrix of {width} features needs {BYTES * width**2} bytes, not {budget}; allow "
            f"them, or set ridge.projection to regress from a projection of at most {max(most, 1)}"
        )
    return width


def solve(gram: Tensor, sums: Tensor, strength: float) -> Tensor:
    """W = (G + λI)⁻¹ C, (regressors, classes)."""
    values, vectors = eigen_pairs(gram)
    return vectors @ ((vectors.mT @ sums) / (values + strength)[:, None])


def best_strength(gram: Tensor, sums: Tensor, phi: Tensor, labels: Tensor) -> float:
    """The power of ten whose W, solved from G and C, has the least squared error on images that are not in them."""
    values, vectors = eigen_pairs(gram)
    turned, targets = phi @ vectors, vectors.mT @ sums  # one decomposition serves every strength
    truth = nn.functional.one_hot(labels, sums.shape[1]).to(phi.dtype)
    errors = [float(((turned / (values + s)) @ targets - truth).square().mean()) for s in RIDGE_STRENGTHS]
    return RIDGE_STRENGTHS[int(np.argmin(errors))]


def eigen_pairs(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, none below zero, and eigenvectors of a Gram matrix."""
    values, vectors = torch.linalg.eigh(gram)
    return values.clamp_min(0), vectors  # below zero by rounding alone


class RidgeHead(nn.Module):
    """G, C, the chosen strength and the solution; shapes follow from the classes and the projection alone."""

    projection: Tensor | None
    gram: Tensor
    sums: Tensor
    weights: Tensor
    strength: Tensor
    strength_from = "all"  # the tasks whose statistics the strength is chosen with, or `task`: the current one

    def __init__(
        self, width: int, projection: int, budget: int | None, generator: torch.Generator, device: torch.device
    ) -> None:
        super().__init__()
        size = regressors(width, projection, budget)
        where = torch.device("cpu") if device.type == "mps" else device  # which knows no float64
        drawn = torch.randn(width, size, generator=generator, dtype=torch.float64) if projection else None
        self.register_buffer("projection", None if drawn is None else drawn.to(where))
        for name, columns in (("gram", size), ("sums", 0), ("weights", 0)):
            self.register_buffer(name, torch.zeros(size, columns, dtype=torch.float64, device=where))
        self.register_buffer("strength", torch.ones((), dtype=torch.float64, device=where))

    def grow(self, classes: int) -> None:
        """Make room for the classes of a new task."""
        self.sums, self.weights = (nn.functional.pad(part, (0, classes)) for part in (self.sums, self.weights))

    def regress_from(self, features: Tensor) -> Tensor:
        """Φ (batch, regressors) of features (batch, width)."""
        phi = features.to(self.gram.device).double()
        return phi if self.projection is None else (phi @ self.projection).relu_()

    def add(self, gram: Tensor, sums: Tensor, features: Tensor, labels: Tensor) -> None:
        """G += ΦᵀΦ, C += ΦᵀY."""
        for some, named in zip(torch.split(features, ROWS), torch.split(labels, ROWS), strict=True):
            phi = self.regress_from(some)
            gram.addmm_(phi.mT, phi)
            sums.index_add_(1, named.to(phi.device), phi.mT)

    def learn(self, features: Tensor, labels: Tensor, rng: np.random.Generator) -> None:
        """A task: λ is chosen on a fifth of its images, the solution is of all. Fewer than five leave λ as it was."""
        if not len(labels):
            raise DataError("a task has no training images to regress on")
        order = torch.from_numpy(rng.permutation(len(labels)))
        features, labels = features.cpu()[order], labels.cpu()[order]
        held = len(labels) // 5
        alone = self.strength_from == "task"
        gram, sums = (torch.zeros_like(own) if alone else own for own in (self.gram, self.sums))
        self.add(gram, sums, features[held:], labels[held:])
        if held:
            phi = self.regress_from(features[:held])
            self.strength.fill_(best_strength(gram, sums, phi, labels[:held].to(phi.device)))
            self.add(gram, sums, features[:held], labels[:held])
        if alone:
            self.gram += gram
            self.sums += sums
        self.weights.copy_(solve(self.gram, self.sums, float(self.strength)))

    def scores(self, features: Tensor) -> Tensor:
        """Regression values (batch, classes)."""
        return (self.regress_from(features) @ self.weights).float().to(features.device)
