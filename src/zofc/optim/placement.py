"""A placement says which optimiser moves which group: one training step of Algorithm 1, for any method.

Within a step the first-order groups move first, together, from one backward pass; then each set of zeroth-order groups,
at the updated values. Zeroth-order groups with equal settings form one set: one direction, one difference, one clip.
A classifier that moves by gradients reads the features that the queries need anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from zofc.optim.directions import Directions, Space
from zofc.optim.estimators import get_estimator
from zofc.optim.graphs import Recorder
from zofc.optim.movers import Mover
from zofc.optim.survey import (
    Chunking,
    Objective,
    Query,
    Survey,
    coefficients,
    combine_flat,
    differentiate,
    in_double,
    micro_batches,
    survey,
)
from zofc.recipe import Group
from zofc.seeds import Noise, noise_key

LOSS_SCALE, SCALED_BY = 2.0**12, 48  # of first-order steps in fp16, with so many images or more at a time
Groups = Mapping[str, Mapping[str, Tensor]]
Slopes = tuple[dict[str, Tensor], Tensor, Tensor]  # gradients by name, loss, hits
Estimate = tuple[Tensor, Tensor, Tensor | None]  # gradient as one vector, loss, hits if asked for
T = TypeVar("T")


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
        self.chunkings = {
            name: Chunking(mover.plan.micro_batch, 1 if mover.plan.per == "image" else mover.plan.chunk)
            for name, mover in self.zeroth.items()
        }
        sizes = [mover.plan.micro_batch for mover in self.first.values() if mover.plan.micro_batch]
        self.chunkings["first"] = Chunking(min(sizes, default=None))

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

    def active(self, epoch: int) -> tuple[str, ...]:
        """The sets that move in an epoch."""
        return tuple(name for name, mover in self.movers.items() if mover.active(epoch))

    def learning_rates(self, epoch: int) -> dict[str, float]:
        return {name: mover.learning_rate(epoch) for name, mover in self.movers.items() if mover.active(epoch)}

    def step(self, images: Tensor, labels: Tensor, epoch: int, step: int) -> StepReport:
        """One step on one batch; `step` counts within the task and names the directions."""
        first = {name: mover for name, mover in self.first.items() if mover.active(epoch)}
        zeroth = [name for name, mover in self.zeroth.items() if mover.active(epoch)]
        labels = labels.to(self.method.device)
        reports = []
        waiting = bool(first)
        if any(name in self.method.in_features for name in first):
            reports.append(self._backward(first, images, labels, epoch, step))
            waiting = False
        for name in zeroth:
            query = self.query(name, step, len(images))
            found, slopes = self._survey(name, images, labels, query, first if waiting else {})
            if slopes is not None:
                reports.append(self._move(first, *slopes, len(labels), epoch))
                waiting = False
            reports.append(self._zeroth_order(name, query, found, images, labels, epoch, bool(reports)))
            del query, found, slopes  # not beside the next set's
        if waiting:
            _, slopes = self._survey("first", images, labels, None, first)
            assert slopes is not None
            reports.append(self._move(first, *slopes, len(labels), epoch))
        return next((report for report in reports if not math.isfinite(report.loss)), reports[0])

    def query(self, name: str, step: int, batch: int) -> Query:
        """What a step asks about a zeroth-order set."""
        plan, space = self.zeroth[name].plan, Space(self.zeroth[name].parameters)
        shape = (batch, space.size) if plan.per == "image" else (space.size,)
        vectors = self.directions[name].stack(step, plan.queries, shape, self.method.device)
        deep = any(member in self.method.in_features for member in name.split("+"))
        return Query(space, vectors, get_estimator(plan.estimator), plan.epsilon, deep)

    def _survey(
        self, name: str, images: Tensor, labels: Tensor, query: Query | None, waiting: Mapping[str, Mover]
    ) -> tuple[Survey, Slopes | None]:
        """A survey at the set's pace, slower where the device has not enough memory (nothing has moved yet), and the
        gradients of the groups that wait for its features, of which only the loss depends on."""
        vectors = images.new_empty(0) if query is None else query.vectors

        def work(some: Tensor, of: Tensor, along: Tensor) -> tuple[Survey, Slopes | None]:
            asked = None if query is None else replace(query, vectors=along)
            part = self.recorder if some.device.type != self.method.device.type else None  # a micro-batch at a time
            found = survey(self.method, some, asked, bool(waiting), self.chunkings[name], part)
            return found, self._slopes(_leaves(waiting), found.center, of) if waiting else None

        def recorded() -> tuple[Survey, Slopes | None]:
            result: tuple[Survey, Slopes | None] = self.recorder(
                (name, self.chunkings[name], *waiting), work, images, labels, vectors
            )
            return result

        return self._fitting(name, len(images), recorded)

    def _fitting(self, name: str, batch: int, work: Callable[[], T]) -> T:
        """Work at a set's pace, again and slower where the device has not enough memory for it."""
        while True:
            try:
                return work()
            except torch.OutOfMemoryError as error:
                self._slow_down(name, batch, error)

    def _slow_down(self, name: str, batch: int, error: torch.OutOfMemoryError) -> None:
        pace = self.chunkings[name].smaller(batch)
        if pace is None:
            raise error
        self.chunkings[name] = pace
        self.recorder.forget()
        torch.cuda.empty_cache()
        couples = getattr(self.method, "couples_images", None)
        self.notices.append(
            f"out of memory: from here on {pace.micro_batch or batch} images and {pace.chunk} points at a time ({name})"
            + (f"; {couples}" if couples else "")
        )

    def _backward(
        self, movers: Mapping[str, Mover], images: Tensor, labels: Tensor, epoch: int, step: int
    ) -> StepReport:
        """Move groups that the features depend on by one backward pass through the backbone."""
        found = self._fitting("first", len(images), lambda: self._differentiate(movers, images, labels, step))
        return self._move(movers, *found, len(labels), epoch)

    def _differentiate(self, movers: Mapping[str, Mover], images: Tensor, labels: Tensor, step: int) -> Slopes:
        def work(some: Tensor, of: Tensor, key: Tensor) -> Slopes:
            return self._gradients(movers, some, of, key)

        key = noise_key(*self.name, "noise", step).to(self.method.device)
        if images.device.type != self.method.device.type:  # a micro-batch at a time
            return self._gradients(movers, images, labels, key, self.recorder)
        found: Slopes = self.recorder(("first", *movers, self.chunkings["first"]), work, images, labels, key)
        return found

    def _gradients(
        self, movers: Mapping[str, Mover], images: Tensor, labels: Tensor, key: Tensor, record: Recorder | None = None
    ) -> Slopes:
        """Gradients, loss and hits of a batch, in micro-batches if so planned. What `record` returns for one it may
        overwrite with the next."""

        def work(some: Tensor, of: Tensor, key: Tensor, first: Tensor) -> Slopes:
            return self._through(movers, some, of, Noise(key, first))

        total: dict[str, Tensor] = {}
        losses, hits = [], []
        for where, some in micro_batches(images, self.chunkings["first"].micro_batch, self.method.device):
            given = some, labels[where], key, torch.full_like(key, where.start)
            found, loss, right = work(*given) if record is None else record(("part", *movers), work, *given)
            share = len(some) / len(images)
            if share == 1.0 and record is None:
                return found, loss, right
            for name, g in found.items():
                total[name] = total[name].add_(g, alpha=share) if name in total else g * share
            losses.append(loss * share)
            hits.append(right.clone())
        return total, torch.stack(losses).sum(), torch.stack(hits).sum()

    def _through(self, movers: Mapping[str, Mover], images: Tensor, labels: Tensor, noise: Noise) -> Slopes:
        """Gradients, loss and hits of images, by a backward pass through the backbone."""
        leaves = _leaves(movers)
        self.method.noise = noise
        try:
            with torch.no_grad():
                prepared = self.method.prepare(images)
            with torch.enable_grad():  # the graph spans only what these leaves touch
                features = in_double(self.method.features(leaves, prepared))
                return self._slopes(leaves, features, labels, _loss_scale(prepared, len(images)))
        finally:
            self.method.noise = None

    def _slopes(self, leaves: Mapping[str, Tensor], features: Any, labels: Tensor, scale: float = 1.0) -> Slopes:
        """Gradients, loss and hits at features; for its backward pass the loss is multiplied by `scale`."""
        labels = labels.to(_device(features))
        with torch.enable_grad():
            loss = self.method.loss(leaves, features, labels)
            gradients = differentiate(loss * scale, list(leaves.values()))
        found = {name: g for name, g in zip(leaves, gradients, strict=True) if g is not None}
        if scale != 1.0:
            found = {name: g / scale for name, g in found.items()}
        with torch.no_grad():
            right = self.method.hits(leaves, features, labels)
        return found, loss.detach(), right

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

    def _zeroth_order(
        self, name: str, query: Query, found: Survey, images: Tensor, labels: Tensor, epoch: int, reported: bool
    ) -> StepReport:
        surveys = [found]

        def estimate() -> Estimate:  # at a slower pace of another survey; the classifier has moved, the features not
            there = surveys.pop() if surveys else self._survey(name, images, labels, query, {})[0]
            return self._estimate(name, query, there, labels, reported)

        gradient, loss, right = self._fitting(name, len(images), estimate)
        accuracy = math.nan if right is None else float(right) / len(labels)
        moved = self.zeroth[name].move(query.space.split(gradient), epoch)
        return StepReport(float(loss) if moved else math.nan, accuracy)

    def _estimate(self, name: str, query: Query, found: Survey, labels: Tensor, reported: bool) -> Estimate:
        """The estimated gradient as one vector, the mean loss seen and, unless there is a report already, hits."""

        def work(of: Tensor, along: Tensor) -> Estimate:
            asked = replace(query, vectors=along)
            weights, losses = coefficients(self.method, of, asked, found)
            return combine_flat(asked, weights), losses.mean(), None if reported else self._near_hits(found, of)

        if not self.recorder.keeps(found):  # the features will be elsewhere the next time
            return work(labels, query.vectors)
        kind = ("coefficients", name, id(found), reported)  # `found` lives as long as what it was recorded with
        estimate: Estimate = self.recorder(kind, work, labels, query.vectors)
        return estimate

    @torch.no_grad()
    def _near_hits(self, found: Survey, labels: Tensor) -> Tensor:
        """Hits at the center, or read off a point that is at hand, ε away."""
        near = found.center
        if near is None:
            near = tree_map_only(Tensor, lambda t: t[0], found.around[0])
        return self.method.hits({}, near, labels.to(_device(near)))

    def state(self) -> dict[str, dict[str, Any]]:
        return {name: mover.state() for name, mover in self.movers.items()}

    def load_state(self, state: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        for name, mover in self.movers.items():
            mover.load_state(state.get(name, {}))


def _loss_scale(activations: Any, images: int) -> float:
    """What a mean loss is multiplied by before its backward pass: in fp16 small gradients of activations would vanish.
    An image is to weigh the same in a small micro-batch, where large ones would overflow."""
    half = any(isinstance(leaf, Tensor) and leaf.dtype == torch.float16 for leaf in tree_leaves(activations))
    return LOSS_SCALE * min(1.0, images / SCALED_BY) if half else 1.0


def _leaves(movers: Mapping[str, Mover]) -> dict[str, Tensor]:
    """Fresh leaves for autograd: the parameters themselves never ask for gradients."""
    return {
        name: value.detach().requires_grad_() for mover in movers.values() for name, value in mover.parameters.items()
    }


def _device(features: Any) -> torch.device:
    """Where the loss is computed: the CPU for a device without double precision."""
    device: torch.device = next(leaf for leaf in tree_leaves(features) if isinstance(leaf, Tensor)).device
    return device
