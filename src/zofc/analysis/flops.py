"""The multiply–adds that torch executes in a step, beside the formulas of the paper's appendix H.

The formulas: an image's forward is F = F_backbone + L_a N · 4Dr + F_cls with F_cls = 5CD + 3D + C; a step on B images
is 3BF in first order, (2q + 1)BF in zeroth order, and (2q + 2)BF + 2B F_cls with a first-order classifier. F_backbone
is counted, as there. What an executed step has less or more than its formula is split into terms, each with its reason,
that add up to the difference exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from zofc.model.adapter import Adapter
from zofc.optim import kernels
from zofc.optim.estimators import get_estimator
from zofc.optim.placement import Placement
from zofc.recipe import Group
from zofc.training.incremental_model import IncrementalModel
from zofc.training.task import TaskTraining

PAPER_FORWARD = 1.768e10  # of an image through ViT-B/16, by fvcore with handlers of the paper's own


@dataclass(frozen=True)
class Executed:
    """Multiply–adds of one step, by what they are for."""

    once: int  # what no moving parameter touches
    features: int  # from there to the features, at every point
    classifier: int  # loss and accuracy
    update: int  # the rest: backward passes, and the sum of the directions
    total: int


@dataclass(frozen=True)
class Formula:
    """Appendix H for one step."""

    text: str
    forwards: int
    total: int
    backward: int  # part of the total


@dataclass(frozen=True)
class Difference:
    """What the formula has more than was executed (less, if negative), and why."""

    multiply_adds: int
    why: str


@dataclass(frozen=True)
class Forward:
    """Multiply–adds of one image."""

    backbone: int  # the plain ViT, every token to the end
    evaluation: int  # as executed when the method answers
    formula: int  # F


# -- counting --------------------------------------------------------------------------------------------------------


def multiply_adds(work: Callable[[], Any]) -> int:
    """Of the matrix products and convolutions that `work` executes, attention's included."""
    with kernels.plain(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        work()  # without fused kernels, which torch's counter does not look into
    return int(counter.get_total_flops()) // 2


def count_forward(model: IncrementalModel, placement: Placement, image: Tensor) -> Forward:
    """One image, (1, 3, H, W)."""
    backbone = model.backbone
    with torch.no_grad():
        plain = multiply_adds(lambda: backbone.vit(image.to(backbone.dtype)))
    answered = multiply_adds(lambda: model.scores(image))
    return Forward(plain, answered, plain + adapter_term(model, placement) + head_term(model))


def adapter_term(model: IncrementalModel, placement: Placement) -> int:
    """L_a N · 4Dr of the adapters that move; other modules have no term in the paper."""
    moving = {id(value) for group in placement.groups.values() for value in group.values()}
    adapters = [
        block
        for module in model.method.modules()
        if isinstance(module, Adapter)
        for block in module.blocks.values()
        if any(id(value) in moving for value in block.parameters())
    ]
    return sum(4 * model.backbone.tokens * block.get_parameter("up_weight").numel() for block in adapters)


def head_term(model: IncrementalModel) -> int:
    """F_cls: 5CD + 3D + C of a cosine classifier; of a linear one, what remains without its norms."""
    classes, width = len(model.classes), model.backbone.width
    return 2 * classes * width + classes + (3 * (classes + 1) * width if model.recipe.head.kind == "cosine" else 0)


def count_step(training: TaskTraining, images: Tensor, labels: Tensor, epoch: int) -> Executed:
    """The multiply–adds of one step, by the functions of the method that execute them."""
    method, placement = training.model.method, training.placement
    spent = dict.fromkeys(("prepare", "features", "loss", "hits"), 0)
    inside = False

    def counted(name: str, function: Callable[..., Any], *args: Any) -> Any:
        nonlocal inside
        if inside:  # one function may call another: the outer one is charged
            return function(*args)
        inside, before = True, counter.get_total_flops()
        try:
            return function(*args)
        finally:
            inside = False
            spent[name] += counter.get_total_flops() - before

    for name in spent:
        setattr(method, name, partial(counted, name, getattr(method, name)))
    try:
        paused, unfused = placement.execution.recorder.paused(), kernels.plain()
        with paused, unfused, sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            placement.step(images, labels, epoch, training.steps_done)
    finally:
        for name in spent:
            delattr(method, name)
    rest = counter.get_total_flops() - sum(spent.values())
    counts = spent["prepare"], spent["features"], spent["loss"] + spent["hits"], rest
    once, features, classifier, update = (flops // 2 for flops in counts)
    return Executed(once, features, classifier, update, once + features + classifier + update)


# -- the paper's formulas --------------------------------------------------------------------------------------------


def paper_formula(placement: Placement, groups: tuple[str, ...], batch: int, forward: int, head: int) -> Formula | None:
    """Appendix H for a step that moves these sets, with F and F_cls of an image."""
    zeroth = [part.plan for part in placement.zeroth if part.label in groups]
    first = [name for name in groups if name in placement.first.optimizers]
    deep = any(name in placement.method.in_features for name in first)
    if zeroth and deep:
        return None
    queries = max((plan.queries for plan in zeroth), default=0)
    if zeroth:
        forwards, backward = 2 * queries + (2 if first else 1), 2 * batch * head if first else 0
        text = "(2q + 2) B F + 2 B F_cls" if first else "(2q + 1) B F"
    else:
        forwards, backward = 1, 2 * batch * (forward if deep else head)
        text = "3 B F" if deep else "B F + 2 B F_cls"
    return Formula(text, forwards, forwards * batch * forward + backward, backward)


def explain_difference(
    training: TaskTraining, groups: tuple[str, ...], images: Tensor, executed: Executed, formula: Formula | None,
    forward: Forward,
) -> tuple[Difference, ...]:  # fmt: skip
    """Formula minus executed, in terms that add up to it: with k forwards in the formula and n executed passes through
    what depends on the moving parameters, P before it and E in it, (k − n)BF + (nP − once) + n(BF − P − E) + rest."""
    if formula is None:
        return ()
    model, placement, batch = training.model, training.placement, len(images)
    before, behind, plain = _one_pass(model, images)
    n = Fraction(executed.features, behind) if behind else Fraction(executed.once, before)
    number = round((formula.forwards - n) * batch * forward.formula)
    shared = round(n * before) - executed.once
    cut = 0
    if before + behind <= batch * forward.formula:  # else the method walks in a way of its own
        cut = round(n * (batch * forward.backbone - plain))
    update = formula.backward - executed.update
    terms = formula.total - executed.total - number - shared - cut - update
    zeroth = [part.plan for part in placement.zeroth if part.label in groups]
    parts = [
        (number, _why_number(formula, float(n), zeroth, len(zeroth) < len(groups), bool(behind))),
        (shared, "what comes before the first moving parameter is computed once, not with every forward"),
        (cut, "in the last block only the class token is carried on beyond its keys and values"),
        (update, _why_update(executed.update / max(before + behind, 1), bool(zeroth), formula)),
        (terms, _why_terms(model, placement, (before + behind) / (batch * forward.backbone))),
    ]
    return tuple(Difference(size, why) for size, why in parts if size)


def _one_pass(model: IncrementalModel, images: Tensor) -> tuple[int, int, int]:
    """Multiply–adds of this batch up to what moves, from there to the features, and of the plain features."""
    method, prepared = model.method, []
    images = images.to(model.device)
    with torch.no_grad():
        before = multiply_adds(lambda: prepared.append(method.prepare(images)))
        behind = multiply_adds(lambda: method.features({}, prepared[0]))
        return before, behind, multiply_adds(lambda: model.backbone.features(images))


def _why_number(formula: Formula, n: float, zeroth: Sequence[Group], first: bool, deep: bool) -> str:
    counts = f"the formula has {formula.forwards} forwards, executed is the work of {n:.4g}: "
    if not deep:
        return counts + "only the classifier moves, so all points share one forward"
    estimators = {plan.estimator for plan in zeroth}
    reasons = {
        "forward gradients carry q tangents beside the center in place of 2q points": any(
            get_estimator(name).exact for name in estimators
        ),
        "one-sided differences use q points and the center": "one_sided" in estimators,
        "the classifier, the loss and the accuracy all read the features at the center": first,
        "loss and accuracy are read off the points, where the formula has a forward for them": "spsa" in estimators
        and not first,
        "each set of groups has its own points": len(zeroth) > 1,
    }
    table = " (the paper's table has about 2q + 1 for this 2q + 2)" * first
    return counts + "; ".join(reason for reason, holds in reasons.items() if holds) + table


def _why_update(share: float, zeroth: bool, formula: Formula) -> str:
    if formula.text == "3 B F":
        frozen = "frozen weights need no gradients, and nothing before the first moving parameter is differentiated"
        return f"the formula charges the backward pass twice the forward, executed is {share:.2f} of it: {frozen}"
    backward = ["the classifier's backward pass is counted as executed, without norms"] * bool(formula.backward)
    return "; ".join(backward + ["the q directions are weighted and summed, which the formula leaves out"] * zeroth)


def _why_terms(model: IncrementalModel, placement: Placement, share: float) -> str:
    if any(name in placement.method.in_features for name in placement.groups) and not adapter_term(model, placement):
        return (
            f"a forward of '{model.recipe.method.name}' ({share:.3g} of a plain one) has products for which the "
            "formula has no term: it knows no module but adapters"
        )
    return (
        "the formula's terms for adapters and classifier count a multiply–add as two and add norms and scales; here "
        "products are counted, and the classifier as often as it is executed"
    )


def conventions(model: IncrementalModel, forward: Forward) -> tuple[str, ...]:
    """What is counted, and how that differs from the paper's count, in sentences."""
    products = (
        "counted are the multiply–adds of matrix products and convolutions; the paper's fvcore count also has softmax, "
        f"GELU, norms and sums: {PAPER_FORWARD:.3e} an image of ViT-B/16 at 224 px, where the former are 1.756e+10. "
        f"F_backbone is the counted one here, {forward.backbone:.4g}"
    )
    for module in model.method.modules():
        if isinstance(module, Adapter):
            count = f"L_a is the number of adapters, {len(module.numbers)}"
            return products, f"{count}; the released code takes it from pet_length, which is 10 beside five adapters"
    return (products,)
