"""A step that is divided over ranks: by images, each rank having some of every batch, or by queries, each having some
of the directions. What travels are the shares s_q of the directions, or the gradient of first-order groups.

With w_r the part of the work that rank r does, an estimate is Σ_q (Σ_r w_r s_q,r) Δ_q and a gradient Σ_r w_r g_r.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from zofc.optim.evaluation import Query, weigh_directions
from zofc.optim.objective import Gradient
from zofc.ranks import Ranks, Share


@dataclass(frozen=True)
class Division:
    """Which part of a step a rank evaluates, and the step of all ranks from their parts."""

    ranks: Ranks = field(default_factory=Ranks)
    by: Literal["images", "queries"] = "images"

    def images(self, batch: int) -> Share:
        """The images of a batch that this rank evaluates: under a division by queries, all of them, though only those
        of the first rank count where no query is involved."""
        return self.ranks.part(batch) if self.by == "images" else Share(slice(0, batch), batch, float(self.ranks.first))

    def own(self, query: Query, images: Share) -> Query:
        """The part of a query that this rank evaluates."""
        vectors = query.vectors[:, images.where] if query.per_image else query.vectors
        return replace(query, vectors=vectors[self._queries(query).where])

    def _queries(self, query: Query) -> Share:
        count = len(query.vectors)
        return self.ranks.part(count) if self.by == "queries" else Share(slice(0, count), count, 1.0)

    def gradient_of_all(self, gradient: Gradient, images: Share) -> Gradient:
        """The gradient of first-order groups on the whole batch, from that on this rank's images."""
        if self.ranks.alone:
            return gradient
        flat = [g.reshape(-1) * images.weight for g in gradient.values.values()]
        values, loss, hits = self._sum("gradient", flat, gradient, images.weight, images)
        pieces = torch.split(values, [g.numel() for g in gradient.values.values()])
        named = zip(gradient.values.items(), pieces, strict=True)
        return Gradient({name: piece.reshape(g.shape) for (name, g), piece in named}, loss, hits)

    def estimate_of_all(self, estimate: Gradient, query: Query, images: Share) -> Gradient:
        """The estimate along all directions of a step, from that of this rank's part of them or of its images."""
        if self.ranks.alone:
            return estimate
        assert estimate.shares is not None
        queries = self._queries(query)
        weight = images.weight if self.by == "images" else queries.weight
        shares = estimate.shares.new_zeros(query.vectors.shape[:-1])
        if weight:
            own = (queries.where, images.where) if query.per_image else (queries.where,)
            shares[own] = weight * estimate.shares.reshape(shares[own].shape)
        total, loss, hits = self._sum("coefficients", [shares.reshape(-1)], estimate, weight, images)
        return Gradient(weigh_directions(query.space, query.vectors, total), loss, hits, total)

    def _sum(
        self, what: str, numbers: list[Tensor], part: Gradient, weight: float, images: Share
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The sums over all ranks of these numbers, of the loss and of the hits, in one message."""
        flat = torch.cat(numbers) if numbers else part.loss.new_zeros(0)
        hits = torch.zeros_like(part.loss) if part.hits is None else part.hits * (images.weight > 0)
        report = torch.stack([part.loss * weight, hits.to(part.loss)])
        total = self.ranks.sum({what: flat, "loss and hits": report})
        loss, right = total["loss and hits"]
        return total[what], loss, None if part.hits is None else right
