"""A survey of one batch: its features at the center and around it, which is all that a step asks of the backbone.

Features are small, so they are kept for all points, in double precision: at ε = 1e-3 the difference of two losses is
small beside fp32's resolution of either. What follows them, the classifier and the loss, is cheap; it is evaluated when
the classifier has moved, at the very features that moved it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten

from zofc.optim.directions import Space
from zofc.optim.dual import duals, primals, tangents
from zofc.optim.estimators import Estimator
from zofc.seeds import Noise

Moving = Mapping[str, Tensor]


class Objective(Protocol):
    """What a step needs of a method: its loss as a function of the moving parameters."""

    noise: Noise | None  # of random layers, in first-order steps only
    in_features: ClassVar[tuple[str, ...]]  # the groups that the features depend on; the loss may depend on any

    @property
    def device(self) -> torch.device: ...
    def prepare(self, images: Tensor) -> Any: ...
    def features(self, moving: Moving, prepared: Any) -> Any: ...
    def loss(self, moving: Moving, features: Any, labels: Tensor) -> Tensor: ...
    def hits(self, moving: Moving, features: Any, labels: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Chunking:
    """How a survey goes about its work: the same result in more or less memory."""

    micro_batch: int | None = None  # images at a time, all by default
    chunk: int = 1  # points at a time

    def smaller(self, batch: int) -> Chunking | None:
        """The next one that needs less memory, if there is one."""
        if self.chunk > 1:
            return Chunking(self.micro_batch, self.chunk // 2)
        size = self.micro_batch or batch
        return Chunking(size // 2) if size > 1 else None


@dataclass(frozen=True)
class Query:
    """What a survey asks for: the points around the center of a space."""

    space: Space
    vectors: Tensor  # (queries, size), or (queries, batch, size) with a direction for each image
    estimator: Estimator
    epsilon: float
    deep: bool = True  # whether the features depend on the space; else only the loss does

    @property
    def per_image(self) -> bool:
        return self.vectors.dim() == 3

    @property
    def offsets(self) -> list[tuple[int, float]]:
        """Which direction and how far, for each point; a forward gradient has a tangent instead of a point."""
        lengths = self.estimator.lengths or (1.0,)
        return [(query, self.epsilon * length) for query in range(len(self.vectors)) for length in lengths]

    def chunks(self, size: int) -> list[list[tuple[int, float]]]:
        size = 1 if self.per_image else size  # the axis of points is taken by the images then
        offsets = self.offsets
        return [offsets[i : i + size] for i in range(0, len(offsets), size)]

    def moving(self, chunk: list[tuple[int, float]]) -> dict[str, Tensor]:
        """The space's tensors at a chunk of points: stacked if there are several, or one for each image."""
        center = self.space.center
        along = torch.stack([self.vectors[query] for query, _ in chunk])  # (points, [batch,] size)
        if self.per_image:
            center = center.expand(along.shape[1:])
        along = along.to(center.dtype)
        if self.estimator.exact:
            return duals(self.space.split(center), self.space.split(along))  # type: ignore[no-any-return]
        if self.per_image or len(chunk) == 1:
            return self.space.split(torch.add(center, along[0], alpha=chunk[0][1]))
        points = [torch.add(center, line, alpha=length) for line, (_, length) in zip(along, chunk, strict=True)]
        return self.space.split(torch.stack(points))


@dataclass
class Survey:
    """Features (batch, ...) at the center if it was asked for, and (points, batch, ...) of each chunk around it."""

    pace: Chunking  # the chunks that `around` is in
    center: Any | None = None
    around: list[Any] = field(default_factory=list)


def images_apart(tree: Any) -> Any:
    """(batch, ...) as (batch, 1, ...): every image a point of its own."""
    return tree_map_only(Tensor, lambda t: t.unsqueeze(1), tree)


@torch.no_grad()
def survey(
    method: Objective,
    images: Tensor,
    query: Query | None,
    center: bool,
    pace: Chunking,
    record: Callable[..., Survey] | None = None,
) -> Survey:
    """Evaluate the features at the points of a query, and at the center if asked; nothing is changed by it. What
    `record` returns for a micro-batch it may overwrite with the next."""
    parts: list[Survey] = []
    for where, some in micro_batches(images, pace.micro_batch, method.device):
        asked = query
        if query is not None and query.per_image:
            asked = replace(query, vectors=query.vectors[:, where])
        if record is None:
            parts.append(_survey_part(method, some, asked, center, pace))
            continue

        def work(some: Tensor, along: Tensor, asked: Query | None = asked) -> Survey:
            own = None if asked is None else replace(asked, vectors=along)
            return _survey_part(method, some, own, center, pace)

        kind = ("part", pace, center, () if asked is None else tuple(asked.space.tensors))
        found = record(kind, work, some, some.new_empty(0) if asked is None else asked.vectors)
        parts.append(Survey(pace, *tree_map_only(Tensor, torch.clone, (found.center, found.around))))
    if len(parts) == 1:
        return parts[0]
    around = [_joined([part.around[i] for part in parts], axis=1) for i in range(len(parts[0].around))]
    center_of_all = None if parts[0].center is None else _joined([part.center for part in parts], axis=0)
    return Survey(pace, center_of_all, around)


def micro_batches(images: Tensor, size: int | None, device: torch.device) -> Iterator[tuple[slice, Tensor]]:
    """The batch whole or in pieces, each on the device only while it is used."""
    size = size or len(images)
    for first in range(0, len(images), size):
        where = slice(first, min(first + size, len(images)))
        yield where, images[where].to(device, non_blocking=True)


def _survey_part(method: Objective, images: Tensor, query: Query | None, center: bool, pace: Chunking) -> Survey:
    found, prepared = Survey(pace), method.prepare(images)
    exact = query is not None and query.deep and query.estimator.exact
    needs_center = center or (query is not None and (query.estimator.reads_center or not query.deep))
    if needs_center and not exact:
        found.center = in_double(method.features({}, prepared))
    if query is None or not query.deep:
        return found
    apart = images_apart(prepared) if query.per_image else prepared
    for chunk in query.chunks(pace.chunk):
        features = method.features(query.moving(chunk), apart)
        if exact:
            values, along = primals(features), tangents(features, len(chunk))
            if query.per_image:  # (batch, 1, ...) back to (batch, ...)
                values = tree_map_only(Tensor, lambda t: t.squeeze(1), values)
                along = tree_map_only(Tensor, lambda t: t.squeeze(2), along)
            found.center = in_double(values) if found.center is None else found.center
            found.around.append(in_double(along))
        elif query.per_image:
            found.around.append(in_double(tree_map_only(Tensor, lambda t: t.transpose(0, 1), features)))
        else:
            alone = len(chunk) == 1
            found.around.append(in_double(tree_map_only(Tensor, lambda t: t[None], features) if alone else features))
    return found


def _joined(trees: list[Any], axis: int) -> Any:
    return tree_map(lambda *leaves: torch.cat(leaves, dim=axis), *trees)


def coefficients(method: Objective, labels: Tensor, query: Query, found: Survey) -> tuple[Tensor, Tensor]:
    """The coefficients (queries, [batch]) at the classifier as it is now, and the losses seen, in float64."""
    loss = _loss(method, labels, query.per_image)
    if query.estimator.exact:
        return _contract(loss, query, found)
    with torch.no_grad():
        base = (
            loss({}, images_apart(found.center) if query.per_image else found.center) if query.estimator.base else None
        )
        losses = torch.cat([
            _losses(loss, query, chunk, found.around[i] if query.deep else None, found.center)
            for i, chunk in enumerate(query.chunks(found.pace.chunk))
        ])  # (points, [batch])  # fmt: skip
    shaped = losses.reshape(len(query.vectors), -1, *losses.shape[1:])
    return query.estimator.coefficients(base, shaped, query.epsilon), losses.reshape(-1)


def _losses(
    loss: Callable[[Moving, Any], Tensor],
    query: Query,
    chunk: list[tuple[int, float]],
    around: Any | None,
    center: Any,
) -> Tensor:
    """Losses (points, [batch]) of a chunk, from its features or, if they do not depend on the point, the center's."""
    moving = query.moving(chunk)
    if query.per_image:
        apart = images_apart(center) if around is None else tree_map_only(Tensor, lambda t: t.transpose(0, 1), around)
        return loss(moving, apart)[None]
    if around is None:
        return loss(moving, center).reshape(-1)
    return loss(moving, tree_map_only(Tensor, lambda t: t[0], around) if len(chunk) == 1 else around).reshape(-1)


def _contract(loss: Callable[[Moving, Any], Tensor], query: Query, found: Survey) -> tuple[Tensor, Tensor]:
    """Forward gradients: the tangents of the features, and the directions themselves where the loss reads the moving
    parameters, contracted with the loss's gradient, which is that of the small function behind the features."""
    point = query.space.center
    if query.per_image:
        point = point.expand(query.vectors.shape[1:]).clone()
    leaves, spec = tree_flatten(found.center)
    leaves = [leaf.detach().requires_grad_() if _real(leaf) else leaf for leaf in leaves]
    with torch.enable_grad():
        features = tree_unflatten(leaves, spec)
        moving = query.space.split(point.requires_grad_())
        values = loss(moving, images_apart(features) if query.per_image else features)  # () or (batch,)
        wanted = [point, *(leaf for leaf in leaves if _real(leaf))]
        own, *slopes = differentiate(values.sum(), wanted)
    total = values.new_zeros(query.vectors.shape[:-1])
    if own is not None:
        total = total + (query.vectors.to(own.dtype) * own).sum(-1).to(total.device).to(total.dtype)
    if query.deep:
        for number, slope in enumerate(slopes):
            if slope is not None:
                along = torch.cat([[t for t in tree_leaves(part) if _real(t)][number] for part in found.around])
                total = total + (along * slope).reshape(*total.shape, -1).sum(-1)
    return total.detach(), values.detach().reshape(-1)


def differentiate(value: Tensor, of: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """In the calling thread: one of autograd's own would take its own workspace for matrix products, and keep it."""
    with torch.autograd.set_multithreading_enabled(False):
        return torch.autograd.grad(value, of, allow_unused=True)


def _real(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _loss(method: Objective, labels: Tensor, per_image: bool) -> Callable[[Moving, Any], Tensor]:
    labels = labels.cpu() if method.device.type == "mps" else labels.to(method.device)  # where the features are now
    given = labels[:, None] if per_image else labels
    return lambda moving, features: method.loss(moving, features, given)


def combine_flat(query: Query, found: Tensor) -> Tensor:
    """ĝ = (1/Q) Σ_q c_q Δ_q as one vector; with a direction for each image also the mean over images."""
    vectors = query.vectors.flatten(0, -2)
    dtype = next(iter(query.space.tensors.values())).dtype
    weights = (found.reshape(-1) / found.numel()).to(dtype).to(vectors.device)  # not every device has float64
    return weights @ vectors.to(dtype)


def combine(query: Query, found: Tensor) -> dict[str, Tensor]:
    """ĝ by the names of the tensors that it is about."""
    return query.space.split(combine_flat(query, found))


def in_double(features: Any) -> Any:
    """Features, and whatever numbers come with them, in float64; on the CPU where the device has none."""

    def widened(t: Tensor) -> Tensor:
        t = t.cpu() if t.device.type == "mps" else t
        return t.double() if t.is_floating_point() else t

    return tree_map_only(Tensor, widened, features)
