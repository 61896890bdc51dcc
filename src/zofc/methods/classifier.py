"""A learnable classifier on frozen features: the rows of the current task (and the cosine's scale) are trained.

The old-class mask of the paper (old logits at −∞) is the softmax over the current task's rows alone; written this way
old rows are not in the loss and not in the group, so no step of any order can move them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar

from torch import Tensor

from zofc.errors import RecipeError
from zofc.methods.base import FROZEN, Batches, Method, method
from zofc.methods.ridge import RidgeSettings, held_out_stream, make_ridge_head
from zofc.model.backbone import Backbone
from zofc.model.class_means import ClassMeans
from zofc.model.heads import HEADS, CosineHead
from zofc.model.params import Moving, under
from zofc.model.ridge import CalibrationSample, RidgeHead
from zofc.recipe import Recipe


@method("classifier")
class Classifier(Method):
    """A cosine or linear classifier, nothing else."""

    group_names: ClassVar[tuple[str, ...]] = ("head",)
    regressed: ClassVar[bool] = True  # whether a regression may answer in place of the rows
    falls_back: ClassVar[bool] = False  # whether one on the frozen features may answer in place of that

    def __init__(self, backbone: Backbone, recipe: Recipe) -> None:
        super().__init__(backbone, recipe)
        self.head = HEADS[recipe.head.kind](backbone.width, self.head_init(recipe)).to(backbone.device)
        self.start_scale()
        self.ridge = self.make_ridge(backbone.width)
        self.sums = ClassMeans(self.mean_width) if self.keeps_means(recipe) else None

    @property
    def mean_width(self) -> int:
        """How many numbers the mean of a class has."""
        return self.backbone.width

    @classmethod
    def keeps_means(cls, recipe: Recipe) -> bool:
        """Whether the rows of all classes are the means of their features."""
        return recipe.method.prototypes

    def make_ridge(self, width: int) -> RidgeHead | None:
        """The regression that answers in place of the rows, if the recipe asks for it."""
        return None if self.recipe.method.readout == "rows" else make_ridge_head(self, width)

    @classmethod
    def check(cls, recipe: Recipe, task_sizes: Sequence[int], learned: int = 0) -> None:
        super().check(recipe, task_sizes, learned)
        method, cosine = recipe.method, recipe.head.kind == "cosine"
        if method.readout == "ridge" and not cls.regressed:
            raise RecipeError(f"method.readout: {method.name} answers by a rule of its own; use method.readout=rows")
        if method.readout == "ridge" and recipe.section("ridge", RidgeSettings).fallback and not cls.falls_back:
            raise RecipeError(f"ridge.fallback: {method.name} has no answer without its adapter; use false")
        if method.prototypes and recipe.data.by == "domain":
            raise RecipeError("method.prototypes: the means of a new domain would take the place of those before")
        if method.prototypes and not cosine:
            raise RecipeError("method.prototypes: class means need head.kind=cosine")
        if method.prototypes and not method.mask:
            raise RecipeError(
                "method.prototypes: without the mask old prototypes would be trained; set method.mask=true"
            )
        if (head := recipe.optimize.get("head")) and head.tasks is not None and not cls.answers_untrained(recipe):
            raise RecipeError(
                f"optimize.head.tasks: rows of classes that come after task {head.tasks} would stay as they start; "
                "use method.readout=ridge, method.prototypes=true or head.init=means"
            )
        if cosine and recipe.head.init == "zeros":
            raise RecipeError("head.init: the cosine of a row of zeros is undefined; use another, or head.kind=linear")
        for number, size in enumerate(task_sizes, start=learned + 1):
            if size == 1 and not cosine and (method.mask or number == 1):
                raise RecipeError(
                    f"data.increment: task {number} has a single class, whose loss is constant; a linear head has no "
                    "prototype to fall back on: use head.kind=cosine or another increment"
                )

    @classmethod
    def answers_untrained(cls, recipe: Recipe) -> bool:
        """Whether the answer for a class does not depend on the training of its row."""
        return recipe.method.readout == "ridge" or recipe.method.prototypes or recipe.head.init == "means"

    def extend(self, classes: range) -> None:
        known = bool(classes) and classes in self.tasks  # in a new domain; they share, and go on training, their rows
        super().extend(classes)
        if not known:
            self.head.grow(len(classes), self.generator("head", self.block), self.device)
            for part in (self.ridge, self.sums):
                if part is not None:
                    part.grow(len(classes))
        if self.recipe.method.prototypes:
            self.start_scale()  # the classifier is a temporary one, fresh in each task

    def start_scale(self) -> None:
        """The scale of a cosine classifier starts where the recipe says."""
        if isinstance(self.head, CosineHead):
            self.head.sigma.fill_(self.recipe.head.scale)

    @property
    def in_loss(self) -> range:
        """The blocks whose rows the loss sees, and moves: the current one, or all without the mask."""
        return range(self.block, self.block + 1) if self.recipe.method.mask else range(len(self.blocks))

    @property
    def single(self) -> bool:
        """A loss that sees one class is constant: there is nothing to train."""
        return sum(len(self.blocks[number]) for number in self.in_loss) == 1

    def groups(self) -> dict[str, dict[str, Tensor]]:
        if self.single:
            return {}
        return {"head": self.named(self.head.moving_names(self.in_loss), "head.")}

    def begin_task(self, batches: Batches) -> str | None:
        if not self.single:
            if self.head.init == "means" and self.tasks.count(self.tasks[-1]) == 1:
                means = self.class_means(batches, self.tasks[-1], self.extract)
                self.head.set_rows(self.block, self.head.rows_at(means, self.recipe.head.scale))
            return None
        return f"task {len(self.tasks)} has one class: its loss is constant, so it takes a prototype row untrained"

    def end_task(self, batches: Batches) -> str | None:
        if self.sums is None and self.single:
            self.head.set_rows(self.block, self.class_means(batches, self.tasks[-1], self.extract))
        self.average(batches, self.tasks[-1])
        return self.regress(batches, self.extract)

    @classmethod
    def includes_images(cls, recipe: Recipe) -> bool:
        return recipe.method.readout == "ridge" or cls.keeps_means(recipe)

    def include(self, batches: Batches) -> str | None:
        self.average(batches, range(0))
        return self.regress(batches, self.extract, trained=False)

    def average(self, batches: Batches, new: range) -> None:
        """Include images, those of `new` classes among them, in the class means, if the rows are means."""
        if self.sums is not None and isinstance(self.head, CosineHead):
            self.add_to_means(self.sums, self.head, batches, self.extract, new)

    @property
    def left_out(self) -> CalibrationSample | None:
        return self.ridge.left_out if self.ridge is not None and self.ridge.left_out_of_all else None

    def regress(self, batches: Batches, extract: Callable[[Tensor], Tensor], trained: bool = True) -> str | None:
        """Include images in the regression, if there is one, after a task that `trained` on them or not; may return a
        notice for the user."""
        if self.ridge is not None:
            features, labels = self.all_features(batches, self.fixed_batches(extract))
            self.ridge.learn(features, labels, held_out_stream(self))
        return None

    def prepare(self, images: Tensor) -> Any:
        return images if images.dim() == 2 else self.backbone.features(images)  # the former where they are kept

    def features(self, moving: Moving, prepared: Any) -> Any:
        return prepared

    def logits(self, moving: Moving, features: Tensor) -> Tensor:
        """Scores (..., batch, classes in the loss)."""
        return self.head.logits(under(moving, "head"), features, self.in_loss)

    def loss(self, moving: Moving, features: Tensor, labels: Tensor) -> Tensor:
        logits = self.logits(moving, features)  # ([queries,] batch, classes)
        targets = labels - self.blocks[self.in_loss.start].start
        chosen = logits.log_softmax(-1).gather(-1, targets.expand(logits.shape[:-1])[..., None])
        return -chosen[..., 0].mean(-1)

    def hits(self, moving: Moving, features: Tensor, labels: Tensor) -> Tensor:
        guesses = self.logits(moving, features).argmax(-1) + self.blocks[self.in_loss.start].start
        return (guesses == labels).sum(-1)

    def extract(self, images: Tensor) -> Tensor:
        """Features (batch, width) with the method's own parameters."""
        features: Tensor = self.features({}, self.prepare(images))
        return features

    def calibration_sample(self, batches: Batches, counts: Tensor) -> CalibrationSample:
        if self.ridge is not None and self.ridge.left_out is not None:
            return self.ridge.left_out
        head, means = self.head, self.single or self.recipe.method.prototypes
        counts = counts if self.sums is None else self.sums.counts
        if means and isinstance(head, CosineHead):
            return self.means_left_out(head, batches, counts, self.extract)
        return super().calibration_sample(batches, counts)

    def embed(self, images: Tensor) -> Tensor:
        return self.extract(images)

    def read_out(self, features: Tensor) -> Tensor:
        return self.head.logits({}, features) if self.ridge is None else self.ridge.scores(features)

    @property
    def embedding(self) -> Hashable | None:
        """The features of a classifier alone; with a module, those of the last task that moves it."""
        plans = [self.recipe.optimize[name] for name in self.in_features if name in self.recipe.optimize]
        if any(plan.tasks is None or len(self.tasks) < plan.tasks for plan in plans):
            return None
        return FROZEN
