"""One step of Algorithm 1 on a batch: the classifier moves by its gradient, then the adapter by an estimate of its own
with the updated classifier, ĝ = (1/Q) Σ_q c_q Δ_q. Features are evaluated once for both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from zofc_device.bundle import DeviceError
from zofc_device.directions import Array, Directions
from zofc_device.features import Extractor, Points
from zofc_device.heads import Head
from zofc_device.optimizers import ESTIMATORS, Optimizer, Plan

ORDERS = {
    "peft": "zeroth",
    "head": "first",
}  # there is no backward pass, and a classifier has its gradient in closed form


class Placement:
    """Moves the groups of one task, tensors by name: `peft`, the adapter, and `head`."""

    def __init__(self, groups: Sequence[str], plans: Mapping[str, Plan], head: Head, seed: int, task: int) -> None:
        for name in groups:
            if plans[name].order != ORDERS[name]:
                raise DeviceError(
                    f"optimize.{name}.order: bundles learn with {ORDERS[name]} order here; train so, or with "
                    f"optimize.{name}.tasks=1, and export again"
                )
        self.head, self.optimizers = head, {name: Optimizer(plans[name]) for name in groups}
        self.stream = seed, ("task", task, "peft")

    @property
    def epochs(self) -> int:
        """Number of epochs until the last group stops moving."""
        return max((optimizer.plan.epochs for optimizer in self.optimizers.values()), default=0)

    def step(
        self, values: dict[str, Array], adapter: Sequence[str], extractor: Extractor, inputs: Array, targets: Array,
        epoch: int, number: int,
    ) -> float:  # fmt: skip
        """The loss before the step, on pixels (batch, s, s, 3), or on features (batch, width) where they are always the
        same, and columns of the scores; `number` counts within the task and names the directions."""
        head, peft = (
            one if one and one.plan.active(epoch) else None for one in map(self.optimizers.get, ("head", "peft"))
        )
        flat = np.concatenate([values[name].ravel() for name in adapter]) if adapter else np.zeros(0, np.float32)
        points, vectors, losses = Points(inputs, None), flat, []
        if peft:
            shape = (len(targets), len(flat)) if peft.plan.per == "image" else (len(flat),)
            vectors = Directions(peft.plan.directions, *self.stream).stack(number, peft.plan.queries, shape)
            points = extractor.around(inputs, flat, vectors, peft.plan, head is not None)
        elif inputs.ndim > 2:
            points = Points(extractor.adapted(inputs, flat) if adapter else extractor.frozen(inputs), None)
        if head:
            assert points.center is not None
            slopes = self.head.slopes(values, points.center, targets)
            losses.append(float(slopes.loss))
            losses += [] if head.move(values, slopes.parameters, epoch) else [math.nan]
        if peft:
            work = self._differences if ESTIMATORS[peft.plan.estimator][0] else self._slopes
            coefficients, loss = work(values, points, targets, peft.plan)
            shares = (coefficients.ravel() / coefficients.size).astype(np.float32)
            estimate = np.split(
                shares @ vectors.reshape(len(shares), -1), np.cumsum([values[name].size for name in adapter])
            )
            gradient = {name: part.reshape(values[name].shape) for name, part in zip(adapter, estimate, strict=False)}
            losses.append(loss if peft.move(values, gradient, epoch) else math.nan)
        return losses[0] if np.isfinite(losses).all() else math.nan

    def _differences(
        self, values: Mapping[str, Array], points: Points, targets: Array, plan: Plan
    ) -> tuple[Array, float]:
        """c_q from losses at the points φ + lεΔ_q, such as (L⁺ − L⁻) / 2ε, and the mean loss; one for each image, if
        each has points of its own."""
        lengths, weights, base = ESTIMATORS[plan.estimator]
        assert points.around is not None
        apart = plan.per == "image"
        where, every = (targets[:, None], points.around[:, :, None]) if apart else (targets, points.around)
        losses = np.stack([self.head.losses(values, features, where) for features in every])
        total = np.tensordot(weights, losses.reshape(-1, len(lengths), *losses.shape[1:]), (0, 1))
        if base and points.center is not None:
            total += base * self.head.losses(values, points.center[:, None] if apart else points.center, where)
        return np.asarray(total / plan.epsilon), float(losses.mean())

    def _slopes(self, values: Mapping[str, Array], points: Points, targets: Array, plan: Plan) -> tuple[Array, float]:
        """Forward gradients: c_q = ∂L/∂f · df_q with the tangents df_q of the features f, and the mean loss."""
        assert points.center is not None and points.around is not None
        slopes, apart = self.head.slopes(values, points.center, targets), plan.per == "image"
        along = points.around * slopes.features  # of the mean loss: for each image, those of its own
        return (
            (along.sum(-1) * len(targets), float(slopes.loss)) if apart else (along.sum((-2, -1)), float(slopes.loss))
        )
