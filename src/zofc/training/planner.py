"""The memory planner: how many images and points pass through the backbone at a time, so that the weights and a step of
training stay within `training.memory`.

Memory is measured, not modelled: the placement rehearses whole steps on copies of what moves. The bytes of a few small
steps predict those of others, bytes ≈ a + images · (b + c · points); a chunking is chosen only after it has been
measured itself. A resumed run plans again and may choose another chunking: the updates differ only in rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from torch import Tensor

from zofc.errors import BudgetError
from zofc.optim.chunking import Chunking
from zofc.optim.estimators import get_estimator
from zofc.optim.placement import Placement
from zofc.optim.sets import FirstOrderSet, ParameterSet, set_label
from zofc.training.incremental_model import IncrementalModel
from zofc.training.memory import measure_peak, memory_budget, resident_tensors
from zofc.units import format_bytes

MAX_MEASUREMENTS = 6  # whole steps that are measured for each set
LEAST_GROWTH = 1e-3  # bytes for one more image or point where no difference is measured


def plan_memory(model: IncrementalModel, placement: Placement, images: Tensor, labels: Tensor) -> str:
    """Set the chunkings of a placement for batches like this one; returns a notice that says which."""
    budget, batch, notes, split = _budget(model), len(images), [], False
    for part in chunked_sets(placement):
        points = points_per_step(placement, part)
        need = partial(step_bytes, model, placement, part, images, labels)
        least = need(Chunking(1))
        if least > budget:
            raise _budget_error(model, placement, part, budget, least)
        need_of_two = partial(step_bytes, model, placement, part, images[:2], labels[:2])
        part.chunking, needed = choose_chunking(need, need_of_two, least, batch, points, budget)
        split = split or part.chunking.micro_batch != batch
        groups = set_label(placement.first.optimizers) if isinstance(part, FirstOrderSet) else part.label
        of_points = f" and {part.chunking.chunk} of {points} points" if points > 1 else ""
        at_a_time = f"{part.chunking.micro_batch} of {batch} images{of_points} at a time"
        notes.append(f"{groups} {at_a_time} (measured {format_bytes(needed)})")
    most = model.recipe.training.eval_batch_size
    notes.append(f"scoring {model.plain_batch_size(most)} of {most} images at a time")
    couples: str | None = getattr(model.method, "couples_images", None)
    if couples and split:
        notes.append(couples)
    return f"memory {_limit(model, budget)}: " + "; ".join(notes)


def check_weights(model: IncrementalModel, placement: Placement) -> None:
    """For a task without a step to measure: raise BudgetError if the weights alone exceed the budget."""
    budget = _budget(model)
    if budget < model.backbone.bytes:
        raise _budget_error(model, placement, None, budget, model.backbone.bytes)


def chunked_sets(placement: Placement) -> list[ParameterSet]:
    """The sets whose chunking matters: all zeroth-order ones, and the first-order set if in some epoch its groups need
    a pass of their own, instead of reading features that were evaluated for a zeroth-order set."""
    active = [placement.active_sets(epoch) for epoch in range(placement.epochs)]
    alone = any(first and not zeroth for first, zeroth in active)
    deep = not placement.first.optimizers.keys().isdisjoint(placement.method.in_features)
    return [*([placement.first] if alone or deep else []), *placement.zeroth]


def points_per_step(placement: Placement, part: ParameterSet) -> int:
    """How many points of a set could pass through the backbone together."""
    if isinstance(part, FirstOrderSet):
        return 1
    return part.query(part.draw(0, 1, placement.method.device)).most_together


def step_bytes(
    model: IncrementalModel,
    placement: Placement,
    part: ParameterSet,
    images: Tensor,
    labels: Tensor,
    chunking: Chunking,
) -> float:
    """Peak bytes of a step that evaluates `part` at a chunking, optimizer states and recordings included, or inf."""
    with measure_peak(model.device, resident_tensors(model)) as peak:
        fits = placement.rehearse(part, chunking, images, labels)
    copies = sum(value.nbytes for group in placement.groups.values() for value in group.values())
    return peak.bytes - copies if fits else math.inf


def choose_chunking(
    need: Callable[[Chunking], float],
    need_of_two: Callable[[Chunking], float],
    least: float,
    batch: int,
    points: int,
    budget: int,
) -> tuple[Chunking, float]:
    """The chunking with the most images times points, then the most images, that was measured within the budget. `need`
    measures a step on the whole batch, `need_of_two` on two of its images; `least` is the need of one image at a time.
    """
    single = need_of_two(Chunking(1))
    # a growth beyond the budget would say no more than one of its size
    per_image = min(max(need_of_two(Chunking(2)) - single, LEAST_GROWTH), budget)
    per_point = min(max(need_of_two(Chunking(1, 2)) - single, LEAST_GROWTH), budget) if points > 1 else LEAST_GROWTH

    def growth(candidate: tuple[int, int]) -> float:
        return (candidate[0] - 1) * per_image + candidate[0] * (candidate[1] - 1) * per_point

    def rank(candidate: tuple[int, int]) -> tuple[int, int]:
        return candidate[0] * candidate[1], candidate[0]

    candidates = [(images, chunk) for images in _part_sizes(batch) for chunk in _part_sizes(points)]
    best, best_bytes, scale = (1, 1), least, 1.0
    for _ in range(MAX_MEASUREMENTS):
        room = (budget - best_bytes) / scale + growth(best)
        ahead = [candidate for candidate in candidates if rank(candidate) > rank(best)]
        better = [candidate for candidate in ahead if growth(candidate) <= room]
        if not better and best == (1, 1):  # the predicted growth may be too high
            better = sorted(ahead, key=growth)[:1]
        if not better:
            break
        pick = max(better, key=rank)
        needed = need(Chunking(*pick))
        if needed <= budget:
            best, best_bytes = pick, needed
            continue
        if math.isinf(needed):
            candidates = [candidate for candidate in candidates if growth(candidate) <= growth(pick) / 2]
            continue
        candidates = [candidate for candidate in candidates if growth(candidate) < growth(pick)]
        if growth(pick) > growth(best):
            scale = (needed - best_bytes) / (growth(pick) - growth(best))
    return Chunking(*best), best_bytes


def _part_sizes(whole: int) -> list[int]:
    """Sizes that cut a whole into nearly equal parts: one more would need memory and save no pass."""
    return sorted({-(-whole // count) for count in range(1, whole + 1)})


def _budget(model: IncrementalModel) -> int:
    return memory_budget(model.recipe.training.memory or "auto", model.device)


def _limit(model: IncrementalModel, budget: int) -> str:
    asked = model.recipe.training.memory or "auto"
    return asked if asked != "auto" else f"auto ({format_bytes(budget)})"


def _budget_error(
    model: IncrementalModel, placement: Placement, part: ParameterSet | None, budget: int, least: float
) -> BudgetError:
    settings, weights, limit = model.recipe.training, model.backbone.bytes, _limit(model, budget)
    if math.isinf(least):
        text = f"the device runs out of memory before {limit}, with one image at a time."
    else:
        step = "and a step with one image at a time" if part else "alone"
        needed = format_bytes(1.005 * least)  # rounded up: a budget of as much as the message says is enough
        text = f"{limit} is not enough for this task: the weights ({format_bytes(weights)}) {step} need {needed}."
        if settings.precision in ("fp32", "tf32"):
            half = least - weights / 2  # a step of one image is mostly the batch and its features, which stay
            fits = "would fit" if half <= budget else "would not fit either"
            text += f" training.precision=bf16 or fp16 {fits}, with about {format_bytes(half)}"
            exact = all(get_estimator(each.plan.estimator).exact for each in placement.zeroth)
            text += "." if exact else " (and estimator=forward_gradient: finite differences want fp32)."
    if isinstance(part, FirstOrderSet) and not settings.recompute:
        text += " training.recompute=true keeps fewer activations."
    return BudgetError(f"training.memory: {text}")
