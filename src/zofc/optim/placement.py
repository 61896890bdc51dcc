"""A placement: which optimizer moves which group of parameters. `Placement.step` is the paper's Algorithm 1 for any
method and any choice of orders.

    1  // FO step on classifier                      5  for q = 1 to Q:
    2  L ← L(φ, ψ; B)                                6      sample Δ_q ~ {±1}
    3  ψ ← ψ − η_ψ ∇_ψ L                          7–10      L⁺ ← L(φ + εΔ_q, ψ; B), L⁻ ← L(φ − εΔ_q, ψ; B)
    4  // ZO step on adapter (SPSA)              11–12      ĝ_q ← (L⁺ − L⁻) / 2ε · Δ_q
                                                    13  ḡ ← (1/Q) Σ_q ĝ_q
                                                    14  φ ← φ − η_φ clip(ḡ)

ψ are the first-order groups, which move together; φ is each set of zeroth-order groups in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zofc.optim.chunking import Chunking
from zofc.optim.division import Division
from zofc.optim.execution import BatchExecution, Execution
from zofc.optim.graphs import RECORDING_STEPS
from zofc.optim.objective import Gradient, Objective
from zofc.optim.optimizers import GroupOptimizer, Update
from zofc.optim.sets import Groups, ParameterSet, ZerothOrderSet, first_order_set, zeroth_order_sets
from zofc.recipe import Group

ActiveSets = tuple[Mapping[str, GroupOptimizer], list[ZerothOrderSet]]  # first-order groups, zeroth-order sets


@dataclass(frozen=True)
class StepReport:
    """The mean loss and the share of hits on a step's batch, before the step."""

    loss: float
    accuracy: float


class SetMove(NamedTuple):
    """A step of a zeroth-order set, which follows from this and the seed."""

    part: ZerothOrderSet
    epoch: int
    step: int
    shares: Tensor  # of its directions, which a later step may overwrite
    update: Update | None  # None: it was skipped, since the loss or the estimate was not finite


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
        division: Division | None = None,
    ) -> None:
        self.method, self.groups, self.plans = method, groups, plans
        self.first = first_order_set(groups, plans, seed, task)
        self.zeroth = zeroth_order_sets(groups, plans, method.in_features, seed, task)
        self.division = division or Division()
        self.execution = Execution(method, self.first, (seed, "task", task), graphs, self.division)
        self.on_move: Callable[[SetMove], None] | None = None  # is shown each step of a zeroth-order set

    def step(
        self,
        images: Tensor,
        labels: Tensor,
        epoch: int,
        step: int,
        active: ActiveSets | None = None,
        batch: int | None = None,
    ) -> StepReport:
        """One step of Algorithm 1 on a batch; `step` counts within the task and names the directions. `active` are the
        sets that move, by default those of the epoch. Where several ranks take the step, `images` and `labels` are this
        one's part of the `batch` images of all."""
        first, sets = self.active_sets(epoch) if active is None else active
        part = self.division.images(len(labels) if batch is None else batch)
        evaluation = BatchExecution(self.execution, images, labels, step, part)
        move = partial(self._move, images=part.whole, epoch=epoch, step=step)
        reports: list[StepReport] = []
        if first:
            # lines 2–3: ψ ← ψ − η_ψ ∇_ψ L(φ, ψ; B)
            reports.append(move(first.values(), evaluation.gradient(first, sets))[0])
        for zeroth in sets:
            # lines 5–14, at the updated ψ: φ ← φ − η_φ clip(ḡ) with ḡ = (1/Q) Σ_q (L⁺ − L⁻) / 2ε · Δ_q
            estimate = evaluation.estimate(zeroth, hits=not reports)
            report, (update,) = move([zeroth.optimizer], estimate)
            reports.append(report)
            if self.on_move is not None and estimate.shares is not None:
                self.on_move(SetMove(zeroth, epoch, step, estimate.shares, update))
        return next((report for report in reports if not math.isfinite(report.loss)), reports[0])

    def _move(
        self, optimizers: Collection[GroupOptimizer], gradient: Gradient, images: int, epoch: int, step: int
    ) -> tuple[StepReport, list[Update | None]]:
        """Lines 3 and 14: θ ← θ − η clip(g). If the loss or g is not finite, nothing moves, and the report says so."""
        loss, hits = _to_host(gradient.loss, gradient.hits)
        updates: list[Update | None] = [None] * len(optimizers)
        if math.isfinite(loss):
            updates = [each.move(gradient.of(each.parameters), epoch, step) for each in optimizers]
        return StepReport(math.nan if None in updates and math.isfinite(loss) else loss, hits / images), updates

    # -- what moves, and when -----------------------------------------------------------------------------------------

    @property
    def sets(self) -> tuple[ParameterSet, ...]:
        """The first-order set and all zeroth-order sets."""
        return self.first, *self.zeroth

    @property
    def optimizers(self) -> dict[str, GroupOptimizer]:
        """By first-order group and by label of a zeroth-order set."""
        return {**self.first.optimizers, **{part.label: part.optimizer for part in self.zeroth}}

    @property
    def epochs(self) -> int:
        """Number of epochs until the last group stops moving."""
        return max((optimizer.plan.epochs for optimizer in self.optimizers.values()), default=0)

    @property
    def sizes(self) -> dict[str, int]:
        """How many numbers move, by group."""
        return {name: sum(value.numel() for value in group.values()) for name, group in self.groups.items()}

    def active_sets(self, epoch: int) -> ActiveSets:
        """The optimizers and sets that move in this epoch."""
        return self.first.active(epoch), [part for part in self.zeroth if part.optimizer.active(epoch)]

    def active(self, epoch: int) -> tuple[str, ...]:
        """The names of what moves in an epoch."""
        return tuple(name for name, optimizer in self.optimizers.items() if optimizer.active(epoch))

    def learning_rates(self, epoch: int) -> dict[str, float]:
        """The learning rate of each group that moves in this epoch."""
        return {name: self.optimizers[name].learning_rate(epoch) for name in self.active(epoch)}

    def state(self) -> dict[str, dict[str, Any]]:
        """The optimizers' state by group, for a checkpoint."""
        return {name: optimizer.state() for name, optimizer in self.optimizers.items()}

    def load_state(self, state: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        """Restore the optimizers' state from a checkpoint."""
        for name, optimizer in self.optimizers.items():
            optimizer.load_state(state.get(name, {}))

    # -- memory --------------------------------------------------------------------------------------------------

    def rehearse(self, part: ParameterSet, chunking: Chunking, images: Tensor, labels: Tensor) -> bool:
        """Take steps that move `part`, evaluated at `chunking`, until all is allocated that a step needs: the states of
        all optimizers and on CUDA all recordings. They are taken on copies, so nothing of this placement moves. False
        if memory ran out."""
        copies = {name: {key: value.clone() for key, value in group.items()} for name, group in self.groups.items()}
        recorded = self.execution.recorder.enabled
        twin = Placement(self.method, copies, self.plans, seed=0, task=0, graphs=recorded)
        own = next(each for each in twin.sets if each.label == part.label)
        own.chunking = chunking
        deep = () if own is twin.first else self.method.in_features  # these have a backward pass of their own
        first = {name: optimizer for name, optimizer in twin.first.optimizers.items() if name not in deep}
        zeroth = [own] if isinstance(own, ZerothOrderSet) else []
        try:
            for optimizer in twin.optimizers.values():
                optimizer.allocate_state()
            for number in range(RECORDING_STEPS if recorded else 1):
                twin.step(images, labels, 0, number, (first, zeroth))
        except torch.OutOfMemoryError:
            return False
        return own.chunking == chunking  # else memory ran out and the steps went on with less


def _to_host(loss: Tensor, hits: Tensor | None) -> tuple[float, float]:
    """Both numbers, with one wait for the device."""
    if hits is None:
        return float(loss), math.nan
    value, count = torch.stack([loss.double(), hits.double()]).tolist()
    return value, count
