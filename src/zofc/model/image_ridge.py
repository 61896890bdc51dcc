"""Ridge regression as a function of the set of images learned, however they were divided into tasks and calls.

Features of the images are kept, sorted by a hash of their content, so that everything computed from them is the same
for every order of learning, and classes can be taken out again. λ is chosen by leaving out every image alone, or, where
that takes too long, those whose hash is a multiple of five. Of more images than there is room for, those with the
smallest hashes stay: again a choice by content. Their sums are of all images, and no class can be taken out then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from zofc.errors import DataError, RunError
from zofc.model.ridge import (
    HELD_OUT,
    CalibrationSample,
    LeftOut,
    RidgeHead,
    best_strength,
    best_strength_by_images,
    factorize,
)

MOST_ALONE = 512  # images up to which λ is chosen by leaving each out alone
MOST_HELD = 4096  # images that λ is chosen on beyond that
MOST_SCORED = 4096  # images that are scored as if they had not been learned
LEAST_LEFT_OUT = 10  # or so many of each class, if there are
MOST_SUMMED = 2048  # images up to which sums are computed anew, in the order of the hashes


def content_keys(features: Tensor) -> Tensor:
    """A number from 0 to 2⁶³ − 1 for each row, by its content alone."""
    rows = features.detach().cpu().float().contiguous().numpy()
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows]
    return torch.tensor([int.from_bytes(digest, "little") >> 1 for digest in digests], dtype=torch.int64)


class ImageRidge(RidgeHead):
    """A regression that keeps features of up to `keep` bytes."""

    resizable: ClassVar[tuple[str, ...]] = (*RidgeHead.resizable, "keys")
    strength_from = "images"
    keys: Tensor  # (images,), ascending: the order of features and labels
    images: Tensor  # how many were learned
    held: LeftOut | None = None  # the kept images that λ was chosen on

    def __init__(
        self,
        width: int,
        projection: int,
        budget: int | None,
        draw: Callable[[int], Tensor],
        device: torch.device,
        keep: int,
    ) -> None:
        super().__init__(width, projection, budget, draw, device)
        self.room = keep // (4 * width)
        self.most_images = min(self.most_images, self.room)
        self.widest = len(self.weights)
        where = self.gram.device
        self.register_buffer("keys", torch.zeros(0, dtype=torch.int64, device=where))
        self.register_buffer("images", torch.zeros((), dtype=torch.int64, device=where))

    @property
    def complete(self) -> bool:
        """Whether the features of all images are kept."""
        return len(self.keys) == int(self.images)

    @property
    def left_out_of_all(self) -> bool:
        """Whether `left_out` has images of every class: always, once something was learned here."""
        return self.held is not None

    def learn(
        self, features: Tensor, labels: Tensor, rng: np.random.Generator | None = None, keys: Tensor | None = None
    ) -> LeftOut:
        """Include images of new or known classes and solve the regression anew. `keys` are content keys, of these
        features by default. The images that λ was chosen on, by their place among all kept ones."""
        del rng  # nothing is drawn
        if not len(labels):
            raise DataError("a task has no training images to regress on")
        features, labels = features.to(self.features), labels.to(self.labels)
        keys = (content_keys(features) if keys is None else keys).to(self.keys)
        merged = torch.cat([self.keys, keys])
        order = torch.argsort(merged, stable=True)
        self.keys = merged[order]
        self.features = torch.cat([self.features, features])[order]
        self.labels = torch.cat([self.labels, labels])[order]
        self.images += len(labels)
        if self.by_images or (self.complete and len(self.keys) <= MOST_SUMMED):
            self._compute_sums()
        else:
            self.add(self.gram, self.sums, features, labels)
        self.keys, self.features, self.labels = (
            part[: self.room].clone() if len(part) > self.room else part
            for part in (self.keys, self.features, self.labels)
        )
        return self._solve()

    def remove(self, gone: Sequence[int]) -> None:
        """Take the images of these classes out, exactly; refused where not all features are kept."""
        if not self.complete:
            raise RunError(
                f"features of {len(self.keys):,} images of {int(self.images):,} are kept (ridge.keep_features), so "
                "those of one class cannot be taken out exactly. To forget a class of this model, train anew without "
                "its images, with a larger ridge.keep_features if you will forget more"
            )
        self.keys = self.keys[self._drop(gone)]
        self.images.fill_(len(self.keys))
        self._compute_sums()
        self._solve()

    def _compute_sums(self) -> None:
        """G and C from all features, in their order; none while the regression is solved from the images."""
        classes = self.weights.shape[1]
        by_images = len(self.keys) <= self.most_images
        size = 0 if by_images else self.size
        self.gram = self.gram.new_zeros(size, size)
        self.sums = self.sums.new_zeros(size, classes)
        self.weights = self.weights.new_zeros(self.widest if by_images else size, classes)
        self._project()
        if not by_images:
            self.add(self.gram, self.sums, self.features, self.labels)

    def _solve(self) -> LeftOut:
        """Choose λ and solve the regression."""
        if self.by_images:
            few = len(self.keys) <= MOST_ALONE
            scores = self._solve_by_images() if few else self._solve_many_images()
            self.held = LeftOut(torch.arange(len(scores)), scores)
            return self.held
        alone = self.complete and len(self.keys) <= MOST_ALONE
        strength, self.held = self._leave_out_each() if alone else self._hold_out()
        self.strength.fill_(strength)
        factor = factorize(self.gram, strength)
        self.weights.copy_(torch.cholesky_solve(self.sums, factor))
        some = self._some_of_each()
        self._leave_out(factor, self.features[some], self.labels[some])
        assert self.left_out is not None
        self.left_out = self.left_out._replace(every=(self.features, self.labels))
        return self.held

    def _some_of_each(self) -> Tensor:
        """Images of every class, those with the smallest hashes."""
        most = max(MOST_SCORED // max(self.sums.shape[1], 1), LEAST_LEFT_OUT)
        by_class = torch.argsort(self.labels, stable=True)
        starts = self.labels.bincount(minlength=self.sums.shape[1]).cumsum(0).roll(1)
        starts[0] = 0
        place = torch.arange(len(by_class), device=by_class.device) - starts[self.labels[by_class]]
        return by_class[place < most]

    def _solve_many_images(self) -> Tensor:
        """The solution by images, λ chosen on a fifth of them; the scores of every image left out alone are still cheap
        for that λ."""
        kernel, targets = self._kernel(), self._targets()
        held = self.keys % HELD_OUT == 0
        with_others = kernel[:, ~held]
        strength, _ = best_strength(with_others[~held], targets[~held], with_others[held], self.labels[held])
        self.strength.fill_(strength)
        inverse = torch.cholesky_inverse(factorize(kernel, strength))
        solution = inverse @ targets
        scores = targets - solution / inverse.diagonal()[:, None]
        self.left_out = CalibrationSample(scores, self.labels, self.features)
        self._weigh(solution)
        return scores

    def _leave_out_each(self) -> tuple[float, LeftOut]:
        phi = self.regress_from(self.features)
        strength, scores = best_strength_by_images(phi @ phi.mT, self._targets())
        return strength, LeftOut(torch.arange(len(scores)), scores)

    def _hold_out(self) -> tuple[float, LeftOut]:
        chosen = torch.nonzero(self.keys % HELD_OUT == 0)[:MOST_HELD, 0]
        if not len(chosen):
            return 1.0, LeftOut(chosen.cpu(), self.sums.new_zeros(0, self.sums.shape[1]))
        gram, sums = -self.gram, -self.sums
        self.add(gram, sums, self.features[chosen], self.labels[chosen])
        phi = self.regress_from(self.features[chosen])
        strength, scores = best_strength(-gram, -sums, phi, self.labels[chosen])
        return strength, LeftOut(chosen.cpu(), scores)
