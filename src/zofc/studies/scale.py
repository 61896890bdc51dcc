"""At which scale a study is run: as in the paper, smaller on real images, or tiny on generated ones.

A scale says what it changes, and every output of a study carries that sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from zofc.analysis.run_flatness import FlatnessSettings
from zofc.errors import RecipeError, nearest
from zofc.recipe import Group, Recipe, change_recipe

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
    changes: tuple[str, ...] = ()
    epochs: float = 1.0  # a share of the recipe's own
    least_epochs: int = 1
    rates: float = 1.0  # factor on all learning rates, which belong to many more steps
    own_rates: dict[str, tuple[float, float]] = field(default_factory=dict)  # in its place: SMALL_RATES
    sources: dict[str, str] = field(default_factory=dict)  # of images, by what a task is (`data.by`)
    increments: dict[int, int] = field(default_factory=dict)  # classes per task, by the recipe's own number
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
        family = recipe.name.partition("/")[0]
        head, module = self.own_rates.get(LIKE.get(family, family), (self.rates, self.rates))
        plans = {name: self._scaled(plan, head if name == "head" else module) for name, plan in recipe.optimize.items()}
        changes = [*self.changes, *["training.precision=bf16"] * self.fast]
        if self.sources:
            increment = self.increments.get(recipe.data.increment, 2)
            changes += [f"data.source={self.sources[recipe.data.by]}", f"data.increment={increment}"]
        return change_recipe(recipe.model_copy(update={"optimize": plans}), changes)

    def _scaled(self, plan: Group, rate: float) -> Group:
        epochs = max(self.least_epochs, round(self.epochs * plan.epochs))
        start = min(round(self.epochs * plan.start), epochs - 1)
        update: dict[str, Any] = {"epochs": epochs, "start": start, "lr": plan.lr * rate, "min_lr": plan.min_lr * rate}
        if self.fast and plan.order == "zeroth":
            update |= {"estimator": "forward_gradient", "chunk": min(plan.queries, 4)}
        return plan.model_copy(update=update)


SCALES = {
    scale.name: scale
    for scale in (
        Scale("paper", "the paper's backbone, data and epochs", flatness=replace(FLATNESS_SCORE, images=None)),
        Scale(
            "small",
            "at most 96 training and 50 test images a class, a quarter of the epochs (three at least), the learning "
            "rates times the factors that did best in a search on other training images of CIFAR-100, and the backbone "
            "that is given (backbone.name=…)",
            ("paper=null", "data.per_class=96", "data.test_per_class=50"),
            epochs=0.25,
            least_epochs=3,
            rates=10.0,
            own_rates=SMALL_RATES,
            flatness=replace(FLATNESS_SCORE, images=10, batch=128),  # small images: more of them keep a device busy
            curvature=replace(CURVATURE_SCORE, images=4, probes=4, products=15, batch=100),
        ),
        Scale(
            "tiny",
            "the embedded backbone on generated glyphs: 8 classes in tasks of two (four for Inc-10), 8 training and 6 "
            "test images a class, batches of 8, a fifth of the epochs at ten times the learning rates",
            (
                "paper=null", "data.per_class=8", "data.test_per_class=6", "data.classes=8", "data.first=null",
                "data.root=null", "backbone.name=embedded", "backbone.architecture=null", "training.batch_size=8",
                "coda.pool=16",
            ),
            epochs=0.2,
            rates=10.0,
            sources={"class": "glyphs"} | dict.fromkeys(("domain", "domain-class"), "glyphs:domains=ink+neon"),
            increments={5: 2, 10: 4, 69: 2},
            timed_steps=2,
            flatness=replace(FLATNESS_SCORE, images=2),
            curvature=replace(CURVATURE_SCORE, images=2, probes=2, products=4, every=2),
        ),
    )
}  # fmt: skip


def get_scale(name: str) -> Scale:
    """The scale of this name."""
    if name not in SCALES:
        raise RecipeError(f"--scale: unknown scale '{name}'{nearest(name, SCALES)}")
    return SCALES[name]
