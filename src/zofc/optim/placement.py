"""A placement says which optimiser moves which group: one training step of Algorithm 1, for any method.

Within a step the first-order groups move first, together, from one backward pass; then each set of zeroth-order groups,
at the updated values. Zeroth-order groups with equal settings form one set: one direction, one difference, one clip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from zofc import seeds
from zofc.optim.directions import Directions
from zofc.optim.estimators import Probe, get_estimator
from zofc.optim.movers import Mover
from zofc.recipe import Group

Moving = Mapping[str, Tensor]
Groups = Mapping[str, Mapping[str, Tensor]]


class Objective(Protocol):
    """What a placement needs of a method: its loss as a function of the moving parameters."""

    noise: torch.Generator | None  # the stream of random layers, in first-order steps only

    def prepare(self, images: Tensor) -> Any: ...
    def features(self, moving: Moving, prepared: Any) -> Any: ...
    def loss(self, moving: Moving, features: Any, labels: Tensor) -> Tensor: ...
    def hits(self, moving: Moving, features: Any, labels: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class StepReport:
    """What a step saw on its batch: mean loss and the share of images classified right (before it moved anything)."""

    loss: float
    accuracy: float


class Placement:
    """Moves the groups of one task."""

    def __init__(self, method: Objective, groups: Groups, plans: Mapping[str, Group], seed: int, task: int) -> None:
        self.method, self.groups = method, groups
        self.name: tuple[int, str, int] = (seed, "task", task)
        self.first = {name: Mover(groups[name], plans[name]) for name in groups if plans[name].order == "first"}
        self.zeroth: dict[str, Mover] = {}
        for plan in dict.fromkeys(plans[name] for name in groups if plans[name].order == "zeroth"):
            members = [name for name in groups if plans[name] == plan]
            tensors = {key: value for name in members for key, value in groups[name].items()}
            self.zeroth["+".join(members)] = Mover(tensors, plan)
        self.directions = {
            name: Directions(mover.plan.directions, seed, ("task", task, name)) for name, mover in self.zeroth.items()
        }

    @property
    def movers(self) -> dict[str, Mover]:
        return {**self.first, **self.zeroth}

    @property
    def epochs(self) -> int:
        return max((mover.plan.epochs for mover in self.movers.values()), default=0)

    @property
    def sizes(self) -> dict[str, int]:
        """Numbers that move, per group."""
        return {name: sum(value.numel() for value in group.values()) for name, group in self.groups.items()}

    def learning_rates(self, epoch: int) -> dict[str, float]:
        return {name: mover.learning_rate(epoch) for name, mover in self.movers.items() if mover.active(epoch)}

    def step(self, images: Tensor, labels: Tensor, epoch: int, step: int) -> StepReport:
        """One step on one batch; `step` counts within the task and names the directions."""
        reports = []
        first = [mover for mover in self.first.values() if mover.active(epoch)]
        whole: Any = None
        if first or any(m.plan.micro_batch is None for m in self.zeroth.values() if m.active(epoch)):
            with torch.no_grad():
                whole = self.method.prepare(images)
        if first:
            reports.append(self._first_order(first, whole, labels, epoch, step))
        for name, mover in self.zeroth.items():
            if mover.active(epoch):
                parts = partial(self._parts, mover.plan.micro_batch, images, whole, labels)
                reports.append(self._zeroth_order(mover, self.directions[name], parts, epoch, step))
        return next((report for report in reports if not math.isfinite(report.loss)), reports[0])

    def _first_order(self, movers: list[Mover], prepared: Any, labels: Tensor, epoch: int, step: int) -> StepReport:
        leaves = {name: value.detach().requires_grad_() for mover in movers for name, value in mover.parameters.items()}
        self.method.noise = seeds.torch_stream(*self.name, "noise", step)
        with torch.enable_grad():  # the graph spans only what these leaves touch
            features = self.method.features(leaves, prepared)
            loss = self.method.loss(leaves, features, labels)
            gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        found = {name: g for name, g in zip(leaves, gradients, strict=True) if g is not None}
        self.method.noise = None
        with torch.no_grad():
            accuracy = float(self.method.hits(leaves, features, labels)) / len(labels)
        value = float(loss.detach())
        if math.isfinite(value):
            moved = [mover.move({n: found[n] for n in mover.parameters if n in found}, epoch) for mover in movers]
            value = value if all(moved) else math.nan
        return StepReport(value, accuracy)

    @torch.no_grad()
    def _zeroth_order(
        self,
        mover: Mover,
        directions: Directions,
        parts: Callable[[Tally], Iterable[MethodPart]],
        epoch: int,
        step: int,
    ) -> StepReport:
        plan, tally = mover.plan, Tally()
        probe = Probe(partial(parts, tally), mover.parameters, directions, step, plan.queries, plan.chunk)
        coefficients, losses = get_estimator(plan.estimator)(probe, plan.epsilon)
        moved = mover.move(combine(probe, coefficients), epoch)
        return StepReport(float(losses.mean()) if moved else math.nan, tally.accuracy)

    def _parts(
        self, size: int | None, images: Tensor, whole: Any, labels: Tensor, tally: Tally
    ) -> Iterator[MethodPart]:
        """The batch whole, or in micro-batches, each prepared once for all queries."""
        if size is None:
            yield MethodPart(self.method, whole, labels, 1.0, tally)
            return
        for some, some_labels in zip(torch.split(images, size), torch.split(labels, size), strict=True):
            tally.closed = False
            prepared = self.method.prepare(some)
            yield MethodPart(self.method, prepared, some_labels, len(some_labels) / len(labels), tally)

    def state(self) -> dict[str, dict[str, Any]]:
        return {name: mover.state() for name, mover in self.movers.items()}

    def load_state(self, state: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        for name, mover in self.movers.items():
            mover.load_state(state.get(name, {}))


def combine(probe: Probe, coefficients: Tensor) -> dict[str, Tensor]:
    """ĝ = (1/Q) Σ_q c_q Δ_q, the directions drawn again."""
    total = {name: torch.zeros_like(value) for name, value in probe.center.items()}
    for query, coefficient in enumerate(coefficients.tolist()):
        for name, delta in probe.direction(query).items():
            total[name].add_(delta, alpha=coefficient / len(coefficients))
    return total


@dataclass(frozen=True)
class MethodPart:
    """A micro-batch under a method, ready to be evaluated at perturbed points.

    At ε = 1e-3 the difference of two losses is small beside fp32's resolution of either: what follows the features is
    cheap, and is computed in double precision (on the CPU where the device has none).
    """

    method: Objective
    prepared: Any
    labels: Tensor
    share: float
    tally: Tally

    def losses(self, points: Moving, count: int) -> Tensor:
        features = in_double(self.method.features(points, self.prepared))
        labels = self.labels.cpu() if self.labels.device.type == "mps" else self.labels  # where the features are now
        if not self.tally.closed:
            self.tally.add(float(self.method.hits(points, features, labels).reshape(-1)[0]), len(labels))
        return self.method.loss(points, features, labels).reshape(-1).expand(count)


@dataclass
class Tally:
    """Training accuracy of a zeroth-order step, read off its first point (ε away), at no extra cost."""

    right: float = 0.0
    seen: int = 0
    closed: bool = False

    def add(self, right: float, seen: int) -> None:
        self.right += right
        self.seen += seen
        self.closed = True  # one point per part is enough; the next part opens it again

    @property
    def accuracy(self) -> float:
        return self.right / self.seen


def in_double(features: Any) -> Any:
    """Features, and whatever comes with them, in float64."""
    return tree_map_only(Tensor, lambda t: t.cpu().double() if t.device.type == "mps" else t.double(), features)
