"""Ridge regression as a function of the set of images learned, however they were divided into lessons
(`strength_from: images`).

Features are kept, sorted by a hash of their content. λ is chosen by leaving out every image alone or, of many, those
whose hash is a multiple of five. Of more images than there is room for, those with the smallest hashes are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from zofc_device.directions import Array
from zofc_device.ridge import (
    HELD_OUT,
    MOST_LEFT_OUT,
    LeftOut,
    Ridge,
    RidgeSettings,
    Sample,
    best_strength,
    best_strength_alone,
    factorize_surely,
    one_hot,
    solve,
)

MOST_ALONE = 512  # images up to which λ is chosen by leaving each out alone
MOST_HELD = 4096  # images that λ is chosen on beyond that
LEAST_LEFT_OUT = 10  # images of each class that are scored as if they had not been learned, if there are so many
MOST_SUMMED = 2048  # images up to which sums are computed anew, in the order of the hashes


def content_keys(features: Array) -> Array:
    """A number from 0 to 2⁶³ − 1 for each row, by its content alone."""
    rows = np.ascontiguousarray(features, np.float32)
    digests = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows)
    return np.array([int.from_bytes(digest, "little") >> 1 for digest in digests], np.int64)


class ImageRidge(Ridge):
    """A regression that keeps features up to a number of bytes."""

    entries: ClassVar[tuple[str, ...]] = (*Ridge.entries, "keys", "images")
    keys: Array  # (images,), ascending: the order of features and labels
    images: Array  # how many were learned

    def __init__(self, settings: RidgeSettings, tensors: Mapping[str, Array], prefix: str) -> None:
        super().__init__(settings, tensors, prefix)
        self.held: LeftOut | None = None  # the kept images that λ was chosen on
        self.room = settings.keep_features // (4 * settings.width)
        self.most_images = min(self.most_images, self.room)

    @property
    def complete(self) -> bool:
        """Whether the features of all images are kept."""
        return len(self.keys) == int(self.images)

    @property
    def left_out_of_all(self) -> bool:
        """Whether `left_out` has images of every class: always, once something was learned here."""
        return self.held is not None

    def learn(
        self, features: Array, labels: Array, rng: np.random.Generator | None = None, keys: Array | None = None
    ) -> LeftOut:
        """Include images and solve the regression anew; `keys` are content keys, of these features by default."""
        del rng  # nothing is drawn
        features = features.astype(np.float32)
        merged = np.concatenate([self.keys, content_keys(features) if keys is None else keys])
        order = np.argsort(merged, kind="stable")
        self.keys = merged[order]
        self.features = np.concatenate([self.features, features])[order]
        self.labels = np.concatenate([self.labels, labels])[order]
        self.images = self.images + len(labels)
        if self.by_images or (self.complete and len(self.keys) <= MOST_SUMMED):
            self._sum_anew()
        else:
            self.gram, self.sums = self.add(self.gram, self.sums, features, labels)
        if len(self.keys) > self.room:
            self.keys, self.features, self.labels = (
                part[: self.room].copy() for part in (self.keys, self.features, self.labels)
            )
        self.held = self._solve_anew()
        return self.held

    def _sum_anew(self) -> None:
        """G and C from all features, in their order; none while the regression is solved from the images."""
        classes = self.weights.shape[1]
        by_images = len(self.keys) <= self.most_images
        size = 0 if by_images else self.size
        self.gram, self.sums = np.zeros((size, size)), np.zeros((size, classes))
        self.weights = np.zeros((self.settings.projection if by_images else size, classes))
        if not by_images:
            self.gram, self.sums = self.add(self.gram, self.sums, self.features, self.labels)

    def _solve_anew(self) -> LeftOut:
        """Choose λ and solve the regression."""
        if self.by_images:
            few = len(self.keys) <= MOST_ALONE
            scores = self._solve_by_images() if few else self._solve_many_images()
            return LeftOut(np.arange(len(scores)), scores)
        alone = self.complete and len(self.keys) <= MOST_ALONE
        strength, held = self._leave_out_each() if alone else self._hold_out()
        self.strength = np.array(strength)
        some = self._some_of_each()
        self._solve_sums(self.features[some], self.labels[some])
        return held

    def _some_of_each(self) -> Array:
        """Images of every class, those with the smallest hashes."""
        classes = self.sums.shape[1]
        most = max(MOST_LEFT_OUT // max(classes, 1), LEAST_LEFT_OUT)
        by_class = np.argsort(self.labels, kind="stable")
        starts = np.concatenate([[0], np.bincount(self.labels, minlength=classes).cumsum()[:-1]])
        return np.asarray(by_class[np.arange(len(by_class)) - starts[self.labels[by_class]] < most])

    def _solve_many_images(self) -> Array:
        """The solution by images, λ chosen on a fifth of them; the scores of every image left out alone."""
        kernel, truth, held = self.kernel(), one_hot(self.labels, self.weights.shape[1]), self.keys % HELD_OUT == 0
        others = kernel[:, ~held]
        strength, _ = best_strength(others[~held], truth[~held], others[held], truth[held])
        self.strength = np.array(strength)
        inverse = solve(factorize_surely(kernel, strength), np.eye(len(kernel)))
        solution = inverse @ truth
        scores = truth - solution / inverse.diagonal()[:, None]
        self.left_out = Sample(scores, self.labels)
        self.weigh(solution)
        return np.asarray(scores)

    def _leave_out_each(self) -> tuple[float, LeftOut]:
        phi = self.regressors(self.features)
        strength, scores = best_strength_alone(phi @ phi.T, one_hot(self.labels, self.sums.shape[1]))
        return strength, LeftOut(np.arange(len(scores)), scores)

    def _hold_out(self) -> tuple[float, LeftOut]:
        chosen = np.flatnonzero(self.keys % HELD_OUT == 0)[:MOST_HELD]
        if not len(chosen):
            return 1.0, LeftOut(chosen, np.zeros((0, self.sums.shape[1])))
        features, labels = self.features[chosen], self.labels[chosen]
        gram, sums = self.add(self.gram, self.sums, features, labels, sign=-1.0)
        strength, scores = best_strength(gram, sums, self.regressors(features), one_hot(labels, self.sums.shape[1]))
        return strength, LeftOut(chosen, scores)
