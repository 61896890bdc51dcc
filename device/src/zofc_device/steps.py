"""One step of Algorithm 1 on a batch: the classifier moves by its gradient, then zeroth-order groups by an estimate of
theirs with the updated classifier, ĝ = (1/Q) Σ_q c_q Δ_q. Features are evaluated once for both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from zofc_device.directions import Array, Directions
from zofc_device.errors import DeviceError
from zofc_device.features import Extractor, Points
from zofc_device.heads import Head
from zofc_device.optimizers import ESTIMATORS, Optimizer, Plan


@dataclass(frozen=True)
class Batch:
    """Pixels (batch, s, s, 3), or features (batch, width) where they are always the same, and columns of the scores."""

    inputs: Array
    targets: Array


@dataclass
class ZerothOrderSet:
    """Groups with equal plans as one vector φ: one direction, one loss difference, one clip for all of them."""

    names: list[str]
    optimizer: Optimizer
    directions: Directions
    moves_features: bool


class Placement:
    """Moves the groups of one task, tensors of `values` by name."""

    def __init__(
        self, groups: Mapping[str, Sequence[str]], plans: Mapping[str, Plan], head: Head, seed: int, task: int
    ) -> None:
        self.head = head
        self.first: dict[str, Optimizer] = {}
        self.sets: dict[str, ZerothOrderSet] = {}
        for name in groups:
            plan = plans[name]
            members = [other for other in groups if plans[other] == plan]
            if plan.order == "first":
                if name != "head":
                    raise DeviceError(
                        f"optimize.{name}.order: first order needs a backward pass, which there is none of here; train "
                        f"with optimize.{name}.order=zeroth, or with optimize.{name}.tasks=1, and export again"
                    )
                self.first[name] = Optimizer(plan)
            elif name == members[0]:
                label, names = "+".join(members), [key for member in members for key in groups[member]]
                directions = Directions(plan.directions, seed, ("task", task, label))
                self.sets[label] = ZerothOrderSet(names, Optimizer(plan), directions, "peft" in members)

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """By first-order group and by label of a zeroth-order set."""
        return {**self.first, **{label: part.optimizer for label, part in self.sets.items()}}

    @property
    def epochs(self) -> int:
        """Number of epochs until the last group stops moving."""
        return max((optimizer.plan.epochs for optimizer in self.optimizers.values()), default=0)

    def step(
        self,
        values: dict[str, Array],
        adapter: Sequence[str],
        extractor: Extractor,
        batch: Batch,
        epoch: int,
        number: int,
    ) -> float:
        """The loss before the step; `number` counts within the task and names the directions."""
        first = [optimizer for optimizer in self.first.values() if optimizer.plan.active(epoch)]
        sets = [part for part in self.sets.values() if part.optimizer.plan.active(epoch)]
        work = _StepWork(self.head, values, adapter, extractor, batch, number)
        points, losses = work.evaluate(sets[0] if sets else None, bool(first)), []
        for optimizer in first:
            assert points.center is not None
            slopes = self.head.slopes(values, points.center, batch.targets)
            losses.append(float(slopes.loss))
            if not optimizer.move(values, slopes.parameters, epoch):
                return math.nan
        for count, part in enumerate(sets):
            points = work.evaluate(part, False) if count else points
            gradient, loss = work.estimate(part, points)
            losses.append(loss)
            if not math.isfinite(loss) or not part.optimizer.move(values, gradient, epoch):
                return math.nan
        return losses[0]


@dataclass
class _StepWork:
    """What one step computes."""

    head: Head
    values: dict[str, Array]
    adapter: Sequence[str]
    extractor: Extractor
    batch: Batch
    number: int
    drawn: dict[int, Array] = field(default_factory=dict)  # by set

    def evaluate(self, part: ZerothOrderSet | None, center: bool) -> Points:
        """Features at the points of a set, and at the center if needed."""
        inputs = self.batch.inputs
        if inputs.ndim == 2:
            return Points(inputs, None)
        if not self.adapter:
            return Points(self.extractor.frozen(inputs), None)
        flat = np.concatenate([self.values[name].ravel() for name in self.adapter])
        if part is None or not part.moves_features:
            return Points(self.extractor.adapted(inputs, flat), None)
        vectors = np.ascontiguousarray(self._vectors(part)[..., : len(flat)])
        return self.extractor.around(inputs, flat, vectors, part.optimizer.plan, center)

    def estimate(self, part: ZerothOrderSet, points: Points) -> tuple[dict[str, Array], float]:
        """The estimate ĝ by tensor, at the present values of the classifier, and the mean loss over its points."""
        vectors, plan = self._vectors(part), part.optimizer.plan
        coefficients, loss = (self._differences if ESTIMATORS[plan.estimator][0] else self._slopes)(
            part, points, vectors
        )
        shares = (coefficients.ravel() / coefficients.size).astype(np.float32)
        flat = shares @ vectors.reshape(len(shares), -1)
        return self._split(part, flat), loss

    def _vectors(self, part: ZerothOrderSet) -> Array:
        plan, size = part.optimizer.plan, sum(self.values[name].size for name in part.names)
        shape = (len(self.batch.targets), size) if plan.per == "image" else (size,)
        if id(part) not in self.drawn:
            self.drawn = {id(part): part.directions.stack(self.number, plan.queries, shape)}
        return self.drawn[id(part)]

    def _split(self, part: ZerothOrderSet, flat: Array) -> dict[str, Array]:
        """Vectors (..., size) as tensors (..., *shape) by name."""
        shapes = [self.values[name].shape for name in part.names]
        pieces = np.split(flat, np.cumsum([math.prod(shape) for shape in shapes])[:-1], axis=-1)
        return {
            name: piece.reshape((*flat.shape[:-1], *shape))
            for name, piece, shape in zip(part.names, pieces, shapes, strict=True)
        }

    def _differences(self, part: ZerothOrderSet, points: Points, vectors: Array) -> tuple[Array, float]:
        """c_q from losses at points φ + lεΔ_q, such as (L⁺ − L⁻) / 2ε; with a point for each image, one for each."""
        plan, apart = part.optimizer.plan, vectors.ndim == 3
        lengths, weights, base = ESTIMATORS[plan.estimator]
        targets = self.batch.targets[:, None] if apart else self.batch.targets

        def loss(values: Mapping[str, Array], features: Array | None) -> Array:
            assert features is not None
            return self.head.losses(values, features[:, None] if apart else features, targets)

        losses = []
        for place, (vector, length) in enumerate((vector, length) for vector in vectors for length in lengths):
            moved = {
                name: self.values[name] + np.float32(length * plan.epsilon) * along
                for name, along in self._split(part, vector).items()
                if name.startswith("head.")
            }
            features = points.center if points.around is None else points.around[place]
            losses.append(loss({**self.values, **moved}, features))
        shaped = np.stack(losses).reshape(len(vectors), len(lengths), *losses[0].shape)
        total = sum(weight * shaped[:, i] for i, weight in enumerate(weights))
        total = total + base * loss(self.values, points.center) if base else total
        return np.asarray(total / plan.epsilon), float(np.mean(losses))

    def _slopes(self, part: ZerothOrderSet, points: Points, vectors: Array) -> tuple[Array, float]:
        """Forward gradients: c_q = ∂L/∂f · df_q + ∂L/∂ψ · Δ_q, with the tangents df_q of the features f."""
        assert points.center is not None
        apart, targets, center = vectors.ndim == 3, self.batch.targets, points.center
        slopes = self.head.slopes(
            self.values, center[:, None] if apart else center, targets[:, None] if apart else targets
        )
        total = np.zeros(vectors.shape[:-1])
        if points.around is not None:
            total += (points.around * slopes.features.reshape(center.shape)).sum(-1 if apart else (-2, -1))
        for name, along in self._split(part, vectors).items():
            if name in slopes.parameters:
                axes = tuple(range(total.ndim, along.ndim))
                total += (along * slopes.parameters[name]).sum(axes)
        return total, float(np.mean(slopes.loss))
