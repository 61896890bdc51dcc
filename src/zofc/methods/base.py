"""What a method is: what it trains in each task, its loss as a function of the moving parameters, how it answers.

A method is one class under `@method("name")` in a file of its own. It never loops over data and never steps an
optimizer: the trainer does the one, a placement the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zofc import seeds
from zofc.errors import DataError, RecipeError, RunError, nearest
from zofc.model.backbone import Backbone
from zofc.model.class_means import ClassMeans
from zofc.model.heads import CosineHead, Head
from zofc.model.params import Moving, Resizable
from zofc.model.ridge import CalibrationSample, RidgeHead
from zofc.plugins import Registry
from zofc.ranks import Ranks
from zofc.recipe import METHOD_SECTIONS, Group, Recipe, Strict
from zofc.seeds import Noise

FROZEN = "frozen"  # an `embedding` that stays as it is
FIXED_BATCH = 16  # images
Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]  # the task's training images in `batches_in`, with labels


class Method(nn.Module):
    """A learner of tasks. Its parameters are all there is to save; the backbone is not among them."""

    group_names: ClassVar[tuple[str, ...]] = ()
    in_features: ClassVar[tuple[str, ...]]  # those that the features depend on, not the loss alone: all but `head`
    refuses_domains: ClassVar[str | None] = None  # why it cannot learn the same classes in a further domain
    couples_images: ClassVar[str | None] = None  # why a batch in pieces is not the same as the batch, if it is not
    linear_init: ClassVar[str] = "uniform"  # `head.init` of its authors where the classifier is linear
    trained_tasks: ClassVar[float] = math.inf  # the first tasks, in which its groups move
    answers_together: bool = False  # whether the answer for an image depends on those that are asked with it
    backbone: Backbone

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "in_features" not in cls.__dict__:
            cls.in_features = tuple(name for name in cls.group_names if name != "head")

    def __init__(self, backbone: Backbone, recipe: Recipe) -> None:
        super().__init__()
        self.backbone = backbone
        self.recipe = recipe
        self.noise: Noise | None = None  # of random layers, given by first-order steps
        self.ranks = Ranks()  # over which the images of `begin_task` and `end_task` are divided
        self.tasks: list[range] = []  # class ids of each task so far, the current one last

    # -- tasks ---------------------------------------------------------------------------------------------------

    @classmethod
    def check(cls, recipe: Recipe, task_sizes: Sequence[int], learned: int = 0) -> None:
        """Refuse, before any work, what this method cannot do; `learned` tasks came before these."""
        if recipe.data.by == "domain" and cls.refuses_domains:
            raise RecipeError(
                f"data.by: {recipe.method.name} cannot learn a class in several domains: {cls.refuses_domains}"
            )

    @classmethod
    def head_init(cls, recipe: Recipe) -> str:
        """The distribution that rows of new classes start from: the recipe's, or that of the method's authors."""
        if recipe.head.init != "auto":
            return recipe.head.init
        return cls.linear_init if recipe.head.kind == "linear" else "uniform"

    def extend(self, classes: range) -> None:
        """Make room for the classes of a new task; the values drawn depend only on the seed and the task."""
        self.tasks.append(classes)

    @property
    def blocks(self) -> list[range]:
        """The classes that came together, once each: tasks, less those that bring known classes in a new domain. A
        task whose classes were all removed stays."""
        tasks = self.tasks
        return [task for number, task in enumerate(tasks) if not task or task not in tasks[:number]]

    @property
    def block(self) -> int:
        """Which of the blocks the current task is about."""
        return self.blocks.index(self.tasks[-1])

    def expect(self, tasks: int) -> None:
        """Before the first task of a run: refuse a number of tasks that there is no room for."""

    def groups(self) -> dict[str, dict[str, Tensor]]:
        """Exactly the tensors that the current task may move, by group."""
        return {}

    def plan(self, name: str, group: Group) -> Group:
        """How the recipe's plan for a group applies to the current task."""
        return group

    def planned_epochs(self, task: int, images: int) -> int:
        """How many epochs a task of so many images is expected to train, 0 where no group moves any more; for the time
        that is left."""
        plans = self.recipe.optimize.values() if task < self.trained_tasks else ()
        batches = math.ceil(images / self.recipe.training.batch_size)
        return max((plan.for_batches(batches).epochs for plan in plans if task < (plan.tasks or math.inf)), default=0)

    def begin_task(self, batches: Batches) -> str | None:
        """Before the first step of a task, without images that are held back; may return a notice for the user."""
        return None

    def after_step(self) -> None:
        """After every step."""

    def held_back(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of the current task's images no step may see, ascending; `labels` are those of all of them."""
        return np.arange(0)

    def end_task(self, batches: Batches) -> str | None:
        """After the last step of a task; may return a notice for the user."""
        return None

    @property
    def batches_in(self) -> Literal["test", "training"]:
        """The view of the images that `begin_task` and `end_task` get; that of training is random."""
        return "test"

    def adapt_state(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Before a saved state is loaded: take on its shapes, where they depend on more than the classes, and return
        what of it is to be loaded."""
        state = dict(tensors)
        for name, module in self.named_modules():
            if isinstance(module, Resizable):
                module.adapt_state(f"{name}.", state)
        return state

    @property
    def untrained(self) -> bool:
        """Whether what the features depend on is known to be as it was drawn."""
        return False

    # -- teaching over time --------------------------------------------------------------------------------------

    @classmethod
    def includes_images(cls, recipe: Recipe) -> bool:
        """Whether `include` is possible: the answer is in closed form, so no image needs to be seen again."""
        return False

    def include(self, batches: Batches) -> str | None:
        """Include further images of classes already learned, as if they had come with the first ones; may return a
        notice for the user."""
        raise TypeError(f"{type(self).__name__} cannot learn further images of a class")

    def remove_classes(self, gone: Sequence[int]) -> None:
        """Remove classes; those after them move up. What only their own rows or statistics hold is gone exactly."""
        for module in self.modules():
            if isinstance(module, Head | RidgeHead | ClassMeans):
                module.remove(gone)
        places = [sum(c not in gone for c in range(n)) for n in range(max(task.stop for task in self.tasks) + 1)]
        self.tasks = [range(places[task.start], places[task.stop]) for task in self.tasks]

    @property
    def left_out(self) -> CalibrationSample | None:
        """Scores (n, classes) and labels of images of every class, each as if it had not been learned, where they are
        known from the last task."""
        return None

    @property
    def images_by_class(self) -> Tensor | None:
        """How many images of each class were learned (classes,), where a part in closed form knows that."""
        for module in self.modules():
            if isinstance(module, ClassMeans):
                return module.counts
            if isinstance(module, RidgeHead) and len(module.labels):
                return module.labels.bincount(minlength=module.weights.shape[1])
        return None

    # -- the loss, evaluable anywhere ----------------------------------------------------------------------------

    def prepare(self, images: Tensor) -> Any:
        """All that no moving parameter touches, once per step."""
        raise TypeError(f"{type(self).__name__} trains nothing")

    def features(self, moving: Moving, prepared: Any) -> Any:
        """Features (..., batch, width) with `moving` in place of the method's own parameters."""
        raise TypeError(f"{type(self).__name__} trains nothing")

    def loss(self, moving: Moving, features: Any, labels: Tensor) -> Tensor:
        """Mean loss, () or one for each query."""
        raise TypeError(f"{type(self).__name__} trains nothing")

    def hits(self, moving: Moving, features: Any, labels: Tensor) -> Tensor:
        """How many of the batch are classified right among the classes the loss sees, () or one for each query."""
        raise TypeError(f"{type(self).__name__} trains nothing")

    # -- answers -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """Scores (batch, classes seen so far): the method's inference rule, here in two steps."""
        return self.read_out(self.embed(images))

    def read_out(self, features: Tensor) -> Tensor:
        """Scores (batch, classes seen so far) of what `embed` gives."""
        raise TypeError(f"{type(self).__name__} does not say how it answers")

    @property
    def embedding(self) -> Hashable | None:
        """What `embed` depends on, from now on: as long as it is the same, so are the features of an image. None: they
        may still change."""
        return None

    def calibration_sample(self, batches: Batches, counts: Tensor) -> CalibrationSample:
        """Training images of the task, by which probabilities are calibrated, with their scores: each as if it had not
        been learned where there is a closed form of that, here as the method answers it. `batches` are in the test
        view; `counts` (classes,) are the training images of each class in the task."""
        scores, labels = self.all_features(batches, self.scores)
        return CalibrationSample(scores, labels, self.all_features(batches, self.embed)[0])

    def embed(self, images: Tensor) -> Tensor:
        """Features (batch, width), as many in every task, that the scores are computed from: here the backbone's."""
        return self.backbone.features(images)

    # -- for those who write methods -----------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the backbone is, and everything that is trained."""
        return self.backbone.device

    def generator(self, *name: str | int) -> torch.Generator:
        """The named random stream from which initial values are drawn."""
        return seeds.torch_stream(self.recipe.seed, *name)

    def named(self, names: Iterable[str], prefix: str = "") -> dict[str, Tensor]:
        """The method's own parameters of these names, prefixed."""
        own = dict(self.named_parameters())
        return {prefix + name: own[prefix + name] for name in names}

    @torch.no_grad()
    def all_features(self, batches: Batches, extract: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Features of all training images of the task and their labels, on the CPU."""
        pairs = [(features.cpu(), labels.cpu()) for features, labels in self.ranks.in_order(batches(), extract)]
        if not pairs:
            raise DataError("a task has no training images")
        features, labels = zip(*pairs, strict=True)
        return torch.cat(features), torch.cat(labels)

    @property
    def fixed_batch_size(self) -> int:
        """Images of a batch of fixed size; a single one where threads of a CPU divide a batch, so that rounding depends
        on the place in it."""
        return 1 if self.device.type == "cpu" and torch.get_num_threads() > 1 else FIXED_BATCH

    def fixed_batches(self, extract: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """`extract` on batches of a fixed size, filled up, if the recipe asks for it: rounding depends on the size of a
        batch, and so it does not depend on how images are divided into tasks."""
        size = self.fixed_batch_size

        def fixed(images: Tensor) -> Tensor:
            parts = []
            for some in torch.split(images, size):
                filled = torch.cat([some, some[-1:].expand(size - len(some), *some.shape[1:])])
                parts.append(extract(filled)[: len(some)])
            return torch.cat(parts)

        wanted = self.recipe.training.fixed_batches and not self.answers_together
        return fixed if wanted else extract

    @torch.no_grad()
    def add_to_means(
        self, means: ClassMeans, head: CosineHead, batches: Batches, extract: Callable[[Tensor], Tensor], new: range
    ) -> None:
        """Include images of `new` classes and of others in the sums of their features, and set rows to the means."""
        extract, before = self.fixed_batches(extract), means.counts.clone()
        for features, labels in self.ranks.in_order(batches(), extract):
            means.add(features, labels)
        if not bool((means.counts[new.start : new.stop] > 0).all()):
            raise DataError("a class has no training images to take the mean of")
        before[new.start : new.stop] = 1
        if bool(((means.counts > 0) & (before == 0)).any()):
            raise RunError(
                "an earlier version of zofc learned this class and kept no count of its images: more of them cannot be "
                "included. Train anew with all images"
            )
        head.set_means(means.rows(), means.counts > 0)

    @torch.no_grad()
    def means_left_out(
        self, head: CosineHead, batches: Batches, counts: Tensor, extract: Callable[[Tensor], Tensor]
    ) -> CalibrationSample:
        """`calibration_sample` where the rows of the task's classes are their mean features."""
        features, labels = (part.to(self.device) for part in self.all_features(batches, extract))
        return CalibrationSample(head.logits_left_out(features, labels, counts.to(self.device)), labels, features)

    @torch.no_grad()
    def class_means(self, batches: Batches, classes: range, extract: Callable[[Tensor], Tensor]) -> Tensor:
        """Mean feature of each class over its training images, (classes, width)."""
        sums, dtype = None, torch.float32
        counts = torch.zeros(len(classes), dtype=torch.float64)
        for found, labels in self.ranks.in_order(batches(), extract):
            features, dtype = found.cpu().double(), found.dtype
            where = labels.cpu() - classes.start
            if sums is None:
                sums = torch.zeros(len(classes), features.shape[-1], dtype=torch.float64)
            sums.index_add_(0, where, features)
            counts += torch.bincount(where, minlength=len(classes))
        if sums is None or not bool((counts > 0).all()):
            raise DataError("a class has no training images to take the mean of")
        return (sums / counts[:, None]).to(dtype)


METHODS: Registry[type[Method]] = Registry("method", "method.name", "zofc.methods")
VARIANTS: dict[tuple[str, str], type[Method]] = {}  # methods as `method.variant` changes them
SECTIONS: dict[str, type[Strict]] = {}  # settings of methods, each under its method's name in a recipe

Registered = TypeVar("Registered", bound=type[Method])


def method(
    name: str, settings: type[Strict] | None = None, variant: str | None = None
) -> Callable[[Registered], Registered]:
    """Register a method, with the settings it has in a recipe under its name; or a variant of a method."""

    def register(cls: Registered) -> Registered:
        if variant is not None:
            VARIANTS[name, variant] = cls
            return cls
        METHODS.register(name, cls, cls)
        if settings is not None:
            SECTIONS[name] = settings
        return cls

    return register


def get_method(name: str, variant: str = "official") -> type[Method]:
    """The class of a method, in a variant if it has one."""
    if not METHODS.knows(name):
        raise RecipeError(f"method.name: {METHODS.suggest(name)}")
    return VARIANTS.get((name, variant), METHODS[name])


def method_class(recipe: Recipe) -> type[Method]:
    """The class of a recipe's method, in its variant."""
    return get_method(recipe.method.name, recipe.method.variant)


def complete_recipe(recipe: Recipe) -> Recipe:
    """The recipe with the settings of methods checked and written out in full: those of its own method, and those that
    every recipe holds, so that equal recipes have equal digests whichever of them a file spells out. `auto` becomes the
    initial distribution that it stands for."""
    name, cls = recipe.method.name, method_class(recipe)
    names = [*METHOD_SECTIONS, *({name, *recipe.sections} - {*METHOD_SECTIONS})]
    sections, problems = {}, []
    for key in names:
        if key not in SECTIONS:
            if key in recipe.sections:
                problems.append(f"{recipe.name}: {key}: unknown key{nearest(key, [*Recipe.model_fields, *SECTIONS])}")
            continue
        try:
            sections[key] = recipe.section(key, SECTIONS[key]).model_dump()
        except RecipeError as error:
            problems.append(str(error))
    if problems:
        raise RecipeError("\n".join(problems))
    head = recipe.head.model_copy(update={"init": cls.head_init(recipe)})
    return recipe.model_copy(update={**sections, "head": head})


def check_placement(recipe: Recipe, plans: Mapping[str, object]) -> None:
    """Every group of the method has a placement, and no placement names a group it does not have."""
    cls = method_class(recipe)
    for name in plans:
        if name not in cls.group_names:
            what = f"method '{recipe.method.name}' has no group '{name}'"
            raise RecipeError(
                f"{recipe.name}: optimize.{name}: {what}{nearest(name, cls.group_names) or '; it trains nothing'}"
            )
    for name in cls.group_names:
        if name not in plans:
            raise RecipeError(
                f"{recipe.name}: optimize.{name}: method '{recipe.method.name}' needs a placement for '{name}'"
            )
