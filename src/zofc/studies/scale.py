"""At which scale a study is run: as in the paper, smaller on real images, or tiny on generated ones.

A scale says what it changes, and every output of a study carries that sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from zofc.analysis.run_flatness import FlatnessSettings
from zofc.errors import RecipeError, nearest
from zofc.recipe import Recipe

FLATNESS_SCORE = FlatnessSettings(directions=0, probes=0, products=0)  # Φ alone, at the paper's radius
CURVATURE_SCORE = FlatnessSettings(over=("peft",), directions=0, every=6)  # of the adapter, after three tasks of twenty

# What results/small_rates.json has for few steps on a small ViT, of the classifier's rates and of the module's, by
# family of recipes; ten times for what is in no study.
SMALL_RATES = {
    "classifier-fo": (10.0, 10.0), "adapter-fo": (10.0, 100.0), "lae-fo": (10.0, 10.0), "l2p-fo": (10.0, 10.0),
    "coda-fo": (100.0, 100.0), "aper-fo": (100.0, 100.0), "ease-fo": (10.0, 10.0), "inflora-fo": (100.0, 10.0),
    "classifier-zo": (10.0, 10.0), "adapter-zo": (10.0, 1.0), "lae-zo": (1.0, 10.0), "l2p-zo": (10.0, 1.0),
    "coda-zo": (100.0, 100.0), "aper-zo": (10.0, 10.0), "ease-zo": (1.0, 1.0), "inflora-zo": (100.0, 100.0),
    "zofc": (10.0, 10.0), "classifier-linear-fo": (10.0, 10.0), "adapter-linear-fo": (10.0, 1000.0),
    "zofc-linear": (10.0, 10.0), "prototypes": (10.0, 10.0), "swapped": (100.0, 10.0), "zofc-lora": (10.0, 10.0),
    "zofc-prefix": (10.0, 100.0),
}  # fmt: skip
LIKE = {"l2p-zo-long": "l2p-zo", "coda-zo-long": "coda-zo", "zofc-noaug": "zofc"}  # which take the rates of these


@dataclass(frozen=True)
class Scale:
    """Changes to every recipe of a study."""

    name: str
    says: str
    epochs: float = 1.0  # a share of the recipe's own
    least_epochs: int = 1
    rates: float = 1.0  # on all learning rates, which belong to many more steps
    own_rates: dict[str, tuple[float, float]] = field(default_factory=dict)  # in its place: SMALL_RATES
    batch_size: int | None = None
    per_class: int | None = None
    test_per_class: int | None = None
    sources: dict[str, str] = field(default_factory=dict)  # of images, by what a task is (`data.by`)
    increments: dict[int, int] = field(default_factory=dict)  # classes per task, by the recipe's own number
    classes: int | None = None
    backbone: str | None = None
    coda_pool: int | None = None
    timed_steps: int = 5  # of a cost
    flatness: FlatnessSettings = FLATNESS_SCORE
    curvature: FlatnessSettings = CURVATURE_SCORE
    fast: bool = False

    @property
    def label(self) -> str:
        """For a title."""
        return f"{self.name}, fast" if self.fast else self.name

    def faster(self) -> Scale:
        """The same with forward gradients in bf16 for differences in fp32."""
        says = f"{self.says}; everything in bf16, and derivatives along the directions in place of differences"
        return replace(self, says=says, fast=True)

    def apply(self, recipe: Recipe) -> Recipe:
        """A recipe of the paper at this scale."""
        scaled = recipe if self.name == "paper" else self._scaled(recipe)
        if not self.fast:
            return scaled
        plans = dict(scaled.optimize)
        for name, plan in plans.items():
            if plan.order == "zeroth":
                update = {"estimator": "forward_gradient", "chunk": min(plan.queries, 4)}
                plans[name] = plan.model_copy(update=update)
        training = scaled.training.model_copy(update={"precision": "bf16"})
        return scaled.model_copy(update={"optimize": plans, "training": training})

    def _scaled(self, recipe: Recipe) -> Recipe:
        plans = dict(recipe.optimize)
        family = recipe.name.partition("/")[0]
        head, module = self.own_rates.get(LIKE.get(family, family), (self.rates, self.rates))
        for name, plan in plans.items():
            factor = head if name == "head" else module
            rates = {"lr": plan.lr * factor, "min_lr": plan.min_lr * factor}
            plans[name] = plan.model_copy(update={**self._epochs(plan.epochs, plan.start), **rates})
        data: dict[str, Any] = {"per_class": self.per_class, "test_per_class": self.test_per_class}
        if self.sources:
            data |= {"source": self.sources[recipe.data.by], "root": None}
        if self.classes is not None:
            increment = self.increments.get(recipe.data.increment, 2)
            data |= {"classes": self.classes, "increment": increment, "first": None}
        changes: dict[str, Any] = {"optimize": plans, "data": recipe.data.model_copy(update=data), "paper": None}
        if self.backbone is not None:
            changes["backbone"] = recipe.backbone.model_copy(update={"name": self.backbone, "architecture": None})
        if self.batch_size is not None:
            changes["training"] = recipe.training.model_copy(update={"batch_size": self.batch_size})
        if self.coda_pool is not None:
            changes["coda"] = {**recipe.sections.get("coda", {}), "pool": self.coda_pool}
        return recipe.model_copy(update=changes)

    def _epochs(self, epochs: int, start: int) -> dict[str, int]:
        fewer = max(self.least_epochs, round(self.epochs * epochs))
        return {"epochs": fewer, "start": min(round(self.epochs * start), fewer - 1)}


SCALES = {
    scale.name: scale
    for scale in (
        Scale("paper", "the paper's backbone, data and epochs", flatness=replace(FLATNESS_SCORE, images=None)),
        Scale(
            "small",
            "at most 96 training and 50 test images a class, a quarter of the epochs (three at least), the learning "
            "rates times the factors that did best in a search on other training images of CIFAR-100, and the backbone "
            "that is given (backbone.name=…)",
            epochs=0.25,
            least_epochs=3,
            rates=10.0,
            own_rates=SMALL_RATES,
            per_class=96,
            test_per_class=50,
            flatness=replace(FLATNESS_SCORE, images=10, batch=128),  # small images: more of them keep a device busy
            curvature=replace(CURVATURE_SCORE, images=4, probes=4, products=15, batch=100),
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
            sources={"class": "glyphs"} | dict.fromkeys(("domain", "domain-class"), "glyphs:domains=ink+neon"),
            increments={5: 2, 10: 4, 69: 2},
            classes=8,
            backbone="embedded",
            coda_pool=16,
            timed_steps=2,
            flatness=replace(FLATNESS_SCORE, images=2),
            curvature=replace(CURVATURE_SCORE, images=2, probes=2, products=4, every=2),
        ),
    )
}


def get_scale(name: str) -> Scale:
    """The scale of this name."""
    if name not in SCALES:
        raise RecipeError(f"--scale: unknown scale '{name}'{nearest(name, SCALES)}")
    return SCALES[name]
