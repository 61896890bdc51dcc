"""At which scale a study is run: as in the paper, smaller on real images, or tiny on generated ones.

A scale says what it changes, and every output of a study carries that sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from zofc.analysis.run_flatness import Settings
from zofc.errors import RecipeError, nearest
from zofc.recipe import Recipe

SCORE = Settings(directions=0, probes=0, products=0)  # Φ alone, at the paper's radius


@dataclass(frozen=True)
class Scale:
    """Changes to every recipe of a study. Epochs are shares of the recipe's own, one at least."""

    name: str
    says: str
    epochs: float = 1.0
    rates: float = 1.0  # on all learning rates, which belong to many more steps
    batch_size: int | None = None
    per_class: int | None = None
    test_per_class: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
    increments: dict[int, int] = field(default_factory=dict)  # classes per task, by the recipe's own number
    classes: int | None = None
    backbone: str | None = None
    coda_pool: int | None = None
    timed_steps: int = 5  # of a cost
    flatness: Settings = SCORE

    def apply(self, recipe: Recipe) -> Recipe:
        if self.name == "paper":
            return recipe
        plans = dict(recipe.optimize)
        for name, plan in plans.items():
            rates = {"lr": plan.lr * self.rates, "min_lr": plan.min_lr * self.rates}
            plans[name] = plan.model_copy(update={**self._epochs(plan.epochs, plan.start), **rates})
        data = {**self.data, "per_class": self.per_class, "test_per_class": self.test_per_class}
        if self.classes is not None:
            data |= {"classes": self.classes, "increment": self.increments.get(recipe.data.increment, 2)}
        changes: dict[str, Any] = {"optimize": plans, "data": recipe.data.model_copy(update=data), "paper": None}
        if self.backbone is not None:
            changes["backbone"] = recipe.backbone.model_copy(update={"name": self.backbone, "architecture": None})
        if self.batch_size is not None:
            changes["training"] = recipe.training.model_copy(update={"batch_size": self.batch_size})
        if self.coda_pool is not None:
            changes["coda"] = recipe.coda.model_copy(update={"pool": self.coda_pool})
        return recipe.model_copy(update=changes)

    def _epochs(self, epochs: int, start: int) -> dict[str, int]:
        fewer = max(1, round(self.epochs * epochs))
        return {"epochs": fewer, "start": min(round(self.epochs * start), fewer - 1)}


SCALES = {
    scale.name: scale
    for scale in (
        Scale("paper", "the paper's backbone, data and epochs", flatness=replace(SCORE, images=None)),
        Scale(
            "small",
            "100 training and 50 test images a class, a quarter of the epochs at ten times the learning rates, and the "
            "backbone and data that are given (backbone.name=…, data.source=…)",
            epochs=0.25,
            rates=10.0,
            per_class=100,
            test_per_class=50,
        ),
        Scale(
            "tiny",
            "the embedded backbone on generated glyphs: 8 classes in tasks of two (four for Inc-10), 8 training and 6 "
            "test images a class, batches of 8, a fifth of the epochs at ten times the learning rates",
            epochs=0.2,
            rates=10.0,
            batch_size=8,
            per_class=8,
            test_per_class=6,
            data={"source": "glyphs", "root": None},
            increments={5: 2, 10: 4, 69: 2},
            classes=8,
            backbone="embedded",
            coda_pool=16,
            timed_steps=2,
            flatness=replace(SCORE, images=2),
        ),
    )
}


def get_scale(name: str) -> Scale:
    if name not in SCALES:
        raise RecipeError(f"--scale: unknown scale '{name}'{nearest(name, SCALES)}")
    return SCALES[name]
