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
from zofc_device.ridge import HELD_OUT, LeftOut, Ridge, RidgeSettings, best_strength, scores_alone

MOST_ALONE = 512  # images up to which λ is chosen by leaving each out alone
MOST_HELD = 4096  # images that λ is chosen on beyond that
MOST_SCORED = 4096  # images that are scored as if they had not been learned
LEAST_LEFT_OUT = 10  # or so many of each class, if there are
MOST_SUMMED = 2048  # images up to which sums are computed anew, in the order of the hashes


def content_keys(features: Array) -> Array:
    """A number from 0 to 2⁶³ − 1 for each row, by its content alone."""
    digests = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in features.astype(np.float32))
    return np.array([int.from_bytes(digest, "little") >> 1 for digest in digests], np.int64)


class ImageRidge(Ridge):
    """A regression that keeps features up to a number of bytes."""

    entries: ClassVar[tuple[str, ...]] = (*Ridge.entries, "keys", "images")
    keys: Array  # (images,), ascending: the order of features and labels
    images: Array  # how many were learned

    def __init__(self, settings: RidgeSettings, tensors: Mapping[str, Array], prefix: str) -> None:
        super().__init__(settings, tensors, prefix)
        self.room = settings.keep_features // (4 * settings.width)
        self.most_images = min(self.most_images, self.room)

    @property
    def complete(self) -> bool:
        """Whether the features of all images are kept."""
        return len(self.keys) == int(self.images)

    @property
    def left_out_of_all(self) -> bool:
        """Whether `left_out` has images of every class: always, once something was learned here."""
        return self.left_out is not None

    def learn(self, features: Array, labels: Array, rng: np.random.Generator, keys: Array | None = None) -> LeftOut:
        """Include images and solve the regression anew; `keys` are content keys, of these features by default. The kept
        images that λ was chosen on."""
        del rng  # nothing is drawn
        features = features.astype(np.float32)
        merged = np.concatenate([self.keys, content_keys(features) if keys is None else keys])
        order = np.argsort(merged, kind="stable")
        self.keys, self.images = merged[order], self.images + len(labels)
        self.features = np.concatenate([self.features, features])[order]
        self.labels = np.concatenate([self.labels, labels])[order]
        if self.by_images or (self.complete and len(self.keys) <= MOST_SUMMED):
            by_images = len(self.keys) <= self.most_images
            size, classes = 0 if by_images else self.size, self.weights.shape[1]
            self.weights = np.zeros((self.settings.projection if by_images else size, classes))
            some = slice(0 if by_images else None)
            empty = np.zeros((size, size)), np.zeros((size, classes))
            self.gram, self.sums = self.add(*empty, self.features[some], self.labels[some])
        else:
            self.gram, self.sums = self.add(self.gram, self.sums, features, labels)
        for name in ("keys", "features", "labels"):
            setattr(self, name, getattr(self, name)[: self.room].copy())
        return self._solve_anew()

    def _solve_anew(self) -> LeftOut:
        """Choose λ and solve the regression."""
        few, held = len(self.keys) <= MOST_ALONE, self.keys % HELD_OUT == 0
        if self.by_images:
            return LeftOut(np.arange(len(self.keys)), self.solve_by_images(held=None if few else held))
        if self.complete and few:
            phi, truth = self.regressors(self.features), self.truth(self.labels)
            strength, scores = best_strength(phi @ phi.T, truth, lambda factor: scores_alone(factor, truth))
            answer, self.strength = LeftOut(np.arange(len(scores)), scores), np.array(strength)
        elif len(chosen := np.flatnonzero(held)[:MOST_HELD]):
            features, labels = self.features[chosen], self.labels[chosen]
            sums = self.add(self.gram, self.sums, features, labels, sign=-1.0)
            answer = LeftOut(chosen, self.choose_strength(*sums, features, labels))
        else:
            answer, self.strength = LeftOut(chosen, np.zeros((0, self.sums.shape[1]))), np.array(1.0)
        some = self._some_of_each()
        self.solve_sums(self.features[some], self.labels[some])
        return answer

    def _some_of_each(self) -> Array:
        """Images of every class, those with the smallest hashes."""
        classes = self.sums.shape[1]
        most = max(MOST_SCORED // max(classes, 1), LEAST_LEFT_OUT)
        by_class = np.argsort(self.labels, kind="stable")
        starts = np.concatenate([[0], np.bincount(self.labels, minlength=classes).cumsum()[:-1]])
        return np.asarray(by_class[np.arange(len(by_class)) - starts[self.labels[by_class]] < most])
