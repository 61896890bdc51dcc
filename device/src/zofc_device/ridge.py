"""Ridge regression to one-hot labels on all data ever seen: W = (ΦᵀΦ + λI)⁻¹ ΦᵀY = Φᵀ (ΦΦᵀ + λI)⁻¹ Y, in float64.

Φ are features, or the ReLU of their random projection. While there are fewer images than the projection is wide, their
features are kept and the second form is solved; then G = ΦᵀΦ and C = ΦᵀY are kept and the first one is. λ is a power of
ten with the least squared error on images that were left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from zofc_device.directions import Array

STRENGTHS = tuple(10.0**power for power in range(9, -9, -1))
PATIENCE = 4  # the search for λ ends when so many in a row are no better
HELD_OUT = 5  # one image of so many is held out
MOST_ROWS = 1024  # images, or columns of the projection, at once
MOST_LEFT_OUT = 500  # images of a task that are scored as if they had not been learned
SQUARES_AT_ONCE = 4  # matrices at once while a regression is solved: images², regressors²
BLOCK = 128  # rows of a triangular system that are solved at a time


class LeftOut(NamedTuple):
    """The answers to images that a regression was not fitted on."""

    images: Array  # their numbers
    scores: Array  # (images, classes)


class Sample(NamedTuple):
    """Images with their scores (n, classes) and labels (n,), by which probabilities are calibrated."""

    scores: Array
    labels: Array


@dataclass(frozen=True)
class RidgeSettings:
    """The section `ridge` of a manifest; `project` gives the projection of a width."""

    width: int  # of the features
    projection: int
    budget: int | None
    strength_from: str
    keep_features: int
    project: Callable[[int], Array]


def factorize(gram: Array, strength: float) -> Array | None:
    """The Cholesky factor of G + λI, if there is one. For a while, λ is in G itself, which saves a copy."""
    diagonal = gram.diagonal().copy()
    try:
        gram[np.diag_indices(len(gram))] += strength
        return np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:
        return None
    finally:
        gram[np.diag_indices(len(gram))] = diagonal


def factorize_surely(gram: Array, strength: float) -> Array:
    """The factor; where rounding leaves none, λ is the next power of ten that has one."""
    factor = factorize(gram, strength)
    return factorize_surely(gram, 10 * strength) if factor is None else factor


def solve(factor: Array, right: Array) -> Array:
    """(L Lᵀ)⁻¹ R by substitution, some rows at a time."""
    x = _substitute(factor, right)
    for i in reversed(range(0, len(factor), BLOCK)):
        j = i + BLOCK
        x[i:j] = np.linalg.solve(factor[i:j, i:j].T, x[i:j] - factor[j:, i:j].T @ x[j:])
    return x


def _substitute(factor: Array, right: Array) -> Array:
    """L⁻¹ R."""
    x = right.astype(np.float64)
    for i in range(0, len(factor), BLOCK):
        j = i + BLOCK
        x[i:j] = np.linalg.solve(factor[i:j, i:j], x[i:j] - factor[i:j, :i] @ x[:i])
    return x


def best_strength(gram: Array, truth: Array, scores: Callable[[Array], Array]) -> tuple[float, Array]:
    """λ whose scores, given the factor of G + λI, have the least squared error, and these scores."""
    least, best, worse = math.inf, (STRENGTHS[0], np.zeros_like(truth)), 0
    for strength in STRENGTHS:
        factor = factorize(gram, strength)
        answer = None if factor is None else scores(factor)
        error = math.inf if answer is None else float(np.square(answer - truth).mean())
        worse += 1
        if answer is not None and error < least:
            least, best, worse = error, (strength, answer), 0
        if worse == PATIENCE:
            break
    return best


def scores_alone(factor: Array, truth: Array) -> Array:
    """Images that are left out one at a time: with A = (K + λI)⁻¹ = L⁻ᵀ L⁻¹, image i scores Y_i − (A Y)_i / A_ii."""
    n, diagonal = len(factor), np.zeros(len(factor))
    for start in range(0, n, MOST_ROWS):  # columns of L⁻¹, which are zero above the diagonal
        below = _substitute(factor[start:, start:], np.eye(n - start, min(MOST_ROWS, n - start)))
        diagonal[start : start + MOST_ROWS] = np.square(below).sum(0)
    return np.asarray(truth - solve(factor, truth) / diagonal[:, None])


def one_hot(labels: Array, classes: int) -> Array:
    """Y (images, classes)."""
    return np.asarray(labels[:, None] == np.arange(classes), np.float64)


class Ridge:
    """The statistics of all images, the strength and the solution, read from and written to tensors of a state."""

    entries: ClassVar[tuple[str, ...]] = ("features", "labels", "gram", "sums", "weights", "strength")
    features: Array  # (images, width), while the regression is solved from the images
    labels: Array
    gram: Array  # G and C, after that
    sums: Array
    weights: Array
    strength: Array

    def __init__(self, settings: RidgeSettings, tensors: Mapping[str, Array], prefix: str) -> None:
        self.settings, self.prefix = settings, prefix
        for name in self.entries:
            setattr(self, name, tensors[prefix + name])
        self.left_out: Sample | None = None  # images of the last lesson, each scored as if it had not been learned
        wide, largest = settings.projection, math.isqrt((2**62 if settings.budget is None else settings.budget) // 8)
        self.size = min(wide, largest) if wide else settings.width
        self.most_images = 0 if settings.budget is None else min(wide - 1, largest)

    def state(self) -> dict[str, Array]:
        """The tensors to be saved."""
        return {self.prefix + name: getattr(self, name) for name in self.entries}

    def needed_bytes(self, more: int) -> tuple[int, int]:
        """What so many more images leave behind, and what learning them takes besides, at most."""
        n, width, classes = len(self.labels) + more, self.settings.width, self.weights.shape[1]
        wide, projections = max(self.size, self.settings.projection), 2 * width * self.settings.projection
        by_images = self.by_images and n <= self.most_images
        kept = n * width // 2 + wide * classes + (0 if by_images else self.size**2)
        matrices = SQUARES_AT_ONCE * (n if by_images else self.size) ** 2
        rows = n * (width + 2 * MOST_ROWS) if by_images else 2 * MOST_ROWS * self.size
        return 8 * kept, 8 * (matrices + rows + projections)

    @property
    def by_images(self) -> bool:
        """Whether the features of the images are kept, not yet their sums."""
        return not len(self.gram)

    @property
    def left_out_of_all(self) -> bool:
        """Whether `left_out` has images of every class."""
        return self.by_images and self.settings.strength_from == "all"

    def grow(self, classes: int) -> None:
        """Make room for the classes of a new task."""
        self.sums, self.weights = (np.pad(part, ((0, 0), (0, classes))) for part in (self.sums, self.weights))

    def truth(self, labels: Array) -> Array:
        """Y (images, classes)."""
        return one_hot(labels, self.weights.shape[1])

    def scores(self, features: Array) -> Array:
        """Regression values (batch, classes)."""
        return np.asarray(self.regressors(features) @ self.weights)

    def regressors(self, features: Array) -> Array:
        """Φ (batch, regressors) of features (batch, width)."""
        wide = features.astype(np.float64)
        return np.maximum(wide @ self.settings.project(len(self.weights)), 0) if self.settings.projection else wide

    def learn(self, features: Array, labels: Array, rng: np.random.Generator, keys: Array | None = None) -> LeftOut:
        """Include images and solve the regression anew; the answers to those of them that were left out."""
        del keys  # which only ImageRidge keeps
        if self.by_images and len(self.labels) + len(labels) > self.most_images:  # too many: from now on, sums are kept
            kept, self.weights = (self.features, self.labels), np.zeros((self.size, self.weights.shape[1]))
            self.features, self.labels = self.features[:0], self.labels[:0]
            self.gram, self.sums = self.add(np.zeros((self.size, self.size)), self.weights, *kept)
        if self.by_images:
            known = 0 if self.settings.strength_from == "all" else len(self.labels)
            self.features = np.concatenate([self.features, features.astype(np.float32)])
            self.labels = np.concatenate([self.labels, labels])
            return LeftOut(np.arange(len(labels)), self.solve_by_images(known)[-len(labels) :])
        order = rng.permutation(len(labels))
        scores = self._learn_by_sums(features[order], labels[order])
        return LeftOut(order[: len(scores)], scores)

    def _learn_by_sums(self, features: Array, labels: Array) -> Array:
        """λ is chosen on a fifth of the images, the solution is of all. Fewer than five leave λ as it was."""
        held, alone = len(labels) // HELD_OUT, self.settings.strength_from == "task"
        before = (np.zeros_like(self.gram), np.zeros_like(self.sums)) if alone else (self.gram, self.sums)
        gram, sums = self.add(*before, features[held:], labels[held:])
        scores = np.zeros((0, sums.shape[1]))
        if held:
            scores = self.choose_strength(gram, sums, features[:held], labels[:held])
            gram, sums = self.add(gram, sums, features[:held], labels[:held])
        self.gram, self.sums = (self.gram + gram, self.sums + sums) if alone else (gram, sums)
        self.solve_sums(features[:MOST_LEFT_OUT], labels[:MOST_LEFT_OUT])
        return scores

    def choose_strength(self, gram: Array, sums: Array, features: Array, labels: Array) -> Array:
        """Set λ to the best one for images that are not in G and C; its scores of them."""
        phi = self.regressors(features)
        strength, scores = best_strength(gram, self.truth(labels), lambda factor: phi @ solve(factor, sums))
        self.strength = np.array(strength)
        return scores

    def add(self, gram: Array, sums: Array, features: Array, labels: Array, sign: float = 1.0) -> tuple[Array, Array]:
        """G + ΦᵀΦ and C + ΦᵀY, as new arrays."""
        gram, sums = gram.copy(), sums.copy()
        for start in range(0, len(labels), MOST_ROWS):
            some = slice(start, start + MOST_ROWS)
            phi = self.regressors(features[some])
            gram += sign * (phi.T @ phi)
            sums += sign * (phi.T @ self.truth(labels[some]))
        return gram, sums

    def solve_sums(self, features: Array, labels: Array) -> None:
        """The solution, and some images scored as if each were left out: with h = φᵀ (G + λI)⁻¹ φ, its error is
        1 / (1 − h) times larger."""
        factor = factorize_surely(self.gram, float(self.strength))
        self.weights = solve(factor, self.sums)
        scores = self.truth(labels)
        for start in range(0, len(labels), MOST_ROWS):
            some = slice(start, start + MOST_ROWS)
            phi, truth = self.regressors(features[some]), scores[some].copy()
            leverage = np.minimum((phi * solve(factor, phi.T).T).sum(-1, keepdims=True), 1 - 1e-9)
            scores[some] = truth - (truth - phi @ self.weights) / (1 - leverage)
        self.left_out = Sample(scores, labels)

    def solve_by_images(self, known: int = 0, held: Array | None = None) -> Array:
        """The solution from the kept images, and the scores of those after the first `known`, each left out alone. λ is
        chosen on these or, of many, on those `held` out."""
        kernel = np.asarray(sum(phi @ phi.T for phi in self._parts()))  # ΦΦᵀ
        truth, own = self.truth(self.labels), kernel[known:, known:]
        if held is None:
            strength, scores = best_strength(own, truth[known:], lambda factor: scores_alone(factor, truth[known:]))
        else:
            others, rest = kernel[:, ~held], truth[~held]
            strength, _ = best_strength(others[~held], truth[held], lambda factor: others[held] @ solve(factor, rest))
            scores = scores_alone(factorize_surely(own, strength), truth[known:])
        self.strength, self.left_out = np.array(strength), Sample(scores, self.labels[known:])
        solution = solve(factorize_surely(kernel, strength), truth)
        self.weights = np.concatenate([phi.T @ solution for phi in self._parts()])
        return scores

    def _parts(self) -> Iterator[Array]:
        """Φ of the kept images, some columns at a time."""
        projection, features = self.settings.project(len(self.weights)), self.features.astype(np.float64)
        for start in range(0, projection.shape[1], MOST_ROWS):
            yield np.maximum(features @ projection[:, start : start + MOST_ROWS], 0)
