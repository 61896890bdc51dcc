"""The sets of groups that one pass through the backbone serves: all first-order groups together, and zeroth-order
groups with equal settings together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from zofc.optim.chunking import Chunking
from zofc.optim.directions import Directions, Space
from zofc.optim.estimators import get_estimator
from zofc.optim.evaluation import Query
from zofc.optim.length_matched import LengthMatchedOptimizer
from zofc.optim.optimizers import GroupOptimizer
from zofc.recipe import Group

Groups = Mapping[str, Mapping[str, Tensor]]  # parameters by name, by group


@dataclass(eq=False)
class FirstOrderSet:
    """The groups that move by gradients: one backward pass for all of them, an optimizer for each."""

    optimizers: dict[str, GroupOptimizer]  # by group
    chunking: Chunking
    label: ClassVar[str] = "first"

    def active(self, epoch: int) -> dict[str, GroupOptimizer]:
        """The optimizers of the groups that move in this epoch."""
        return {name: optimizer for name, optimizer in self.optimizers.items() if optimizer.active(epoch)}


@dataclass(eq=False)
class ZerothOrderSet:
    """Groups with equal settings that move by zeroth order, as one vector φ: one direction, one loss difference, one
    clip for all of them."""

    members: tuple[str, ...]
    optimizer: GroupOptimizer
    directions: Directions
    chunking: Chunking
    moves_features: bool  # whether the features depend on the set; else only the loss does

    @property
    def label(self) -> str:
        """The name of the set."""
        return set_label(self.members)

    @property
    def plan(self) -> Group:
        """The settings that all groups of the set share."""
        return self.optimizer.plan

    def draw(self, step: int, batch: int, device: torch.device) -> Tensor:
        """The directions Δ_1 … Δ_Q of a step (Algorithm 1, line 6), or as many for each image of its batch."""
        size = Space(self.optimizer.parameters).size
        shape = (batch, size) if self.plan.per == "image" else (size,)
        return self.directions.stack(step, self.plan.queries, shape, device)

    def query(self, directions: Tensor) -> Query:
        """The points φ ± εΔ_q to look at."""
        plan, space = self.plan, Space(self.optimizer.parameters)
        return Query(space, directions, get_estimator(plan.estimator), plan.epsilon, self.moves_features)


ParameterSet = FirstOrderSet | ZerothOrderSet


def set_label(members: Iterable[str]) -> str:
    """The name of a set of groups in random streams, checkpoints, messages and result files."""
    return "+".join(members)


def first_order_set(groups: Groups, plans: Mapping[str, Group], seed: int, task: int) -> FirstOrderSet:
    """All first-order groups as one set."""

    def optimizer(name: str, plan: Group) -> GroupOptimizer:
        if plan.length == "own":
            return GroupOptimizer(groups[name], plan)
        return LengthMatchedOptimizer(groups[name], plan, Directions(plan.directions, seed, ("task", task, name)))

    first = {name: plans[name] for name in groups if plans[name].order == "first"}
    micro_batch = min((plan.micro_batch for plan in first.values() if plan.micro_batch), default=None)
    optimizers = {name: optimizer(name, plan) for name, plan in first.items()}
    return FirstOrderSet(optimizers, Chunking(micro_batch))


def zeroth_order_sets(
    groups: Groups, plans: Mapping[str, Group], in_features: Iterable[str], seed: int, task: int
) -> tuple[ZerothOrderSet, ...]:
    """One set for each distinct plan, in the order of the groups."""
    sets = []
    for plan in dict.fromkeys(plans[name] for name in groups if plans[name].order == "zeroth"):
        members = tuple(name for name in groups if plans[name] == plan)
        parameters = {key: value for name in members for key, value in groups[name].items()}
        directions = Directions(plan.directions, seed, ("task", task, set_label(members)))
        chunking = Chunking(plan.micro_batch, plan.chunk)
        moves_features = not set(members).isdisjoint(in_features)
        sets.append(ZerothOrderSet(members, GroupOptimizer(parameters, plan), directions, chunking, moves_features))
    return tuple(sets)
