"""Why training does or does not converge, measured at the start of a task, before any step.

The estimate is ĝ = (1/Q) Σ_q c_q Δ_q. It can fail in three ways, each of which is measured: the coefficients c_q are
lost in rounding errors (they are compared with the derivatives along the same Δ_q on a float64 copy of the model);
Q directions cover little of d dimensions (the cosine of ĝ and the gradient is at best about √(Q/(Q + d − 1))); clip
and learning rate make the step too short or too long. A first-order group can fail in the last way alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

from zofc.analysis.diagnosis import Agreement, Alignment, Diagnosis, Differences, Rung, SetDiagnosis
from zofc.analysis.group_examination import (
    Estimate,
    GroupExamination,
    estimate_step,
    exact_gradient,
    in_float64,
    retry_smaller,
    step_diagnosis,
)
from zofc.analysis.task_start import OnProgress, run_batches, start_task, torch_settings
from zofc.errors import DivergedError, RecipeError
from zofc.methods import Method
from zofc.optim.chunking import Chunking
from zofc.optim.directions import Space
from zofc.optim.estimators import get_estimator
from zofc.optim.evaluation import Query, coefficients, combine, evaluate_features
from zofc.optim.sets import ZerothOrderSet
from zofc.recipe import Recipe, change_recipe
from zofc.training.device import pick_device
from zofc.training.resolve import check_recipe
from zofc.training.task import TaskTraining

_T = TypeVar("_T")
QUERIES = (1, 2, 4, 8, 16, 32, 64)
LADDER = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # ε
LADDER_QUERIES = 8  # of each batch, for the other ε and for the noise floor
FLOAT64_CHUNK = 8  # tangents or points at a time in float64, if memory allows


def diagnose(
    recipe: Recipe,
    task: int = 1,
    batches: int = 3,
    queries: Sequence[int] = QUERIES,
    on_progress: OnProgress = lambda _: None,
) -> Diagnosis:
    """Measure the zeroth-order sets and first-order groups of a recipe on the first batches of a task; earlier tasks
    are not trained. `on_progress` is called with a description of each stage."""
    if batches < 1 or not queries or min(queries) < 1:
        raise RecipeError("a diagnosis needs at least one batch and one query")
    recipe, refusal = _allowed(recipe)
    device = pick_device(recipe.training.device)
    with torch_settings(device, recipe.training):
        training, notices = start_task(recipe, task, device, on_progress)
        placement = training.placement
        if not placement.sizes:
            raise RecipeError(f"{recipe.name}: task {task} moves nothing: there is nothing to diagnose")
        exact = in_float64(training.model.method)
        sets = [Examination(training, part, exact, queries) for part in placement.zeroth]
        groups = [GroupExamination(training, name, exact) for name in placement.first.optimizers]
        for number, images, labels in islice(run_batches(training), batches):
            each: list[Examination | GroupExamination] = [*sets, *groups]
            for examination in each:
                on_progress(f"{examination.label}: batch {number + 1} of {batches}")
                examination.measure_batch(images, labels, number)
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
        sets=tuple(examination.result() for examination in sets),
        groups=tuple(examination.result() for examination in groups),
    )


def _allowed(recipe: Recipe) -> tuple[Recipe, str | None]:
    """The recipe with noisy differences allowed, since they are measured here, and why a run would refuse them."""
    allowed = change_recipe(recipe, "training.allow_noisy_differences=true")
    check_recipe(allowed)
    try:
        check_recipe(recipe)
    except RecipeError as error:
        return allowed, str(error)
    return allowed, None


class Examination:
    """The measurements of one zeroth-order set, batch by batch. Nothing is moved."""

    @property
    def label(self) -> str:
        """The name of the set."""
        return self.part.label

    def __init__(self, training: TaskTraining, part: ZerothOrderSet, exact: Method, queries: Sequence[int]) -> None:
        self.training, self.part, self.exact = training, part, exact
        self.plan, self.precision = part.plan, training.model.recipe.training.precision
        self.steps = training.steps_per_epoch
        self.chunking = Chunking(part.chunking.micro_batch, max(part.chunking.chunk, FLOAT64_CHUNK))  # in float64
        self.queries = sorted({*queries, self.plan.queries})
        own = dict(exact.named_parameters())
        self.space = Space({key: own[key] for key in part.optimizer.parameters})  # in float64
        self.pairs: list[tuple[Tensor, Tensor]] = []  # coefficients and derivatives of each batch, flat
        self.rungs: dict[float, list[tuple[Tensor, Tensor]]] = {}  # the same by ε, for a few queries
        self.differences: list[tuple[Tensor, Tensor]] = []  # coefficients in working precision and in float64
        self.estimates: dict[int, list[Estimate]] = {size: [] for size in self.queries}
        self.gradients: list[float] = []
        self.losses: list[float] = []
        self.per_step = 1  # directions of one query

    def measure_batch(self, images: Tensor, labels: Tensor, step: int) -> None:
        """Measure one batch with the directions that a run would use at this step, and more of the same stream."""
        method, chunking = self.training.model.method, self.part.chunking
        query = self.part.query(self.part.draw(step, len(images), method.device))
        vectors = self.part.directions.stack(step, max(self.queries), query.vectors.shape[1:], method.device)
        query = replace(query, vectors=vectors)
        float64 = replace(query, space=self.space, vectors=vectors.to(self.exact.device))
        self.per_step = len(images) if query.per_image else 1

        estimated = _coefficients(method, images, labels, query, chunking)
        if not bool(estimated.isfinite().all()):
            raise DivergedError(
                f"{self.training.model.recipe.name}: the loss is not finite in {self.precision} before any training "
                f"({self.part.label}): use training.precision=fp32, and check the images for broken values"
            )
        derivative = replace(float64, estimator=get_estimator("forward_gradient"))
        true = _coefficients(self.exact, images, labels, derivative, self.chunking)
        self.pairs.append((estimated.flatten(), true.flatten()))
        if not query.estimator.exact:
            self._measure_ladder(images, labels, query, float64, estimated[:LADDER_QUERIES], true[:LADDER_QUERIES])
        gradient = partial(exact_gradient, self.exact, self.space, images, labels)
        slope, loss = retry_smaller(Chunking(chunking.micro_batch), len(images), gradient)
        self.gradients.append(float(slope.norm()))
        self.losses.append(loss)
        for size, estimates in self.estimates.items():  # as many as these directions allow
            for start in range(0, len(vectors) - size + 1, size):
                some = slice(start, start + size)
                parts = combine(replace(query, vectors=vectors[some]), estimated[some])
                guess = torch.cat([part.flatten() for part in parts.values()])
                estimates.append(estimate_step(self.part.optimizer, guess, slope.cpu()))

    def _measure_ladder(
        self, images: Tensor, labels: Tensor, query: Query, float64: Query, estimated: Tensor, true: Tensor
    ) -> None:
        """Finite differences at other ε, and those at the recipe's ε in float64."""
        few = replace(float64, vectors=float64.vectors[:LADDER_QUERIES])
        doubled = _coefficients(self.exact, images, labels, few, self.chunking)
        self.differences.append((estimated.flatten(), doubled.flatten()))
        for epsilon in sorted({*LADDER, query.epsilon}):
            rung = estimated
            if epsilon != query.epsilon:
                other = replace(query, vectors=query.vectors[:LADDER_QUERIES], epsilon=epsilon)
                rung = _coefficients(self.training.model.method, images, labels, other, self.part.chunking)
            self.rungs.setdefault(epsilon, []).append((rung.flatten(), true.flatten()))

    def result(self) -> SetDiagnosis:
        """All measurements of the set."""
        return SetDiagnosis(
            name=self.part.label,
            members=self.part.members,
            beside=tuple(self.training.placement.first.optimizers),
            precision=self.precision,
            estimator=self.plan.estimator,
            directions=self.plan.directions,
            size=self.space.size,
            queries=self.plan.queries,
            loss=statistics.fmean(self.losses),
            gradient=statistics.fmean(self.gradients),
            agreement=_agreement(self.pairs),
            differences=self._differences() if self.differences else None,
            step=step_diagnosis(self.part.optimizer, self.estimates[self.plan.queries], self.space, self.steps),
            alignments=tuple(self._alignment(size) for size in self.queries),
        )

    def _differences(self) -> Differences:
        plan = self.plan
        span = plan.epsilon / get_estimator(plan.estimator).weights[0]  # L(φ + εΔ) − L(φ − εΔ) is 2ε c, one-sided ε c
        working, double = (span * torch.cat(side) for side in zip(*self.differences, strict=True))
        ladder = [
            Rung(epsilon, _agreement(pairs).pearson if all(c.isfinite().all() for c, _ in pairs) else None)
            for epsilon, pairs in self.rungs.items()
        ]
        vanished = float((working == 0).double().mean())
        return Differences(plan.epsilon, _rms(double), _rms(working - double), vanished, tuple(ladder))

    def _alignment(self, queries: int) -> Alignment:
        """With a direction for each image, the theory assumes that all images have the same gradient."""
        seen = queries * self.per_step
        theory = math.sqrt(seen / (seen + self.space.size - 1))
        return Alignment(queries, statistics.fmean(one.cosine for one in self.estimates[queries]), theory)


def _coefficients(method: Method, images: Tensor, labels: Tensor, query: Query, chunking: Chunking) -> Tensor:
    """Coefficients (queries, [batch]) of a batch, on the CPU."""

    def work(chunking: Chunking) -> Tensor:
        features = evaluate_features(method, images, query, False, chunking)
        return coefficients(method, labels, query, features)[0].cpu()

    return retry_smaller(chunking, len(images), work)


def _agreement(pairs: Sequence[tuple[Tensor, Tensor]]) -> Agreement:
    estimated, true = (torch.cat(side) for side in zip(*pairs, strict=True))
    return Agreement(
        pearson=_cosine(estimated - estimated.mean(), true - true.mean()),
        cosine=_cosine(estimated, true),
        error=_rms(estimated - true) / _rms(true) if true.any() else 0.0,
        pairs=len(true),
    )


def _cosine(a: Tensor, b: Tensor) -> float:
    length = float(a.norm() * b.norm())
    return float(a @ b) / length if length else 0.0


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())
