"""How many images and points at a time, so that the weights and a training step stay within `training.memory`.

Measured, not modelled: a twin of the placement takes a whole step on copies of what moves, so nothing moves. The bytes
of a few small steps give a guess, bytes ≈ a + images · (b + c · points); what is chosen has been measured itself. A
resumed run plans anew and may choose otherwise: the same updates, but for the order in which sums are rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from zofc.errors import BudgetError
from zofc.optim.estimators import get_estimator
from zofc.optim.graphs import SETTLED
from zofc.optim.placement import Placement
from zofc.optim.survey import Chunking
from zofc.training.incremental_model import IncrementalModel
from zofc.training.memory import allowance, measure, resident

TRIES = 6  # whole steps that are measured for each set, at most
TRACE = 1e-3  # bytes that one more image or point is taken to need where no difference is seen


def plan_memory(model: IncrementalModel, placement: Placement, images: Tensor, labels: Tensor) -> str:
    """Choose the placement's chunkings for batches like this one; returns what was chosen, in words."""
    asked = model.recipe.training.memory or "auto"
    budget, whole, said, apart = allowance(asked, model.device), len(images), [], False
    for name in sets(placement):
        points = points_of(placement, name)
        need = partial(rehearse, model, placement, name, images, labels)
        least = need(Chunking(1))
        if least > budget:
            raise _refusal(model, placement, name, budget, least)
        few = partial(rehearse, model, placement, name, images[:2], labels[:2])
        pace, needed = choose(need, few, least, whole, points, budget)
        placement.chunkings[name] = pace
        apart = apart or pace.micro_batch != whole
        groups = "+".join(placement.first) if name == "first" else name
        of_points = f" and {pace.chunk} of {points} points" if points > 1 else ""
        said.append(f"{groups} {pace.micro_batch} of {whole} images{of_points} at a time (measured {_mb(needed)})")
    most = model.recipe.training.eval_batch_size
    scored = f"scoring {model.plain_batch_size(most)} of {most} images at a time"
    limit = asked if asked != "auto" else f"auto ({_mb(budget)})"
    couples: str | None = getattr(model.method, "couples_images", None)
    return "; ".join([f"memory {limit}: {said[0]}", *said[1:], scored, *([couples] if couples and apart else [])])


def check_weights(model: IncrementalModel, placement: Placement) -> None:
    """Refuse a budget below the weights, for a task without a step to measure."""
    budget = allowance(model.recipe.training.memory or "auto", model.device)
    if budget < model.backbone.bytes:
        raise _refusal(model, placement, "", budget, model.backbone.bytes)


def sets(placement: Placement) -> list[str]:
    """The sets with a pace of their own: zeroth-order ones, and the first-order groups wherever these walk the backbone
    themselves instead of reading the features of a survey."""
    alone = any(
        any(mover.active(epoch) for mover in placement.first.values())
        and not any(mover.active(epoch) for mover in placement.zeroth.values())
        for epoch in range(placement.epochs)
    )
    deep = any(name in placement.method.in_features for name in placement.first)
    return [*(["first"] if alone or deep else []), *placement.zeroth]


def points_of(placement: Placement, name: str) -> int:
    """How many points a set could look at in one pass."""
    if name == "first":
        return 1
    query = placement.query(name, 0, 1)
    return 1 if query.per_image else len(query.offsets)


def rehearse(
    model: IncrementalModel, placement: Placement, name: str, images: Tensor, labels: Tensor, pace: Chunking
) -> float:
    """Peak bytes of a step of one set at a pace, with the states of all optimisers, and where steps are recorded with
    the making of all recordings; infinite if memory ran out."""
    copies = tree_map_only(Tensor, torch.clone, {group: dict(tensors) for group, tensors in placement.groups.items()})
    plans = {group: mover.plan for members, mover in placement.movers.items() for group in members.split("+")}
    doubled = [leaf for leaf in tree_leaves((copies, placement.state())) if isinstance(leaf, Tensor)]
    with measure(model.device, [*resident(model), *doubled]) as peak:
        recorded = placement.recorder.enabled
        twin = Placement(placement.method, copies, plans, seed=0, task=0, graphs=recorded)
        movers, deep = twin.movers, placement.method.in_features
        for mover in movers.values():
            mover.plan = mover.plan.model_copy(update={"start": 0})
            mover.move({key: torch.zeros_like(value) for key, value in mover.parameters.items()}, 0)
        twin.first = {key: mover for key, mover in twin.first.items() if name == "first" or key not in deep}
        twin.zeroth = {key: mover for key, mover in twin.zeroth.items() if key == name}
        twin.chunkings[name] = pace
        try:
            for number in range(SETTLED if recorded else 1):
                twin.step(images, labels, 0, number)
        except torch.OutOfMemoryError:
            return math.inf
    if twin.chunkings[name] != pace:  # it ran out and went on with less
        return math.inf
    return peak.bytes - sum(value.nbytes for value in doubled)


def choose(
    need: Callable[[Chunking], float],
    few: Callable[[Chunking], float],
    least: float,
    whole: int,
    points: int,
    budget: int,
) -> tuple[Chunking, float]:
    """The pace with the most images times points, then the most images, that was measured within the budget: `need`
    measures a step on the whole batch, `few` on two of its images, `least` is the need of one image at a time."""
    alone = few(Chunking(1))
    # a guess beyond the budget would say no more than one of its size
    per_image = min(max(few(Chunking(2)) - alone, TRACE), budget)
    per_point = min(max(few(Chunking(1, 2)) - alone, TRACE), budget) if points > 1 else TRACE

    def growth(pace: tuple[int, int]) -> float:
        return (pace[0] - 1) * per_image + pace[0] * (pace[1] - 1) * per_point

    def rank(pace: tuple[int, int]) -> tuple[int, int]:
        return pace[0] * pace[1], pace[0]

    candidates = [(images, chunk) for images in _parts(whole) for chunk in _parts(points)]
    best, measured, scale = (1, 1), least, 1.0
    for _ in range(TRIES):
        room = (budget - measured) / scale + growth(best)
        ahead = [pace for pace in candidates if rank(pace) > rank(best)]
        better = [pace for pace in ahead if growth(pace) <= room]
        if not better and best == (1, 1):  # the guess may be too high
            better = sorted(ahead, key=growth)[:1]
        if not better:
            break
        pick = max(better, key=rank)
        found = need(Chunking(*pick))
        if found <= budget:
            best, measured = pick, found
            continue
        if math.isinf(found):
            candidates = [pace for pace in candidates if growth(pace) <= growth(pick) / 2]
            continue
        candidates = [pace for pace in candidates if growth(pace) < growth(pick)]
        if growth(pick) > growth(best):
            scale = (found - measured) / (growth(pick) - growth(best))
    return Chunking(*best), measured


def _parts(whole: int) -> list[int]:
    """Sizes that cut a whole into nearly equal parts: one more would need memory and save no pass."""
    return sorted({-(-whole // count) for count in range(1, whole + 1)})


def _refusal(model: IncrementalModel, placement: Placement, name: str, budget: int, least: float) -> BudgetError:
    settings, weights = model.recipe.training, model.backbone.bytes
    if math.isinf(least):
        said = f"the device runs out of memory before {_mb(budget)}, with one image at a time."
    else:
        step = "and a step with one image at a time" if name else "alone"
        said = f"{_mb(budget)} are not enough for this task: the weights ({_mb(weights)}) {step} need {_mb(least)}."
        if settings.precision in ("fp32", "tf32"):
            half = least - weights / 2  # the step of one image is mostly the batch and its features, which stay
            fits = "would fit" if half <= budget else "would not fit either"
            said += f" training.precision=bf16 or fp16 {fits}, with about {_mb(half)}"
            exact = all(get_estimator(mover.plan.estimator).exact for mover in placement.zeroth.values())
            said += "." if exact else " (and estimator=forward_gradient: finite differences want fp32)."
    if name == "first" and not settings.recompute:
        said += " training.recompute=true keeps fewer activations."
    return BudgetError(f"training.memory: {said}")


def _mb(size: float) -> str:
    if size < 1e5:
        return f"{size / 1e3:.3g} kB"
    return f"{size / 1e6:.{0 if size >= 1e8 else 1 if size >= 1e7 else 2}f} MB"
