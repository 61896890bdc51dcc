"""Whether an image is of one of the learned classes at all, by its largest score and by how typical its features are.

Features are typical of a class if they are near its mean in the Mahalanobis distance, with one scatter matrix for all
classes. With features f, whose length tells known from unknown as their direction does, class means m_c and the
within-class scatter S = Σ_i (f_i − m_y)(f_i − m_y)ᵀ,

    d_c(f) = h_c / (h̄ u_c),    h_c = (f − m_c)ᵀ (S + sI)⁻¹ (f − m_c),

where s is a share of the mean eigenvalue of S, larger the fewer images there are, h̄ the mean of h_y over the images of
the latest task, and u_c that of h_y / h̄ over the images of the class (of all classes where it has few): d is about 1
for every class. An image that S was computed from is scored without itself: with r = n_y / (n_y − 1), h_c becomes

    (h_c + r g_c² / (1 − r h_y)) (r² where c = y),    g_c = (f − m_y)ᵀ (S + sI)⁻¹ (f − m_c),

by the formula of Sherman and Morrison, and u_y is that of the other images of the class.

Confidence is the largest score less the smallest distance d, each in standard deviations over images of known classes:
of images from unseen classes, scores and distances find different ones. The nearest class need not be the answer: an
image of a learned class is near one of them, even where the answer is wrong. (Statistics that were saved before this
rule compare with the distance from the class that is answered, and go on to.) Scores fall as classes are added, so
those of earlier tasks' images are shifted to the mean of the latest task's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

LEAST_SHRINKAGE = 0.3
PRIOR_IMAGES = 10  # as many images of the average class weigh in with those of a class
MOST_KNOWN = 5000
REMEMBERED_IMAGES = 50  # earlier images weigh at most as much as so many of this task
AT_ONCE = 4096  # images
Labelled = tuple[Tensor, Tensor]  # features (n, width), labels (n,)


@dataclass(frozen=True)
class Typicality:
    """Statistics of the features and scores of images of the learned classes, in float64."""

    means: Tensor  # (classes, width)
    counts: Tensor  # (classes,), images
    scatter: Tensor  # (width, width)
    usual: Tensor  # (classes,), the mean distance u of each class
    level: Tensor  # (), the mean of h
    known: Tensor  # (images, 2), the largest score and the distance of held-back images
    nearest: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))  # 0: the answer's distance

    @classmethod
    def problem(cls, tensors: Mapping[str, Tensor], classes: int) -> str | None:
        """Which of the tensors cannot be part of the statistics, if one cannot; those of the last of the classes are
        missing while they are learned."""
        classes = min(len(tensors["counts"]) if "counts" in tensors and tensors["counts"].dim() else 0, classes)
        width = tensors["scatter"].shape[-1] if "scatter" in tensors and tensors["scatter"].dim() else 0
        images = len(tensors["known"]) if "known" in tensors and tensors["known"].dim() else 0
        shapes = {"means": (classes, width), "counts": (classes,), "scatter": (width, width), "usual": (classes,),
                  "level": (), "known": (images, 2), "nearest": ()}  # fmt: skip
        for name in {**dict.fromkeys(shapes.keys() - {"nearest"}), **tensors}:
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
        return self._confidence(self._pairs(scores, self.distances(features)))

    def _pairs(self, scores: Tensor, distances: Tensor) -> Tensor:
        """The largest score and the distance (n, 2), by the distances (n, classes)."""
        top = scores.double().max(-1)
        if self.nearest:
            distance = distances.masked_fill(self.counts == 0, torch.inf).amin(-1)
        else:
            distance = distances.gather(1, top.indices[:, None])[:, 0]
        return torch.stack([top.values, distance], dim=-1)

    def _confidence(self, pairs: Tensor) -> Tensor:
        away = (pairs - self.known.mean(0)) / self.known.std(0, correction=0).clamp_min(1e-9)
        return away[:, 0] - away[:, 1]

    def threshold(self, rate: float) -> float:
        """The confidence that a share `rate` of known images is below. Fewer than 1 / rate images cannot tell: then
        it is the lowest confidence of them, which a share 1 / (images + 1) is below."""
        images = len(self.known)
        place = (rate * (images + 1) - 1) / max(images - 1, 1)  # of the order statistic, from 0 to 1
        return float(self._confidence(self.known).quantile(min(max(place, 0.0), 1.0)))

    def distances(self, features: Tensor) -> Tensor:
        """d (n, classes) of features (n, width) from the mean of each class."""
        forms = torch.cdist(_in_double(features) @ self._whitening, self._white_means).square()
        return forms / (self.level * self.usual)

    def forms_left_out(self, features: Tensor, labels: Tensor) -> Tensor:
        """h (n, classes) of images that the statistics are of, each without itself."""
        z, means, own = _in_double(features) @ self._whitening, self._white_means, labels[:, None]
        away = z - means[labels]
        again = (self.counts / (self.counts - 1).clamp_min(1))[own]  # r
        along = (away * z).sum(-1, keepdim=True) - away @ means.mT  # g
        rest = (1 - again * away.square().sum(-1, keepdim=True)).clamp_min(1e-3)
        forms = torch.cdist(z, means).square() + again * along.square() / rest
        return forms.scatter(1, own, again.square() * forms.gather(1, own))

    @cached_property
    def _whitening(self) -> Tensor:
        """A matrix M with M Mᵀ = (S + sI)⁻¹."""
        width, images = len(self.scatter), float(self.counts.sum())
        share = LEAST_SHRINKAGE + width / max(images, 1)
        ridge = share * self.scatter.diagonal().mean().clamp_min(1e-12)
        unit = torch.eye(width, dtype=self.scatter.dtype)
        factor = torch.linalg.cholesky_ex(self.scatter + ridge * unit).L
        inverse: Tensor = torch.linalg.solve_triangular(factor, unit, upper=False)
        return inverse.mT

    @cached_property
    def _white_means(self) -> Tensor:
        return self.means @ self._whitening


def learn_typicality(
    scores: Tensor, labels: Tensor, features: Tensor, before: Typicality | None, every: Labelled | None = None
) -> Typicality:
    """The statistics with images of a task included, by scores (n, classes) as if they had not been learned. `every`:
    more images than were scored, these among them, that means and distances are of."""
    images = every or (features, labels)
    new = _moments(images, scores.shape[1])
    merged, counts = _scale(new if before is None else _merge(before, new), images)
    distances = merged.forms_left_out(features, labels) / (merged.level * merged.usual)
    own, weights = labels[:, None], counts[labels][:, None] + PRIOR_IMAGES
    usual, others = merged.usual[own], (weights - 1).clamp_min(1)
    raw = distances.gather(1, own) * usual
    distances = distances.scatter(1, own, raw / ((weights * usual - raw) / others).clamp_min(1e-9))
    return replace(merged, known=_remember(merged.known, merged._pairs(scores, distances)))


def _moments(images: Labelled, classes: int) -> Typicality:
    """Means, counts and scatter of images; the rest is to be found."""
    features, labels = images
    counts = labels.cpu().bincount(minlength=classes).double()
    means = torch.zeros(classes, features.shape[1], dtype=torch.float64)
    for x, y in _parts(images):
        means.index_add_(0, y, x)
    means /= counts.clamp_min(1)[:, None]
    scatter = torch.zeros(features.shape[1], features.shape[1], dtype=torch.float64)
    for x, y in _parts(images):
        away = x - means[y]
        scatter.addmm_(away.mT, away)
    one = torch.ones((), dtype=torch.float64)
    return Typicality(means, counts, scatter, torch.ones_like(counts), one, torch.zeros(0, 2).double(), one)


def _scale(merged: Typicality, images: Labelled) -> tuple[Typicality, Tensor]:
    """The statistics with the mean distances of these images, and how many of each class they are of (classes,): one
    image of a class has no distance from the others."""
    sums, counts = torch.zeros_like(merged.counts), torch.zeros_like(merged.counts)
    for x, y in _parts(images):
        several = merged.counts[y] > 1
        x, y = x[several], y[several]
        forms = merged.forms_left_out(x, y).gather(1, y[:, None])[:, 0]
        sums.index_add_(0, y, forms)
        counts.index_add_(0, y, torch.ones_like(forms))
    level = (sums.sum() / counts.sum().clamp_min(1)).clamp_min(1e-12)
    usual = (sums / level + PRIOR_IMAGES) / (counts + PRIOR_IMAGES)
    return replace(merged, usual=torch.where(counts > 0, usual, merged.usual), level=level), counts


def _parts(images: Labelled) -> Iterator[Labelled]:
    """Some of the images at a time, on the CPU, in float64."""
    for features, labels in zip(*(torch.split(part, AT_ONCE) for part in images), strict=True):
        yield _in_double(features), labels.cpu()


def _remember(old: Tensor, new: Tensor) -> Tensor:
    """Scores and distances of earlier images, their scores shifted towards the new ones, and of the new ones."""
    weight = len(new) / (len(new) + min(len(old), REMEMBERED_IMAGES))
    shift = weight * (new[:, 0].mean() - old[:, 0].mean()) if len(old) else new.new_zeros(())
    known = torch.cat([old + torch.stack([shift, torch.zeros_like(shift)]), new])
    return known[torch.linspace(0, len(known) - 1, min(len(known), MOST_KNOWN)).long()]


def _merge(one: Typicality, other: Typicality) -> Typicality:
    """The statistics of both sets of images; `other` may have further classes."""
    more = len(other.counts) - len(one.counts)
    means, counts = F.pad(one.means, (0, 0, 0, more)), F.pad(one.counts, (0, more))
    usual = F.pad(one.usual, (0, more), value=1)
    total = (counts + other.counts).clamp_min(1)
    apart = (counts * other.counts / total).sqrt()[:, None] * (means - other.means)  # of classes that are in both
    mean = (counts[:, None] * means + other.counts[:, None] * other.means) / total[:, None]
    scatter = one.scatter + other.scatter + apart.mT @ apart
    return Typicality(mean, counts + other.counts, scatter, usual, one.level, one.known, one.nearest)


def _in_double(features: Tensor) -> Tensor:
    return features.cpu().double()
