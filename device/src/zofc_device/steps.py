"""One step of Algorithm 1 on a batch: the classifier moves by its gradient, then the adapter by an estimate of its own
with the updated classifier, ĝ = (1/Q) Σ_q c_q Δ_q. Features are evaluated once for both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from zofc_device.bundle import DeviceError
from zofc_device.directions import Array, Directions
from zofc_device.features import Extractor, Points
from zofc_device.heads import Head
from zofc_device.optimizers import ESTIMATORS, Optimizer, Plan

OnMove = Callable[[Optimizer, bool, int, int, Array], None]  # moved, epoch, step, shares
ORDERS = {"peft": "zeroth", "head": "first"}  # no backward pass; a classifier has its gradient in closed form


class Placement:
    """Moves the groups of one task, tensors by name: `peft`, the adapter, and `head`."""

    def __init__(self, plans: Mapping[str, Plan], head: Head, seed: int, task: int) -> None:
        for name, plan in plans.items():
            if plan.order != ORDERS[name]:
                raise DeviceError(
                    f"optimize.{name}.order: bundles learn with {ORDERS[name]} order here; train so, or with "
                    f"optimize.{name}.tasks=1, and export again"
                )
        self.head, self.optimizers = head, {name: Optimizer(plan) for name, plan in plans.items()}
        self.stream = seed, ("task", task, "peft")
        self.on_move: OnMove | None = None  # told of each zeroth-order step

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
        flat = np.concatenate([values[name].ravel() for name in adapter]) if adapter else None
        points, losses = Points(inputs, None), []
        if peft and flat is not None:
            directions, queries, shape = Directions(peft.plan.directions, *self.stream), peft.plan.queries, flat.shape
            if peft.plan.per == "image":
                shape = len(targets), *shape
                extractor.reserve(
                    directions.needed_bytes(queries, shape), f"a direction for each of {len(targets)} images"
                )
            vectors = directions.stack(number, queries, shape)
            points = extractor.around(inputs, flat, vectors, peft.plan, head is not None)
        elif inputs.ndim > 2:
            points = Points(extractor.features(inputs, flat), None)
        if head:
            assert points.center is not None
            slopes = self.head.slopes(values, points.center, targets)
            losses.append(float(slopes.loss))
            losses += [] if head.move(values, slopes.parameters, epoch) else [math.nan]
        if peft:
            along, loss = self._derivatives(values, points, targets, peft.plan)
            coefficients = along if peft.plan.per == "image" else along.mean(-1)
            shares = (coefficients.ravel() / coefficients.size).astype(np.float32)
            estimate = np.split(
                shares @ vectors.reshape(len(shares), -1), np.cumsum([values[name].size for name in adapter])
            )
            gradient = {name: part.reshape(values[name].shape) for name, part in zip(adapter, estimate, strict=False)}
            moved = peft.move(values, gradient, epoch)
            losses.append(loss if moved else math.nan)
            if self.on_move:
                self.on_move(peft, moved, epoch, number, shares)
        return losses[0] if np.isfinite(losses).all() else math.nan

    def _derivatives(
        self, values: Mapping[str, Array], points: Points, targets: Array, plan: Plan
    ) -> tuple[Array, float]:
        """Derivatives (queries, batch) of each image's loss along the directions, and the mean loss: ∂L/∂f · df_q with
        the tangents df_q of the features f, or from losses at the points φ + lεΔ_q, such as (L⁺ − L⁻) / 2ε."""
        lengths, weights, base = ESTIMATORS[plan.estimator]
        assert points.around is not None
        if not lengths:
            assert points.center is not None
            slopes = self.head.slopes(values, points.center, targets)  # of the mean loss
            return (points.around * slopes.features).sum(-1) * len(targets), float(slopes.loss)
        losses = self.head.losses(values, points.around, targets)
        total = np.tensordot(weights, losses.reshape(-1, len(lengths), len(targets)), (0, 1))
        if base and points.center is not None:
            total += base * self.head.losses(values, points.center, targets)
        return np.asarray(total / plan.epsilon), float(losses.mean())
