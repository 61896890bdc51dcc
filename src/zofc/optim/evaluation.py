"""The zeroth-order estimate on one batch (Algorithm 1, lines 5–13): the features at the center φ and at the points
around it, then losses, coefficients c_q and the estimate ĝ = (1/Q) Σ_q c_q Δ_q.

Features are small, so they are kept for all points, in double precision: at ε = 1e-3 the difference of two losses is
small beside the resolution of either in fp32. What follows the features, the classifier and the loss, is cheap: it is
evaluated after the first-order groups have moved, at the same features that their gradient was computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten

from zofc.optim.chunking import Chunking, micro_batches
from zofc.optim.directions import Space
from zofc.optim.dual import duals, primals, tangents
from zofc.optim.estimators import Estimator
from zofc.optim.graphs import Recorder
from zofc.optim.objective import Gradient, Objective, device_of, differentiate, in_double

Loss = Callable[[Mapping[str, Tensor], Any], Tensor]  # of moving parameters and features
Points = list[tuple[int, float]]  # number of the direction, distance from the center along it


@dataclass(frozen=True)
class Query:
    """The directions of a step, and with them the points around the center of a space."""

    space: Space
    vectors: Tensor  # (queries, size), or (queries, batch, size) with a direction for each image
    estimator: Estimator
    epsilon: float
    moves_features: bool = True  # whether the features depend on the space; else only the loss does

    @property
    def per_image(self) -> bool:
        """Whether each image has directions of its own."""
        return self.vectors.dim() == 3

    @property
    def points(self) -> Points:
        """All points; a forward gradient has a tangent in place of each point."""
        lengths = self.estimator.lengths or (1.0,)
        return [(query, self.epsilon * length) for query in range(len(self.vectors)) for length in lengths]

    @property
    def most_together(self) -> int:
        """How many points can be evaluated together: points of their own for each image take the axis of points, but
        tangents have one of their own."""
        return 1 if self.per_image and not self.estimator.exact else len(self.points)

    def chunks(self, size: int) -> list[Points]:
        """The perturbed points, at most `size` at a time."""
        size, points = min(size, self.most_together), self.points
        return [points[i : i + size] for i in range(0, len(points), size)]

    def moving(self, chunk: Points) -> dict[str, Tensor]:
        """The space's tensors at the points φ + lεΔ_q of a chunk (Algorithm 1, lines 7–9): stacked if there are several
        points, or one for each image. φ itself is not changed, so there is nothing to restore (line 10)."""
        center = self.space.center
        along = torch.stack([self.vectors[query] for query, _ in chunk])  # (points, [batch,] size)
        if self.per_image:
            center = center.expand(along.shape[1:])
        along = along.to(center.dtype)
        if self.estimator.exact:
            return duals(self.space.split(center), self.space.split(along))  # type: ignore[no-any-return]
        if self.per_image or len(chunk) == 1:
            return self.space.split(torch.add(center, along[0], alpha=chunk[0][1]))
        points = [torch.add(center, vector, alpha=length) for vector, (_, length) in zip(along, chunk, strict=True)]
        return self.space.split(torch.stack(points))


# -- features --------------------------------------------------------------------------------------------------------


@dataclass
class PointFeatures:
    """Features (batch, ...) at the center, if they were needed, and (points, batch, ...) around it, chunk by chunk."""

    chunking: Chunking
    center: Any | None = None
    around: list[Any] = field(default_factory=list)


@torch.no_grad()
def evaluate_features(
    method: Objective,
    images: Tensor,
    query: Query | None,
    center: bool,
    chunking: Chunking,
    recorder: Recorder | None = None,
) -> PointFeatures:
    """The features at the points of a query, and at the center if `center` or if the estimator needs them; no parameter
    is changed. A recorder may overwrite its result for one micro-batch with that for the next."""
    parts: list[PointFeatures] = []
    for where, part in micro_batches(images, chunking.micro_batch, method.device):
        points = query
        if query is not None and query.per_image:
            points = replace(query, vectors=query.vectors[:, where])
        if recorder is None:
            parts.append(_pass_features(method, part, points, center, chunking))
            continue

        def work(part: Tensor, vectors: Tensor, points: Query | None = points) -> PointFeatures:
            own = None if points is None else replace(points, vectors=vectors)
            return _pass_features(method, part, own, center, chunking)

        kind = ("part", chunking, center, () if points is None else tuple(points.space.tensors))
        result = recorder(kind, work, part, part.new_empty(0) if points is None else points.vectors)
        parts.append(PointFeatures(chunking, *tree_map_only(Tensor, torch.clone, (result.center, result.around))))
    if len(parts) == 1:
        return parts[0]
    around = [_concatenate([part.around[i] for part in parts], axis=1) for i in range(len(parts[0].around))]
    whole_center = None if parts[0].center is None else _concatenate([part.center for part in parts], axis=0)
    return PointFeatures(chunking, whole_center, around)


def _pass_features(
    method: Objective, images: Tensor, query: Query | None, center: bool, chunking: Chunking
) -> PointFeatures:
    """The features of images that pass through the backbone together."""
    result, prepared = PointFeatures(chunking), method.prepare(images)
    exact = query is not None and query.moves_features and query.estimator.exact
    needs_center = center or (query is not None and (query.estimator.reads_center or not query.moves_features))
    if needs_center and not exact:
        result.center = in_double(method.features({}, prepared))
    if query is None or not query.moves_features:
        return result
    inputs = _images_apart(prepared) if query.per_image else prepared
    for chunk in query.chunks(chunking.chunk):
        features = method.features(query.moving(chunk), inputs)
        if exact:
            values, along = primals(features), tangents(features, len(chunk))
            if query.per_image:  # (batch, 1, ...) back to (batch, ...)
                values = tree_map_only(Tensor, lambda t: t.squeeze(1), values)
                along = tree_map_only(Tensor, lambda t: t.squeeze(2), along)
            result.center = in_double(values) if result.center is None else result.center
            result.around.append(in_double(along))
        elif query.per_image:
            result.around.append(in_double(tree_map_only(Tensor, lambda t: t.transpose(0, 1), features)))
        else:
            single = len(chunk) == 1
            result.around.append(in_double(tree_map_only(Tensor, lambda t: t[None], features) if single else features))
    return result


def _images_apart(tree: Any) -> Any:
    """(batch, ...) as (batch, 1, ...): every image a point of its own."""
    return tree_map_only(Tensor, lambda t: t.unsqueeze(1), tree)


def _concatenate(trees: list[Any], axis: int) -> Any:
    return tree_map(lambda *leaves: torch.cat(leaves, dim=axis), *trees)


# -- the estimate ----------------------------------------------------------------------------------------------------


def estimate_gradient(
    method: Objective, labels: Tensor, query: Query, features: PointFeatures, hits: bool = False
) -> Gradient:
    """The estimate ĝ with the mean loss over its points and, if asked for, the hits at the center, or else at a point
    ε away from it whose features have been evaluated anyway."""
    weights, losses = coefficients(method, labels, query, features)
    shares = direction_shares(query, weights)
    values = weigh_directions(query.space, query.vectors, shares)
    return Gradient(values, losses.mean(), _center_hits(method, labels, features) if hits else None, shares)


def coefficients(method: Objective, labels: Tensor, query: Query, features: PointFeatures) -> tuple[Tensor, Tensor]:
    """The coefficients c_q (queries, [batch]) at the present values of what follows the features, in the case of SPSA
    c_q = (L⁺ − L⁻) / 2ε (Algorithm 1, line 11), and the losses of all points; in float64."""
    loss = _loss(method, labels, query.per_image)
    if query.estimator.exact:
        return _directional_derivatives(loss, query, features)
    with torch.no_grad():
        base = None
        if query.estimator.base:
            base = loss({}, _images_apart(features.center) if query.per_image else features.center)
        losses = torch.cat([
            _chunk_losses(loss, query, chunk, features.around[i] if query.moves_features else None, features.center)
            for i, chunk in enumerate(query.chunks(features.chunking.chunk))
        ])  # (points, [batch])  # fmt: skip
    shaped = losses.reshape(len(query.vectors), -1, *losses.shape[1:])
    return query.estimator.coefficients(base, shaped, query.epsilon), losses.reshape(-1)


def combine(query: Query, weights: Tensor) -> dict[str, Tensor]:
    """ĝ = (1/Q) Σ_q c_q Δ_q (Algorithm 1, line 13) by parameter name, from the coefficients c_q; with a direction for
    each image also the mean over images."""
    return weigh_directions(query.space, query.vectors, direction_shares(query, weights))


def direction_shares(query: Query, weights: Tensor) -> Tensor:
    """The shares c_q / Q of the directions in an estimate, (queries · [batch],) in the type of the parameters; with a
    direction for each image also over their number."""
    dtype = next(iter(query.space.tensors.values())).dtype
    return (weights.reshape(-1) / weights.numel()).to(dtype).to(query.vectors.device)  # not every device has float64


def weigh_directions(space: Space, vectors: Tensor, shares: Tensor) -> dict[str, Tensor]:
    """Σ_q s_q Δ_q by parameter name."""
    return space.split(shares @ vectors.flatten(0, -2).to(shares.dtype))


@torch.no_grad()
def _center_hits(method: Objective, labels: Tensor, features: PointFeatures) -> Tensor:
    near = features.center
    if near is None:
        near = tree_map_only(Tensor, lambda t: t[0], features.around[0])
    return method.hits({}, near, labels.to(device_of(near)))


def _chunk_losses(loss: Loss, query: Query, chunk: Points, around: Any | None, center: Any) -> Tensor:
    """Losses (points, [batch]) of a chunk, from its features or, if they do not depend on the point, the center's."""
    moving = query.moving(chunk)
    if query.per_image:
        apart = _images_apart(center) if around is None else tree_map_only(Tensor, lambda t: t.transpose(0, 1), around)
        return loss(moving, apart)[None]
    if around is None:
        return loss(moving, center).reshape(-1)
    return loss(moving, tree_map_only(Tensor, lambda t: t[0], around) if len(chunk) == 1 else around).reshape(-1)


def _directional_derivatives(loss: Loss, query: Query, features: PointFeatures) -> tuple[Tensor, Tensor]:
    """Forward gradients: c_q = ∂L/∂f · df_q + ∂L/∂φ · Δ_q, with the tangents df_q of the features f. Only the small
    function that follows the features is differentiated here."""
    point = query.space.center
    if query.per_image:
        point = point.expand(query.vectors.shape[1:]).clone()
    leaves, spec = tree_flatten(features.center)
    leaves = [leaf.detach().requires_grad_() if _is_real(leaf) else leaf for leaf in leaves]
    with torch.enable_grad():
        center = tree_unflatten(leaves, spec)
        moving = query.space.split(point.requires_grad_())
        values = loss(moving, _images_apart(center) if query.per_image else center)  # () or (batch,)
        inputs = [point, *(leaf for leaf in leaves if _is_real(leaf))]
        own, *slopes = differentiate(values.sum(), inputs)
    total = values.new_zeros(query.vectors.shape[:-1])
    if own is not None:
        total = total + (query.vectors.to(own.dtype) * own).sum(-1).to(total.device).to(total.dtype)
    if query.moves_features:
        for number, slope in enumerate(slopes):
            if slope is not None:
                along = torch.cat([[t for t in tree_leaves(part) if _is_real(t)][number] for part in features.around])
                total = total + (along * slope).reshape(*total.shape, -1).sum(-1)
    return total.detach(), values.detach().reshape(-1)


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _loss(method: Objective, labels: Tensor, per_image: bool) -> Loss:
    labels = labels.cpu() if method.device.type == "mps" else labels.to(method.device)  # where the features are
    labels = labels[:, None] if per_image else labels
    return lambda moving, features: method.loss(moving, features, labels)
