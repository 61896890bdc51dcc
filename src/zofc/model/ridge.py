"""Ridge regression to one-hot labels, task by task, on all data ever seen (as in RanPAC).

With Φ the features of all images so far (after ReLU of a fixed random projection, if one is asked for) and Y their
one-hot labels: W = (ΦᵀΦ + λI)⁻¹ ΦᵀY = Φᵀ (ΦΦᵀ + λI)⁻¹ Y. The first form keeps two sums, G = ΦᵀΦ and C = ΦᵀY, and no
image; the second keeps the features of the images and is smaller while there are fewer of them than the projection is
wide. Nothing is forgotten, and the order of the tasks matters only to the choice of λ. All is float64: λ may be far
below the largest eigenvalues.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zofc.errors import DataError, RecipeError, RunError
from zofc.model.params import Resizable

BYTES = 8  # of a number in a matrix
RIDGE_STRENGTHS = tuple(10.0**power for power in range(-8, 10))
PATIENCE = 4  # the search for λ ends when so many in a row are no better
HELD_OUT = 5  # one image of so many is held out
ROWS = 1024  # images, or columns of the projection, at once
MOST_LEFT_OUT = 500  # images of a task that are scored as if they had not been learned


def regressors(width: int, projection: int, budget: int | None) -> int:
    """How many numbers an image is regressed from: the features, or the projection as wide as the budget allows."""
    most = _largest(budget)
    if projection:
        if most == 0:
            raise RecipeError(f"ridge.budget: {budget} bytes hold no Gram matrix; the smallest has {BYTES}")
        return min(projection, most)
    if most < width:
        raise RecipeError(
            f"ridge.budget: the Gram matrix of {width} features needs {BYTES * width**2} bytes, not {budget}; allow "
            f"them, or set ridge.projection to regress from a projection of at most {max(most, 1)}"
        )
    return width


def _largest(budget: int | None) -> int:
    """Rows of the largest square matrix within a budget."""
    return math.isqrt((2**62 if budget is None else budget) // BYTES)


def draw_projection(width: int, size: int, orthogonal: bool, generator: torch.Generator) -> Tensor:
    """Directions (width, size) with entries of variance one: independent normal numbers, or blocks of `width`
    directions at right angles, which cover the space more evenly and so need fewer."""
    if not orthogonal:
        return torch.randn(width, size, generator=generator, dtype=torch.float64)
    blocks = []
    for _ in range(-(-size // width)):
        q, r = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))
        blocks.append(q * r.diagonal().sign() * math.sqrt(width))
    return torch.cat(blocks, dim=1)[:, :size].contiguous()


def solve(gram: Tensor, sums: Tensor, strength: float) -> Tensor:
    """(G + λI)⁻¹ C."""
    return torch.cholesky_solve(sums, factorize(gram, strength))


def factorize(gram: Tensor, strength: float) -> Tensor:
    """The Cholesky factor of G + λI; where rounding leaves none, λ is the next power of ten that has one."""
    factor = _factor(gram, strength)
    return factorize(gram, 10 * strength) if factor is None else factor


def _factor(gram: Tensor, strength: float) -> Tensor | None:
    """The Cholesky factor of G + λI."""
    shifted = gram.clone()
    shifted.diagonal().add_(strength)
    factor, failed = torch.linalg.cholesky_ex(shifted)
    return None if int(failed) else factor


class LeftOut(NamedTuple):
    """The regression's answers to images of a task that it was not fitted on."""

    images: Tensor  # their numbers in the task
    scores: Tensor  # (images, classes)


class CalibrationSample(NamedTuple):
    """Training images with their scores (n, classes), labels (n,) and features (n, width)."""

    scores: Tensor
    labels: Tensor
    features: Tensor
    every: tuple[Tensor, Tensor] | None = None  # features and labels of more images than were scored, these among them


def best_strength(gram: Tensor, sums: Tensor, phi: Tensor, labels: Tensor) -> tuple[float, Tensor]:
    """The power of ten whose solution of G and C has the least squared error on images that are not in them, and its
    scores of them."""
    truth = nn.functional.one_hot(labels, sums.shape[1]).to(phi.dtype)
    return _search(gram, truth, lambda factor: phi @ torch.cholesky_solve(sums, factor))


def best_strength_by_images(kernel: Tensor, targets: Tensor) -> tuple[float, Tensor]:
    """The power of ten with the least squared error on images that are left out one at a time, and its scores of them:
    with A = (K + λI)⁻¹, that of image i is Y_i − (A Y)_i / A_ii."""

    def scores(factor: Tensor) -> Tensor:
        inverse = torch.cholesky_inverse(factor)
        return targets - (inverse @ targets) / inverse.diagonal()[:, None]

    return _search(kernel, targets, scores)


def _search(gram: Tensor, truth: Tensor, scores: Callable[[Tensor], Tensor]) -> tuple[float, Tensor]:
    """The strength with the least squared error, given the factor of G + λI, and its scores. Searched from above: the
    small ones are worse, or ill-conditioned, wherever there are few images."""
    least, best, worse = math.inf, (RIDGE_STRENGTHS[-1], torch.zeros_like(truth)), 0
    for strength in reversed(RIDGE_STRENGTHS):
        factor = _factor(gram, strength)
        found = None if factor is None else scores(factor)
        error = math.inf if found is None else float((found - truth).square().mean())
        worse += 1
        if found is not None and error < least:
            least, best, worse = error, (strength, found), 0
        if worse == PATIENCE:
            break
    return best


def held_out(images: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The numbers of a task's images that are held out where not every one is left out alone."""
    return rng.permutation(images)[: images // HELD_OUT]


class RidgeHead(Resizable):
    """The statistics of all images, the chosen strength and the solution. `draw` makes a projection of a width."""

    resizable: ClassVar[tuple[str, ...]] = ("features", "labels", "gram", "sums", "weights")
    projection: Tensor | None
    features: Tensor  # (images, width), while the regression is solved from the images
    labels: Tensor
    gram: Tensor  # G and C, after that
    sums: Tensor
    weights: Tensor
    strength: Tensor
    left_out: CalibrationSample | None = None  # training images, each scored as if it had not been learned
    strength_from = "all"  # the tasks whose statistics the strength is chosen with, or `task`: the current one

    def __init__(
        self, width: int, projection: int, budget: int | None, draw: Callable[[int], Tensor], device: torch.device
    ) -> None:
        super().__init__()
        self.size = regressors(width, projection, budget)
        where = torch.device("cpu") if device.type == "mps" else device  # which knows no float64
        self.draw = draw if projection else None
        self.most_images = 0 if budget is None else min(projection - 1, _largest(budget))  # as long as these are kept
        by_images = self.most_images > 0
        size = 0 if by_images else self.size
        for name, shape, dtype in (
            ("features", (0, width), torch.float32),
            ("labels", (0,), torch.int64),
            ("gram", (size, size), torch.float64),
            ("sums", (size, 0), torch.float64),
            ("weights", (projection if by_images else size, 0), torch.float64),
            ("strength", (), torch.float64),
        ):
            self.register_buffer(name, torch.zeros(shape, dtype=dtype, device=where))
        self.strength.fill_(1.0)
        self.register_buffer("projection", None, persistent=False)
        self._project()

    @property
    def by_images(self) -> bool:
        """Whether the features of the images are kept, not yet their sums."""
        return not len(self.gram)

    def _project(self) -> None:
        """Draw the projection of the present size."""
        if self.draw is not None and (self.projection is None or self.projection.shape[1] != len(self.weights)):
            self.projection = self.draw(len(self.weights)).to(self.gram.device)

    def grow(self, classes: int) -> None:
        """Make room for the classes of a new task."""
        self.sums, self.weights = (nn.functional.pad(part, (0, classes)) for part in (self.sums, self.weights))

    def adapt_state(self, prefix: str, state: dict[str, Tensor]) -> None:
        """Take on the shapes of a saved state, which depend on the number of images, and leave out of it what version
        0.1 saved too."""
        state.pop(f"{prefix}projection", None)
        super().adapt_state(prefix, state)
        self._project()

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

    def learn(self, features: Tensor, labels: Tensor, rng: np.random.Generator) -> LeftOut:
        """Include a task and solve the regression anew. Its answers to images of the task that it was not fitted on:
        each of them, left out alone, or the first fifth of a random order, left out together."""
        if not len(labels):
            raise DataError("a task has no training images to regress on")
        if self.by_images and len(self.labels) + len(labels) > self.most_images:
            self._keep_sums()
        if self.by_images:
            known = len(self.labels)
            self.features = torch.cat([self.features, features.to(self.features)])
            self.labels = torch.cat([self.labels, labels.to(self.labels)])
            scores = self._solve_by_images(0 if self.strength_from == "all" else known)
            return LeftOut(torch.arange(len(labels)), scores[-len(labels) :])
        order = torch.from_numpy(rng.permutation(len(labels)))
        scores = self._learn_by_sums(features.cpu()[order], labels.cpu()[order])
        return LeftOut(order[: len(scores)], scores)

    def _learn_by_sums(self, features: Tensor, labels: Tensor) -> Tensor:
        """λ is chosen on a fifth of the images, the solution is of all. Fewer than five leave λ as it was."""
        held, alone = len(labels) // HELD_OUT, self.strength_from == "task"
        scores = self.sums.new_zeros(0, self.sums.shape[1])
        gram, sums = (torch.zeros_like(own) if alone else own for own in (self.gram, self.sums))
        self.add(gram, sums, features[held:], labels[held:])
        if held:
            phi = self.regress_from(features[:held])
            strength, scores = best_strength(gram, sums, phi, labels[:held].to(phi.device))
            self.strength.fill_(strength)
            self.add(gram, sums, features[:held], labels[:held])
        if alone:
            self.gram += gram
            self.sums += sums
        factor = factorize(self.gram, float(self.strength))
        self.weights.copy_(torch.cholesky_solve(self.sums, factor))
        self._leave_out(factor, features[:MOST_LEFT_OUT], labels[:MOST_LEFT_OUT])
        return scores

    def _leave_out(self, factor: Tensor, features: Tensor, labels: Tensor) -> None:
        """Score some of the images, each left out: with h = φᵀ (G + λI)⁻¹ φ, its error is 1 / (1 − h) times larger."""
        labels, parts = labels.to(self.weights.device), []
        for some, named in zip(torch.split(features, ROWS), torch.split(labels, ROWS), strict=True):
            phi = self.regress_from(some)
            leverage = (phi * torch.cholesky_solve(phi.mT, factor).mT).sum(-1, keepdim=True).clamp_max(1 - 1e-9)
            targets = nn.functional.one_hot(named, self.weights.shape[1]).to(phi)
            parts.append(targets - (targets - phi @ self.weights) / (1 - leverage))
        self.left_out = CalibrationSample(torch.cat(parts), labels, features)

    def _solve_by_images(self, known: int = 0) -> Tensor:
        """The solution, λ chosen with the images after the first `known`, and the scores of those left out alone."""
        kernel, targets = self._kernel(), self._targets()
        strength, scores = best_strength_by_images(kernel[known:, known:], targets[known:])
        self.strength.fill_(strength)
        self.left_out = CalibrationSample(scores, self.labels[known:], self.features[known:])
        self._weigh(solve(kernel, targets, float(self.strength)))
        return scores

    def _kernel(self) -> Tensor:
        """ΦΦᵀ of the images, (images, images)."""
        kernel = torch.zeros(len(self.labels), len(self.labels), dtype=torch.float64, device=self.gram.device)
        for phi in self._parts():
            kernel.addmm_(phi, phi.mT)
        return kernel

    def _targets(self) -> Tensor:
        """Y of the images, (images, classes)."""
        return nn.functional.one_hot(self.labels, self.weights.shape[1]).to(self.gram)

    def _weigh(self, solution: Tensor) -> None:
        """W = Φᵀ (ΦΦᵀ + λI)⁻¹ Y, given what follows Φᵀ."""
        self.weights.copy_(torch.cat([phi.mT @ solution for phi in self._parts()]))

    def _parts(self) -> Iterator[Tensor]:
        """Φ of the images, some columns at a time."""
        assert self.projection is not None
        for columns in torch.split(self.projection, ROWS, dim=1):
            yield (self.features.double() @ columns).relu_()

    def _keep_sums(self) -> None:
        """There are too many images: from now on their sums are kept, of a projection that the budget allows."""
        features, labels, classes = self.features, self.labels, self.weights.shape[1]
        self.features, self.labels = features[:0], labels[:0]
        self.gram = self.gram.new_zeros(self.size, self.size)
        self.sums, self.weights = (part.new_zeros(self.size, classes) for part in (self.sums, self.weights))
        self._project()
        self.add(self.gram, self.sums, features, labels)

    @property
    def left_out_of_all(self) -> bool:
        """Whether `left_out` has images of every class, not of the current task alone."""
        return self.by_images and self.strength_from == "all"

    def remove(self, gone: Sequence[int]) -> None:
        """Take the images of these classes out, exactly; refused where only sums over all classes are kept."""
        if not self.by_images:
            raise RunError(
                "the regression keeps sums over all images, which those of one class cannot be taken out of; with "
                "ridge.strength_from=images (as in ridge/base and zo-ridge/base) it keeps features too. To forget a "
                "class of this model, train anew without its images"
            )
        self._drop(gone)
        self._solve_by_images()

    def _drop(self, gone: Sequence[int]) -> Tensor:
        """Drop the images and columns of these classes; returns which of the images stay."""
        away = torch.tensor(sorted(gone), device=self.labels.device)
        stay = ~torch.isin(self.labels, away)
        labels = self.labels[stay]
        self.features, self.labels = self.features[stay], labels - torch.searchsorted(away, labels)
        columns = torch.tensor([c for c in range(self.weights.shape[1]) if c not in gone], device=self.labels.device)
        self.sums, self.weights = self.sums[:, columns], self.weights[:, columns]
        return stay

    def scores(self, features: Tensor) -> Tensor:
        """Regression values (batch, classes)."""
        scores = self.regress_from(features) @ self.weights
        return scores.to(features.device, torch.promote_types(features.dtype, torch.float32))
