"""The update of a group of parameters from its (estimated) gradient: clip, SGD as torch defines it, a schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from zofc_device.bundle import BundleError
from zofc_device.directions import KINDS, Array

ESTIMATORS = {  # distances from the center in ε, their weights, the weight of the center; a derivative has none
    "spsa": ((1.0, -1.0), (0.5, -0.5), 0.0),
    "one_sided": ((1.0,), (1.0,), -1.0),
    "forward_gradient": ((), (), 0.0),
}
ALLOWED = {
    "order": ("first", "zeroth"), "optimizer": ("sgd", "sign"), "schedule": ("constant", "cosine", "cosine99"),
    "directions": KINDS, "per": ("batch", "image"), "length": ("own",),
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """How one group is moved: a group of `optimize` in a manifest."""

    order: str
    epochs: int
    start: int
    steps: int | None
    optimizer: str
    lr: float
    momentum: float
    weight_decay: float
    schedule: str
    min_lr: float
    clip: float | None
    estimator: str
    queries: int
    epsilon: float
    directions: str
    per: str
    length: str

    @classmethod
    def of(cls, name: str, settings: Mapping[str, Any]) -> Plan:
        """The plan of a group; settings of memory and speed are not read."""
        plan = cls(**{field.name: settings[field.name] for field in fields(cls)})
        estimators = {"estimator": tuple(ESTIMATORS)} if plan.order == "zeroth" else {}
        for key, allowed in (ALLOWED | estimators).items():
            if (value := getattr(plan, key)) not in allowed:
                raise BundleError(
                    f"optimize.{name}.{key}: a bundle can learn with {' or '.join(allowed)}, not {value!r}"
                )
        return plan

    def for_batches(self, batches: int) -> Plan:
        """The plan for a task whose epochs have so many batches: no more whole epochs than `steps` allows."""
        most = self.epochs if self.steps is None else max(self.start + 1, self.steps // max(batches, 1))
        return replace(self, epochs=min(self.epochs, most))

    def active(self, epoch: int) -> bool:
        """Whether the group moves in this epoch."""
        return self.start <= epoch < self.epochs

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch."""
        if self.schedule == "constant":
            return self.lr
        if self.schedule == "cosine99":
            return self.lr * math.cos(0.99 * math.pi / 2 * epoch / max(self.epochs - 1, 1))
        return self.min_lr + (self.lr - self.min_lr) * (1 + math.cos(math.pi * epoch / self.epochs)) / 2


class Optimizer:
    """Moves tensors of a mapping, which are replaced, never changed in place."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.momentum: dict[str, Array] = {}  # by parameter
        self.scale = 1.0  # by which the clip of the last step shortened its gradient

    def move(self, values: dict[str, Array], gradient: Mapping[str, Array], epoch: int) -> bool:
        """θ ← θ − η clip(g); False, and nothing is changed, if the gradient is not finite."""
        squares = (float(np.square(g, dtype=np.float64).sum()) for g in gradient.values())
        norm = math.sqrt(sum(squares))  # of the whole set
        if not math.isfinite(norm):
            return False
        plan = self.plan
        self.scale = scale = plan.clip / norm if plan.clip is not None and norm > plan.clip else 1.0
        for name, g in gradient.items():
            g = g.astype(np.float32) * np.float32(scale)
            g = np.sign(g) if plan.optimizer == "sign" else g
            g = g + np.float32(plan.weight_decay) * values[name] if plan.weight_decay else g
            if plan.momentum:
                g = np.float32(plan.momentum) * self.momentum[name] + g if name in self.momentum else g
                self.momentum[name] = np.asarray(g)
            values[name] = np.asarray(values[name] - np.float32(plan.rate(epoch)) * g, np.float32)
        return True
