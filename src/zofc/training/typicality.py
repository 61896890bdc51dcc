"""Whether an image is of one of the learned classes at all, by its largest score and by how typical its features are.

Features are typical of a class if they are near its mean in the Mahalanobis distance, with one scatter matrix for all
classes. With features f, whose length tells known from unknown as their direction does, class means m_c and the
within-class scatter S = Σ_i (f_i − m_y)(f_i − m_y)ᵀ,

    d_c(f) = h / (h̄ u_c),    h = (f − m_c)ᵀ (S + sI)⁻¹ (f − m_c),

where s is a share of the mean eigenvalue of S, larger the fewer images there are, h̄ the mean of h over the images of
the latest task, and u_c that of h / h̄ over the images of the class (of all classes where it has few): d is about 1 for
every class. An image that S was computed from is scored without itself: with r = n_c / (n_c − 1), h becomes
r² h / (1 − r h), by the formula of Sherman and Morrison.

Confidence is the largest score less the distance d of the features from the mean of that class, each in standard
deviations over images of known classes: of images from unseen classes, scores and distances find different ones. Scores
fall as classes are added, so those of earlier tasks' images are shifted to the mean of the latest task's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

LEAST_SHRINKAGE = 0.3
PRIOR_IMAGES = 10  # as many images of the average class weigh in with those of a class
MOST_KNOWN = 5000
REMEMBERED_IMAGES = 50  # earlier images weigh at most as much as so many of this task


@dataclass(frozen=True)
class Typicality:
    """Statistics of the features and scores of images of the learned classes, in float64."""

    means: Tensor  # (classes, width)
    counts: Tensor  # (classes,), images
    scatter: Tensor  # (width, width)
    usual: Tensor  # (classes,), the mean distance u of each class
    level: Tensor  # (), the mean of h
    known: Tensor  # (images, 2), the largest score and the distance of held-back images

    @classmethod
    def problem(cls, tensors: Mapping[str, Tensor], classes: int) -> str | None:
        """Which of the tensors cannot be part of the statistics, if one cannot; those of the last of the classes are
        missing while they are learned."""
        classes = min(len(tensors["counts"]) if "counts" in tensors and tensors["counts"].dim() else 0, classes)
        width = tensors["scatter"].shape[-1] if "scatter" in tensors and tensors["scatter"].dim() else 0
        images = len(tensors["known"]) if "known" in tensors and tensors["known"].dim() else 0
        shapes = {"means": (classes, width), "counts": (classes,), "scatter": (width, width), "usual": (classes,),
                  "level": (), "known": (images, 2)}  # fmt: skip
        for name in {**shapes, **tensors}:
            if name not in shapes or name not in tensors or tensors[name].shape != shapes[name]:
                return name
            if tensors[name].dtype != torch.float64:
                return name
        return None

    def state(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def of_classes(self, stay: Sequence[int]) -> Typicality:
        """The statistics of some of the classes; what is over all images stays as it is."""
        per_class = {name: getattr(self, name)[list(stay)] for name in ("means", "counts", "usual")}
        return replace(self, **per_class)

    def confidence(self, scores: Tensor, features: Tensor) -> Tensor:
        """How likely images (n,) are of a learned class, by their scores (n, classes) and features (n, width)."""
        top = scores.double().max(-1)
        return self._confidence(torch.stack([top.values, self.distances(features, top.indices)], dim=-1))

    def _confidence(self, pairs: Tensor) -> Tensor:
        away = (pairs - self.known.mean(0)) / self.known.std(0, correction=0).clamp_min(1e-9)
        return away[:, 0] - away[:, 1]

    def threshold(self, rate: float) -> float:
        """The confidence that a share `rate` of known images is below. Fewer than 1 / rate images cannot tell: then
        it is the lowest confidence of them, which a share 1 / (images + 1) is below."""
        images = len(self.known)
        place = (rate * (images + 1) - 1) / max(images - 1, 1)  # of the order statistic, from 0 to 1
        return float(self._confidence(self.known).quantile(min(max(place, 0.0), 1.0)))

    def distances(self, features: Tensor, classes: Tensor) -> Tensor:
        """d of features (n, width) from the mean of one class each."""
        return self.unscaled(_in_double(features), classes) / self.level / self.usual[classes]

    def unscaled(self, features: Tensor, classes: Tensor) -> Tensor:
        """h of features in float64."""
        away = features - self.means[classes]
        return ((away @ self._inverse) * away).sum(-1)

    @cached_property
    def _inverse(self) -> Tensor:
        width, images = len(self.scatter), float(self.counts.sum())
        share = LEAST_SHRINKAGE + width / max(images, 1)
        ridge = share * self.scatter.diagonal().mean().clamp_min(1e-12)
        inverse: Tensor = torch.linalg.inv(self.scatter + ridge * torch.eye(width, dtype=self.scatter.dtype))
        return inverse


def learn_typicality(scores: Tensor, labels: Tensor, features: Tensor, before: Typicality | None) -> Typicality:
    """The statistics with images of a task included, by scores (n, classes) as if they had not been learned."""
    x, top = _in_double(features), scores.double().max(-1)
    counts = labels.bincount(minlength=scores.shape[1]).double()
    means = torch.zeros(len(counts), x.shape[1], dtype=x.dtype).index_add(0, labels, x) / counts.clamp_min(1)[:, None]
    away = x - means[labels]
    new = Typicality(means, counts, away.mT @ away, torch.ones_like(counts), x.new_ones(()), x.new_zeros(0, 2))
    merged = new if before is None else _merge(before, new)
    again = merged.counts[labels] / (merged.counts[labels] - 1).clamp_min(1)
    form = merged.unscaled(x, labels)
    left_out = again.square() * form / (1 - again * form).clamp_min(1e-3)
    level = left_out.mean().clamp_min(1e-12)
    sums = torch.zeros_like(counts).index_add(0, labels, left_out / level)
    usual = (sums + PRIOR_IMAGES) / (counts + PRIOR_IMAGES)
    merged = replace(merged, usual=torch.where(counts > 0, usual, merged.usual), level=level)
    others = merged.distances(features, top.indices)
    distances = torch.where(top.indices == labels, left_out / level / merged.usual[labels], others)
    return replace(merged, known=_remember(merged.known, torch.stack([top.values, distances], dim=-1)))


def _remember(old: Tensor, new: Tensor) -> Tensor:
    """Scores and distances of earlier images, their scores shifted towards the new ones, and of the new ones."""
    weight = len(new) / (len(new) + min(len(old), REMEMBERED_IMAGES))
    shift = weight * (new[:, 0].mean() - old[:, 0].mean()) if len(old) else new.new_zeros(())
    known = torch.cat([old + torch.stack([shift, torch.zeros_like(shift)]), new])
    return known[torch.linspace(0, len(known) - 1, min(len(known), MOST_KNOWN)).long()]


def _merge(one: Typicality, other: Typicality) -> Typicality:
    """The statistics of both sets of images; `other` may have further classes."""
    more = len(other.counts) - len(one.counts)
    means, counts, usual = F.pad(one.means, (0, 0, 0, more)), F.pad(one.counts, (0, more)), F.pad(one.usual, (0, more))
    total = (counts + other.counts).clamp_min(1)
    apart = (counts * other.counts / total).sqrt()[:, None] * (means - other.means)  # of classes that are in both
    mean = (counts[:, None] * means + other.counts[:, None] * other.means) / total[:, None]
    scatter = one.scatter + other.scatter + apart.mT @ apart
    return Typicality(mean, counts + other.counts, scatter, usual, one.level, one.known)


def _in_double(features: Tensor) -> Tensor:
    return features.cpu().double()
