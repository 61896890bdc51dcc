"""A placement says which optimiser moves which group: one training step of Algorithm 1, for any method.

Within a step the first-order groups move first, together, from one backward pass; then each set of zeroth-order groups,
at the updated values. Zeroth-order groups with equal settings form one set: one direction, one difference, one clip.
A classifier that moves by gradients reads the features that the queries need anyway.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from zofc import seeds
from zofc.optim.directions import Directions, Space
from zofc.optim.estimators import get_estimator
from zofc.optim.graphs import Recorder
from zofc.optim.movers import Mover
from zofc.optim.survey import Objective, Pace, Query, Survey, coefficients, combine, in_double, micro_batches, survey
from zofc.recipe import Group

Groups = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True)
class StepReport:
    """What a step saw on its batch: mean loss and the share of images classified right (before it moved anything)."""

    loss: float
    accuracy: float


class Placement:
    """Moves the groups of one task."""

    def __init__(
        self,
        method: Objective,
        groups: Groups,
        plans: Mapping[str, Group],
        seed: int,
        task: int,
        graphs: bool = False,
    ) -> None:
        self.method, self.groups = method, groups
        self.recorder = Recorder(graphs)
        self.notices: list[str] = []  # what a user should know of the steps so far
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
        self.paces = {name: Pace(mover.plan.micro_batch, mover.plan.chunk) for name, mover in self.zeroth.items()}
        sizes = [mover.plan.micro_batch for mover in self.first.values() if mover.plan.micro_batch]
        self.paces["first"] = Pace(min(sizes, default=None))

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
        first = {name: mover for name, mover in self.first.items() if mover.active(epoch)}
        zeroth = {name: mover for name, mover in self.zeroth.items() if mover.active(epoch)}
        labels = labels.to(self.method.device)
        reports = []
        waiting = bool(first)
        if any(name in self.method.in_features for name in first):
            reports.append(self._backward(first, images, labels, epoch, step))
            waiting = False
        for name, mover in zeroth.items():
            query = self.query(name, step, len(images))
            found = self._survey(name, images, query, center=waiting)
            if waiting:
                reports.append(self._classify(first, found.center, labels, epoch))
                waiting = False
            reports.append(self._zeroth_order(mover, query, found, labels, epoch, bool(reports)))
        if waiting:
            found = self._survey("first", images, None, center=True)
            reports.append(self._classify(first, found.center, labels, epoch))
        return next((report for report in reports if not math.isfinite(report.loss)), reports[0])

    def query(self, name: str, step: int, batch: int) -> Query:
        """What a step asks about a zeroth-order set."""
        plan, space = self.zeroth[name].plan, Space(self.zeroth[name].parameters)
        shape = (batch, space.size) if plan.per == "image" else (space.size,)
        vectors = self.directions[name].stack(step, plan.queries, shape, self.method.device)
        deep = any(member in self.method.in_features for member in name.split("+"))
        return Query(space, vectors, get_estimator(plan.estimator), plan.epsilon, deep)

    def _survey(self, name: str, images: Tensor, query: Query | None, center: bool) -> Survey:
        """A survey at the set's pace, slower where the device has not enough memory: nothing has moved yet."""
        while True:
            try:
                return self._look(name, images, query, center)
            except torch.OutOfMemoryError as error:
                self._slow_down(name, len(images), error)

    def _look(self, name: str, images: Tensor, query: Query | None, center: bool) -> Survey:
        pace = self.paces[name]
        if query is None:
            return self.recorder((name, pace), lambda some: survey(self.method, some, None, center, pace), images)  # type: ignore[no-any-return]

        def look(some: Tensor, vectors: Tensor) -> Survey:
            return survey(self.method, some, replace(query, vectors=vectors), center, pace)

        found: Survey = self.recorder((name, pace, center), look, images, query.vectors)
        return found

    def _slow_down(self, name: str, batch: int, error: torch.OutOfMemoryError) -> None:
        pace = self.paces[name].smaller(batch)
        if pace is None:
            raise error
        self.paces[name] = pace
        torch.cuda.empty_cache()
        self.notices.append(
            f"out of memory: from here on {pace.micro_batch or batch} images and {pace.chunk} points at a time ({name})"
        )

    def _backward(
        self, movers: Mapping[str, Mover], images: Tensor, labels: Tensor, epoch: int, step: int
    ) -> StepReport:
        """Move groups that the features depend on by one backward pass through the backbone."""
        while True:
            try:
                found, loss, right = self._differentiate(movers, images, labels, step)
                break
            except torch.OutOfMemoryError as error:
                self._slow_down("first", len(images), error)
        return self._move(movers, found, loss, right, len(labels), epoch)

    def _differentiate(
        self, movers: Mapping[str, Mover], images: Tensor, labels: Tensor, step: int
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        def work(some: Tensor, of: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
            return self._gradients(movers, some, of, step)

        found: tuple[dict[str, Tensor], Tensor, Tensor]
        found = self.recorder(("first", *movers, self.paces["first"]), work, images, labels)
        return found

    def _gradients(
        self, movers: Mapping[str, Mover], images: Tensor, labels: Tensor, step: int
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Gradients, loss and hits of a batch, in micro-batches if so planned."""
        leaves = _leaves(movers)
        total: dict[str, Tensor] = {}
        losses, hits = [], []
        self.method.noise = seeds.torch_stream(*self.name, "noise", step)
        for where, some in micro_batches(images, self.paces["first"].micro_batch, self.method.device):
            with torch.no_grad():
                prepared = self.method.prepare(some)
            with torch.enable_grad():  # the graph spans only what these leaves touch
                features = in_double(self.method.features(leaves, prepared))
                given = labels[where].to(_device(features))
                loss = self.method.loss(leaves, features, given) * (len(some) / len(images))
                gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
            for name, g in zip(leaves, gradients, strict=True):
                if g is not None:
                    total[name] = total[name].add_(g) if name in total else g
            losses.append(loss.detach())
            with torch.no_grad():
                hits.append(self.method.hits(leaves, features, given))
        self.method.noise = None
        return total, torch.stack(losses).sum(), torch.stack(hits).sum()

    def _classify(self, movers: Mapping[str, Mover], features: Any, labels: Tensor, epoch: int) -> StepReport:
        """Move groups that only the loss depends on, from features that are there already."""
        leaves = _leaves(movers)
        labels = labels.to(_device(features))
        with torch.enable_grad():
            loss = self.method.loss(leaves, features, labels)
            gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        found = {name: g for name, g in zip(leaves, gradients, strict=True) if g is not None}
        with torch.no_grad():
            right = self.method.hits(leaves, features, labels)
        return self._move(movers, found, loss.detach(), right, len(labels), epoch)

    def _move(
        self,
        movers: Mapping[str, Mover],
        found: Mapping[str, Tensor],
        loss: Tensor,
        right: Tensor,
        images: int,
        epoch: int,
    ) -> StepReport:
        value, hits = torch.stack([loss.double(), right.double()]).tolist()  # one wait for the device
        if math.isfinite(value):
            moved = [m.move({n: found[n] for n in m.parameters if n in found}, epoch) for m in movers.values()]
            value = value if all(moved) else math.nan
        return StepReport(value, hits / images)

    @torch.no_grad()
    def _zeroth_order(
        self, mover: Mover, query: Query, found: Survey, labels: Tensor, epoch: int, reported: bool
    ) -> StepReport:
        along, losses = coefficients(self.method, labels, query, found)
        accuracy = math.nan
        if not reported:  # training accuracy, read off a point that is at hand (ε away at most)
            near = found.center
            if near is None:
                near = tree_map_only(Tensor, lambda t: t[0], found.around[0])
            accuracy = float(self.method.hits({}, near, labels.to(_device(near)))) / len(labels)
        moved = mover.move(combine(query, along), epoch)
        return StepReport(float(losses.mean()) if moved else math.nan, accuracy)

    def state(self) -> dict[str, dict[str, Any]]:
        return {name: mover.state() for name, mover in self.movers.items()}

    def load_state(self, state: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        for name, mover in self.movers.items():
            mover.load_state(state.get(name, {}))


def _leaves(movers: Mapping[str, Mover]) -> dict[str, Tensor]:
    """Fresh leaves for autograd: the parameters themselves never ask for gradients."""
    return {
        name: value.detach().requires_grad_() for mover in movers.values() for name, value in mover.parameters.items()
    }


def _device(features: Any) -> torch.device:
    """Where the loss is computed: the CPU for a device without double precision."""
    device: torch.device = next(leaf for leaf in tree_leaves(features) if isinstance(leaf, Tensor)).device
    return device
