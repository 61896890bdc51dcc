"""The update of a group of parameters from its (estimated) gradient: clip, a torch optimizer, a schedule by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zofc.recipe import Group

_ADAM = ("step", "exp_avg", "exp_avg_sq")
STATE_ENTRIES = {"adam": _ADAM, "adamw": _ADAM, "sgd": ("momentum_buffer",), "sign": ("momentum_buffer",)}


class Update(NamedTuple):
    """What a step took of its gradient."""

    rate: float  # the learning rate
    scale: float  # the factor of the clip, 1 where it was short enough


class GroupOptimizer:
    """A fresh optimizer of one set of tensors for one task. Gradients exist only inside `move`."""

    def __init__(self, parameters: Mapping[str, Tensor], plan: Group) -> None:
        self.parameters = dict(parameters)
        self.plan = plan
        self.optimizer = _optimizer(list(self.parameters.values()), plan)

    def active(self, epoch: int) -> bool:
        """Whether the group moves in this epoch."""
        return self.plan.start <= epoch < self.plan.epochs

    def learning_rate(self, epoch: int) -> float:
        """The learning rate of an epoch, by the group's schedule."""
        plan = self.plan
        if plan.schedule == "constant":
            return plan.lr
        if plan.schedule == "cosine99":  # 99 % of a quarter wave; a single epoch stays at its start
            return plan.lr * math.cos(0.99 * math.pi / 2 * epoch / max(plan.epochs - 1, 1))
        return plan.min_lr + (plan.lr - plan.min_lr) * (1 + math.cos(math.pi * epoch / plan.epochs)) / 2

    def move(self, gradient: Mapping[str, Tensor], epoch: int, step: int = 0) -> Update | None:  # noqa: ARG002
        """θ ← θ − η clip(g), with the momentum or moments of the plan's optimizer; a tensor without a gradient stays as
        it is. If the gradient is not finite, nothing is changed and the result is None. `step` counts within the task
        and names random directions, where there are any."""
        parts = list(gradient.values())
        norms = torch._foreach_norm(parts) if parts else ()
        norm = float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0  # over the whole set
        if not math.isfinite(norm):
            return None
        clip = self.plan.clip
        update = Update(self.learning_rate(epoch), clip / norm if clip is not None and norm > clip else 1.0)
        self.apply(gradient, update)
        return update

    def apply(self, gradient: Mapping[str, Tensor], update: Update) -> None:
        """Take a step whose learning rate and factor of the clip are known."""
        parts = list(gradient.values())
        scaled = torch._foreach_mul(parts, update.scale) if update.scale < 1 and parts else parts
        for name, g in zip(gradient, scaled, strict=True):
            self.parameters[name].grad = g.sign() if self.plan.optimizer == "sign" else g
        for settings in self.optimizer.param_groups:
            settings["lr"] = update.rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def allocate_state(self) -> None:
        """Take a step with zero gradients, so that the optimizer creates its state; weight decay still applies."""
        self.move({name: torch.zeros_like(value) for name, value in self.parameters.items()}, 0)

    def state(self) -> dict[str, Any]:
        """The optimizer's state by parameter name."""
        return {
            name: dict(self.optimizer.state[value])
            for name, value in self.parameters.items()
            if value in self.optimizer.state
        }

    def load_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue from a state, on the device of the parameters; torch keeps only the count of steps on the host.
        ValueError if it is not a state of this optimizer."""
        for name, entries in state.items():
            for key, entry in entries.items():
                known = name in self.parameters and key in STATE_ENTRIES[self.plan.optimizer]
                shape = self.parameters[name].shape if known and key != "step" else torch.Size()
                if not known or (isinstance(entry, Tensor) and entry.shape != shape):
                    raise ValueError(f"{key} of {name} is no state of {self.plan.optimizer}")
            if len(entries) != len(STATE_ENTRIES[self.plan.optimizer]):
                raise ValueError(f"the state of {name} is not whole")
        for name, value in self.parameters.items():
            if name in state:
                self.optimizer.state[value] = {
                    key: entry.to(value.device) if isinstance(entry, Tensor) and key != "step" else entry
                    for key, entry in state[name].items()
                }


def _optimizer(parameters: list[Tensor], plan: Group) -> torch.optim.Optimizer:
    if plan.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=plan.lr, weight_decay=plan.weight_decay)
    if plan.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=plan.lr, weight_decay=plan.weight_decay)
    return torch.optim.SGD(parameters, lr=plan.lr, momentum=plan.momentum, weight_decay=plan.weight_decay)
