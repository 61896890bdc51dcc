"""Why zeroth-order training does or does not converge, measured at the start of a task, before anything is trained.

The estimate is ĝ = (1/Q) Σ_q c_q Δ_q. It can fail in three ways, and each has a number here: the coefficients c_q drown
in rounding (they are compared with the derivatives along the same Δ_q on a float64 copy of the model); Q directions say
little about d dimensions (the cosine of ĝ to the gradient is about √(Q/(Q + d − 1)) at best); clip and learning rate
make a step of ĝ that is too short or too long.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from zofc.analysis.diagnosis import Agreement, Alignment, Diagnosis, Differences, Rung, SetDiagnosis, Step
from zofc.analysis.task_start import OnProgress, run_batches, start_task, torch_settings
from zofc.errors import DivergedError, RecipeError
from zofc.methods import Method
from zofc.optim.directions import Space
from zofc.optim.estimators import get_estimator
from zofc.optim.survey import Chunking, Query, coefficients, combine, in_double, micro_batches, survey
from zofc.recipe import Recipe
from zofc.training.device import pick_device
from zofc.training.resolve import check_recipe
from zofc.training.task import TaskTraining

QUERIES = (1, 2, 4, 8, 16, 32, 64)
LADDER = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # ε
FEW = 8  # queries of a batch that the ladder and the noise floor are measured with
TOGETHER = 8  # tangents or points at a time in float64, if there is memory


def diagnose(
    recipe: Recipe,
    task: int = 1,
    batches: int = 3,
    queries: Sequence[int] = QUERIES,
    on_progress: OnProgress = lambda text: None,
) -> Diagnosis:
    """Measure every zeroth-order set of a recipe on the first batches of a task; earlier tasks are left untrained.
    `on_progress` is called with what is being done."""
    if batches < 1 or not queries or min(queries) < 1:
        raise RecipeError("a diagnosis needs one batch and one query at least")
    recipe, refusal = _allowed(recipe)
    device = pick_device(recipe.training.device)
    with torch_settings(device, recipe.training):
        training, notices = start_task(recipe, task, device, on_progress)
        if not training.placement.zeroth:
            raise RecipeError(f"{recipe.name}: task {task} moves nothing by zeroth order: there is nothing to diagnose")
        exact = in_float64(training.model.method)
        examinations = [Examination(training, name, exact, queries) for name in training.placement.zeroth]
        for number, images, labels in islice(run_batches(training), batches):
            for examination in examinations:
                on_progress(f"{examination.name}: batch {number + 1} of {batches}")
                examination.look(images, labels, number)
        sets = [examination.result() for examination in examinations]
    return Diagnosis(
        recipe=recipe.name,
        task=task,
        tasks=training.tasks,
        device=str(device),
        precision=recipe.training.precision,
        batches=batches,
        batch_size=recipe.training.batch_size,
        refusal=refusal,
        notices=tuple(notices),
        sets=tuple(sets),
    )


def _allowed(recipe: Recipe) -> tuple[Recipe, str | None]:
    """The recipe with noisy differences allowed, since they are to be seen here, and why a run would refuse them."""
    noisy = recipe.training.model_copy(update={"allow_noisy_differences": True})
    allowed = recipe.model_copy(update={"training": noisy})
    check_recipe(allowed)
    if all(group.order == "first" for group in recipe.optimize.values()):
        raise RecipeError(
            f"{recipe.name}: optimize: no group is moved by zeroth order, so there is nothing to diagnose; "
            "set optimize.<group>.order=zeroth"
        )
    try:
        check_recipe(recipe)
    except RecipeError as error:
        return allowed, str(error)
    return allowed, None


# -- float64 ---------------------------------------------------------------------------------------------------------


def in_float64(method: Method) -> Method:
    """A copy of a method and its backbone, the same numbers in double precision; on the CPU if its device has none."""
    copy = deepcopy(method)
    device = method.device if method.device.type == "cuda" else torch.device("cpu")
    for module in (copy, copy.backbone.vit):
        module.to(device).double()
    copy.backbone = replace(copy.backbone, recompute=True)  # twice or four times the size: keep less for the backward
    return copy


def gradient(method: Method, space: Space, images: Tensor, labels: Tensor, pace: Chunking) -> tuple[Tensor, float]:
    """The gradient (size,) of the loss of a batch by a backward pass, and the loss."""
    center = space.center.requires_grad_()
    total, value = torch.zeros_like(center), 0.0
    for where, some in micro_batches(images, pace.micro_batch, method.device):
        with torch.no_grad():
            prepared = method.prepare(some)
        with torch.enable_grad():
            moving = space.split(center)
            features = in_double(method.features(moving, prepared))
            loss = method.loss(moving, features, labels[where].to(method.device)) * (len(some) / len(images))
            (found,) = torch.autograd.grad(loss, center, allow_unused=True, materialize_grads=True)
        total, value = total + found, value + float(loss.detach())
    return total, value


def _with_memory(pace: Chunking, batch: int, work: Callable[[Chunking], Any]) -> Any:
    """Work at a pace, slower if the device has not enough memory for it."""
    while True:
        try:
            return work(pace)
        except torch.OutOfMemoryError:
            slower = pace.smaller(batch)
            if slower is None:
                raise
            pace = slower
            torch.cuda.empty_cache()


# -- one set ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """One ĝ beside the gradient of its batch, and the step that the optimiser would make of it."""

    norm: float
    cosine: float
    length: float
    descent: float  # of the loss, to first order


class Examination:
    """What the batches so far say about one zeroth-order set. Nothing is moved."""

    def __init__(self, training: TaskTraining, name: str, exact: Method, queries: Sequence[int]) -> None:
        self.training, self.name, self.exact = training, name, exact
        self.mover = training.placement.zeroth[name]
        self.plan = self.mover.plan
        self.queries = sorted({*queries, self.plan.queries})
        own = dict(exact.named_parameters())
        self.space = Space({key: own[key] for key in self.mover.parameters})  # in float64
        self.pairs: list[tuple[Tensor, Tensor]] = []  # coefficients and derivatives of each batch, flat
        self.rungs: dict[float, list[tuple[Tensor, Tensor]]] = {}  # the same by ε, of a few queries
        self.differences: list[tuple[Tensor, Tensor]] = []  # coefficients here and in float64 at the recipe's ε
        self.estimates: dict[int, list[Estimate]] = {size: [] for size in self.queries}
        self.gradients: list[float] = []
        self.losses: list[float] = []
        self.per_step = 1  # directions of one query

    def look(self, images: Tensor, labels: Tensor, step: int) -> None:
        """Measure one batch, with the directions that a run would use at this step, and more of the same stream."""
        placement, pace = self.training.placement, self.training.placement.chunkings[self.name]
        query = placement.query(self.name, step, len(images))
        shape = query.vectors.shape[1:]
        vectors = placement.directions[self.name].stack(step, max(self.queries), shape, placement.method.device)
        query = replace(query, vectors=vectors)
        there = replace(query, space=self.space, vectors=vectors.to(self.exact.device))
        self.per_step = len(images) if query.per_image else 1

        found = _coefficients(self.training.model.method, images, labels, query, pace)
        if not bool(found.isfinite().all()):
            raise DivergedError(
                f"{self.training.model.recipe.name}: the loss is not finite in {self.precision} before anything is "
                f"trained ({self.name}): use training.precision=fp32, and check the images for broken values"
            )
        derivative = replace(there, estimator=get_estimator("forward_gradient"))
        together = Chunking(pace.micro_batch, max(pace.chunk, TOGETHER))
        true = _coefficients(self.exact, images, labels, derivative, together)
        self.pairs.append((found.flatten(), true.flatten()))
        if not query.estimator.exact:
            self._climb(images, labels, query, there, found[:FEW], true[:FEW])
        slope, loss = _with_memory(
            Chunking(pace.micro_batch), len(images), lambda some: gradient(self.exact, self.space, images, labels, some)
        )
        self.gradients.append(float(slope.norm()))
        self.losses.append(loss)
        for size, estimates in self.estimates.items():  # as many as these directions allow
            for first in range(0, len(vectors) - size + 1, size):
                some = slice(first, first + size)
                parts = combine(replace(query, vectors=vectors[some]), found[some])
                estimates.append(self._estimate(torch.cat([part.flatten() for part in parts.values()]), slope.cpu()))

    def _climb(self, images: Tensor, labels: Tensor, query: Query, there: Query, found: Tensor, true: Tensor) -> None:
        """Finite differences of other lengths, and those of the recipe's in float64."""
        pace, here = self.training.placement.chunkings[self.name], self.training.model.method
        few, together = (
            replace(there, vectors=there.vectors[:FEW]),
            Chunking(pace.micro_batch, max(pace.chunk, TOGETHER)),
        )
        self.differences.append((found.flatten(), _coefficients(self.exact, images, labels, few, together).flatten()))
        for epsilon in sorted({*LADDER, query.epsilon}):
            asked = replace(query, vectors=query.vectors[:FEW], epsilon=epsilon)
            rung = found if epsilon == query.epsilon else _coefficients(here, images, labels, asked, pace)
            self.rungs.setdefault(epsilon, []).append((rung.flatten(), true.flatten()))

    def _estimate(self, guess: Tensor, slope: Tensor) -> Estimate:
        plan, guess = self.plan, guess.cpu().double()
        norm, along = float(guess.norm()), float(guess @ slope)
        cosine = along / (norm * float(slope.norm())) if along else 0.0
        scale = min(1.0, plan.clip / norm) if plan.clip is not None and norm else 1.0
        move = self.rate * (guess * scale if plan.optimizer == "sgd" else guess.sign())  # Adam's first step is a sign
        lasting = 1.0 if plan.optimizer in ("adam", "adamw") else 1 / (1 - plan.momentum)
        return Estimate(norm, cosine, float(move.norm()), lasting * float(move @ slope))

    @property
    def precision(self) -> str:
        return self.training.model.recipe.training.precision

    @property
    def rate(self) -> float:
        return self.mover.learning_rate(self.plan.start)

    def result(self) -> SetDiagnosis:
        return SetDiagnosis(
            name=self.name,
            beside=tuple(self.training.placement.first),
            precision=self.precision,
            estimator=self.plan.estimator,
            directions=self.plan.directions,
            size=self.space.size,
            queries=self.plan.queries,
            loss=statistics.fmean(self.losses),
            gradient=statistics.fmean(self.gradients),
            agreement=_agreement(self.pairs),
            differences=self._differences() if self.differences else None,
            step=self._step(),
            alignments=tuple(self._alignment(size) for size in self.queries),
        )

    def _differences(self) -> Differences:
        plan = self.plan
        span = plan.epsilon / get_estimator(plan.estimator).weights[0]  # L(φ + εΔ) − L(φ − εΔ) is 2ε c, one-sided ε c
        here, there = (span * torch.cat(side) for side in zip(*self.differences, strict=True))
        ladder = [
            Rung(epsilon, _agreement(pairs).pearson if all(c.isfinite().all() for c, _ in pairs) else None)
            for epsilon, pairs in self.rungs.items()
        ]
        vanished = float((here == 0).double().mean())
        return Differences(plan.epsilon, _rms(there), _rms(here - there), vanished, tuple(ladder))

    def _step(self) -> Step:
        plan, estimates = self.plan, self.estimates[self.plan.queries]
        clipped = [plan.clip is not None and one.norm > plan.clip for one in estimates]
        rates = [self.mover.learning_rate(epoch) for epoch in range(plan.start, plan.epochs)]
        center = self.space.center
        return Step(
            optimizer=plan.optimizer,
            lr=self.rate,
            clip=plan.clip,
            norm=statistics.median(one.norm for one in estimates),
            clipped=sum(clipped) / len(clipped),
            length=statistics.median(one.length for one in estimates),
            parameters=float(center.norm()),
            descent=statistics.fmean(one.descent for one in estimates),
            steps=self.training.steps_per_epoch * sum(rates) / self.rate if self.rate else 0.0,
        )

    def _alignment(self, queries: int) -> Alignment:
        """With a direction for each image the theory is that of images that agree on their gradient."""
        seen = queries * self.per_step
        theory = math.sqrt(seen / (seen + self.space.size - 1))
        return Alignment(queries, statistics.fmean(one.cosine for one in self.estimates[queries]), theory)


def _coefficients(method: Method, images: Tensor, labels: Tensor, query: Query, pace: Chunking) -> Tensor:
    """Coefficients (queries, [batch]) of a batch, on the CPU."""

    def work(some: Chunking) -> Tensor:
        return coefficients(method, labels, query, survey(method, images, query, False, some))[0].cpu()

    found: Tensor = _with_memory(pace, len(images), work)
    return found


def _agreement(pairs: Sequence[tuple[Tensor, Tensor]]) -> Agreement:
    found, true = (torch.cat(side) for side in zip(*pairs, strict=True))
    return Agreement(
        pearson=_cosine(found - found.mean(), true - true.mean()),
        cosine=_cosine(found, true),
        error=_rms(found - true) / _rms(true) if true.any() else 0.0,
        pairs=len(true),
    )


def _cosine(a: Tensor, b: Tensor) -> float:
    length = float(a.norm() * b.norm())
    return float(a @ b) / length if length else 0.0


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())
