"""What the gradient of a group says of its steps, before any is made: the exact gradient on a float64 copy of the
model, the length of a step, and by how much all steps of the task would lower the loss, to first order."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from zofc.analysis.diagnosis import GroupDiagnosis, StepDiagnosis
from zofc.methods import Method
from zofc.optim.chunking import Chunking, micro_batches
from zofc.optim.directions import Space
from zofc.optim.objective import in_double
from zofc.optim.optimizers import GroupOptimizer
from zofc.training.task import TaskTraining

_T = TypeVar("_T")


# -- float64 ---------------------------------------------------------------------------------------------------------


def in_float64(method: Method) -> Method:
    """A copy of a method and its backbone in double precision, on the CPU if the device has none."""
    copy = deepcopy(method)
    device = method.device if method.device.type == "cuda" else torch.device("cpu")
    for module in (copy, copy.backbone.vit):
        module.to(device).double()
    copy.backbone = replace(copy.backbone, recompute=True)  # activations are two or four times as large
    return copy


def exact_gradient(
    method: Method, space: Space, images: Tensor, labels: Tensor, chunking: Chunking
) -> tuple[Tensor, float]:
    """The gradient (size,) of the loss of a batch by a backward pass, and the loss."""
    center = space.center.requires_grad_()
    total, value = torch.zeros_like(center), 0.0
    for where, part in micro_batches(images, chunking.micro_batch, method.device):
        with torch.no_grad():
            prepared = method.prepare(part)
        with torch.enable_grad():
            moving = space.split(center)
            features = in_double(method.features(moving, prepared))
            loss = method.loss(moving, features, labels[where].to(method.device)) * (len(part) / len(images))
            (slope,) = torch.autograd.grad(loss, center, allow_unused=True, materialize_grads=True)
        total, value = total + slope, value + float(loss.detach())
    return total, value


def retry_smaller(chunking: Chunking, batch: int, work: Callable[[Chunking], _T]) -> _T:
    """`work(chunking)`, again with a smaller chunking whenever memory runs out."""
    while True:
        try:
            return work(chunking)
        except torch.OutOfMemoryError:
            smaller = chunking.smaller(batch)
            if smaller is None:
                raise
        chunking = smaller
        torch.cuda.empty_cache()


# -- one set ---------------------------------------------------------------------------------------------------------


# -- steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """One ĝ compared with the gradient of its batch, and the step that the optimizer would make of it."""

    norm: float
    cosine: float
    length: float
    descent: float  # of the loss, to first order


def estimate_step(optimizer: GroupOptimizer, guess: Tensor, slope: Tensor) -> Estimate:
    """The first step that an optimizer would make of an estimate, or of the gradient itself."""
    plan, guess = optimizer.plan, guess.cpu().double()
    norm, along = float(guess.norm()), float(guess @ slope)
    cosine = along / (norm * float(slope.norm())) if along else 0.0
    scale = min(1.0, plan.clip / norm) if plan.clip is not None and norm else 1.0
    rate = optimizer.learning_rate(plan.start)
    move = rate * (guess * scale if plan.optimizer == "sgd" else guess.sign())  # Adam's first step is a sign
    lasting = 1.0 if plan.optimizer in ("adam", "adamw") else 1 / (1 - plan.momentum)
    return Estimate(norm, cosine, float(move.norm()), lasting * float(move @ slope))


def step_diagnosis(
    optimizer: GroupOptimizer, estimates: Sequence[Estimate], space: Space, steps_per_epoch: int
) -> StepDiagnosis:
    """What an optimizer makes of estimates, over all epochs of the task."""
    plan = optimizer.plan
    clipped = [plan.clip is not None and one.norm > plan.clip for one in estimates]
    rates = [optimizer.learning_rate(epoch) for epoch in range(plan.start, plan.epochs)]
    return StepDiagnosis(
        optimizer=plan.optimizer,
        lr=rates[0] if rates else 0.0,
        clip=plan.clip,
        norm=statistics.median(one.norm for one in estimates),
        clipped=sum(clipped) / len(clipped),
        length=statistics.median(one.length for one in estimates),
        parameters=float(space.center.norm()),
        descent=statistics.fmean(one.descent for one in estimates),
        steps=steps_per_epoch * sum(rates) / rates[0] if rates and rates[0] else 0.0,
    )


class GroupExamination:
    """The measurements of one first-order group, batch by batch. Nothing is moved."""

    def __init__(self, training: TaskTraining, label: str, exact: Method) -> None:
        self.training, self.label, self.exact = training, label, exact
        self.optimizer = training.placement.first.optimizers[label]
        own = dict(exact.named_parameters())
        self.space = Space({key: own[key] for key in self.optimizer.parameters})
        self.estimates: list[Estimate] = []
        self.losses: list[float] = []

    def measure_batch(self, images: Tensor, labels: Tensor, _step: int) -> None:
        """The gradient of one batch and the step that follows from it."""
        chunking = Chunking(self.training.placement.first.chunking.micro_batch)
        work = partial(exact_gradient, self.exact, self.space, images, labels)
        slope, loss = retry_smaller(chunking, len(images), work)
        self.estimates.append(estimate_step(self.optimizer, slope, slope.cpu()))
        self.losses.append(loss)

    def result(self) -> GroupDiagnosis:
        """All measurements of the group."""
        return GroupDiagnosis(
            name=self.label,
            beside=tuple(name for name in self.training.placement.groups if name != self.label),
            size=self.space.size,
            loss=statistics.fmean(self.losses),
            gradient=statistics.fmean(one.norm for one in self.estimates),
            step=step_diagnosis(self.optimizer, self.estimates, self.space, self.training.steps_per_epoch),
        )
