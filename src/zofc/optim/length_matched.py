"""First-order steps as long as zeroth-order ones: a control for "it forgets less because it moves less".

With the directions Δ_1 … Δ_Q of the zeroth-order step and the gradient g, the estimate of that step at the same place
is known without another evaluation, ĝ = (1/Q) Σ_q ⟨g, Δ_q⟩ Δ_q. An optimizer beside the group's own is fed with these
estimates (clip, momentum and learning rate as the plan says); the group's own step keeps its direction and takes the
length of the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from zofc.optim.directions import Directions, Space
from zofc.optim.optimizers import GroupOptimizer, Update
from zofc.recipe import Group

BESIDE = "zeroth."  # before the names of the other optimizer's state


class LengthMatchedOptimizer(GroupOptimizer):
    """Moves a first-order group along its own direction, as far as zeroth order would."""

    def __init__(self, parameters: Mapping[str, Tensor], plan: Group, directions: Directions) -> None:
        super().__init__(parameters, plan)
        self.directions = directions
        self.zeroth = GroupOptimizer({name: torch.zeros_like(value) for name, value in parameters.items()}, plan)

    @torch.no_grad()
    def move(self, gradient: Mapping[str, Tensor], epoch: int, step: int = 0) -> Update | None:
        """θ ← θ + ‖zeroth-order step‖ · own step / ‖own step‖."""
        space, other = Space(self.parameters), Space(self.zeroth.parameters)
        start = space.center
        estimate = self.estimate(gradient, step)
        update = super().move(gradient, epoch, step)
        if update is None:
            return None
        for name, value in space.split(start).items():  # weight decay, if any, pulls both alike
            self.zeroth.parameters[name].copy_(value)
        self.zeroth.move(estimate, epoch, step)
        length = torch.linalg.vector_norm(other.center - start)
        own = space.center - start
        own *= length / torch.linalg.vector_norm(own).clamp_min(torch.finfo(own.dtype).tiny)
        for name, value in space.split(start + own).items():
            self.parameters[name].copy_(value)
        return update

    def estimate(self, gradient: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        """ĝ = (1/Q) Σ_q ⟨g, Δ_q⟩ Δ_q, by parameter; a tensor without a gradient counts as zero."""
        space = Space(self.parameters)
        flat = Space({name: gradient.get(name, torch.zeros_like(value)) for name, value in self.parameters.items()})
        g = flat.center
        vectors = self.directions.stack(step, self.plan.queries, (space.size,), g.device).to(g.dtype)
        return space.split(vectors.mT @ (vectors @ g) / self.plan.queries)

    def state(self) -> dict[str, dict[str, Any]]:
        """The state of both optimizers by parameter name."""
        own, beside = super().state(), self.zeroth.state()
        return {
            name: {**entries, **{BESIDE + key: value for key, value in beside.get(name, {}).items()}}
            for name, entries in own.items()
        }

    def load_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue from a state of both optimizers."""
        own: dict[str, dict[str, Any]] = {}
        beside: dict[str, dict[str, Any]] = {}
        for name, entries in state.items():
            for key, value in entries.items():
                target = beside if key.startswith(BESIDE) else own
                target.setdefault(name, {})[key.removeprefix(BESIDE)] = value
        super().load_state(own)
        self.zeroth.load_state(beside)
