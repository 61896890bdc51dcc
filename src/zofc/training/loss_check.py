"""Whether the loss fell in the first task that trained something: if it hardly did, the user is told what to type.

The mean loss over the last quarter of the epochs is compared with that over the first. One that is about what it was,
while answers are wrong, means steps that are too small or too few; one that rose, steps that are too large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from zofc.recipe import Group, Recipe

LEAST_FALL = 0.02  # of the loss, relative
GOOD = 80.0  # percent of answers right, from which on a loss need not fall


def check_loss(losses: Sequence[float], accuracy: float, plans: Mapping[str, Group], recipe: Recipe) -> str | None:
    """What to tell the user of the mean losses of a task's epochs; `accuracy` is that of the last epoch, in
    percent, and `plans` are those of the groups that moved."""
    moving = {name: plan for name, plan in plans.items() if plan.lr}
    if len(losses) < 2 or not moving or accuracy >= GOOD:
        return None
    part = -(-len(losses) // 4)
    first, last = fmean(losses[:part]), fmean(losses[-part:])
    if last <= (1 - LEAST_FALL) * first:
        return None
    rose = last > (1 + LEAST_FALL) * first
    how = "rose" if rose else "hardly fell"
    return (
        f"the loss {how}, from {first:.3f} to {last:.3f} ({accuracy:.0f} % of answers right in the last epoch); try "
        f"{_remedy(moving, recipe, 0.1 if rose else 10.0)}"
    )


def _remedy(plans: Mapping[str, Group], recipe: Recipe, factor: float) -> str:
    rates = " ".join(f"optimize.{name}.lr={plan.lr * factor:g}" for name, plan in plans.items())
    random_start = recipe.head.init != "means" and "head" in plans
    if factor > 1 and random_start and not recipe.method.prototypes:
        return f"head.init=means head.scale=10, or larger steps: {rates}"
    return f"{'larger' if factor > 1 else 'smaller'} steps: {rates}"
