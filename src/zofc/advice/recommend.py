"""`zofc recommend`: what to expect of each backbone at hand on a user's own images, by cross-validation.

A sample of the training images passes through each backbone once. Learners that need no training answer each fold of it
from the others: class means, ridge regression on the features, and on a random projection of them. What an adapter adds
to the last is not known before it is trained; ZO-Ridge keeps it only if it adds something.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from zofc import seeds
from zofc.advice.choice import backbones_at_hand, choose_recipe
from zofc.advice.features import affordable, sample_features
from zofc.advice.needs import StepNeeds, measure_steps
from zofc.data.selection import Indices
from zofc.data.source import Source
from zofc.errors import DataError, WeightsError
from zofc.model.catalog import HUB_DEFAULT
from zofc.model.ridge import RidgeHead, draw_projection
from zofc.recipe import Recipe, load_recipe
from zofc.training.device import pick_device, set_up
from zofc.training.incremental_model import IncrementalModel
from zofc.training.resolve import characters_only, check_recipe, open_sources

FOLDS = 5
NEEDED = 2  # training images of a class
SEED = 1993
WIDTH = 8192
BUDGET = 64_000_000
DEFAULT_LEARNER = "ridge on a projection"  # what `zofc run SOURCE` takes
Learner = Callable[[Tensor, Tensor, Tensor, int], Tensor]  # train features and labels, test features, classes: scores


@dataclass(frozen=True)
class Expectation:
    """What to expect of a learner on a backbone: accuracy in percent with the standard error of its mean over folds;
    what `command` needs here: seconds for the features of all images and for its steps, bytes of memory for the
    largest of both; and bytes of what is saved."""

    backbone: str
    learner: str
    accuracy: float
    error: float
    seconds: float
    saved: int
    memory: int
    command: str


@dataclass(frozen=True)
class Recommendation:
    """Everything that was compared, best first, and what could not be."""

    images: int
    classes: int
    sampled: dict[str, int]  # images by backbone
    rows: tuple[Expectation, ...]
    left_out: tuple[str, ...]
    notices: tuple[str, ...] = ()

    @property
    def best(self) -> Expectation:
        """The row to follow: on the best backbone, the default learner unless another is better by more than the
        standard error, since an adapter may still add to it."""
        first = self.rows[0]
        usual = next(row for row in self.rows if (row.backbone, row.learner) == (first.backbone, DEFAULT_LEARNER))
        return first if first.accuracy - usual.accuracy > first.error else usual


def recommend(
    source: str,
    names: Sequence[str] = (),
    overrides: Sequence[str] = (),
    seconds: float = 60.0,
    say: Callable[[str], None] = lambda _: None,
) -> Recommendation:
    """Compare backbones, those at hand by default, on a sample that takes about so many seconds in all."""
    rows: list[Expectation] = []
    left_out: list[str] = []
    sampled: dict[str, int] = {}
    data: Source | None = None
    asked, names = bool(names), list(names) or backbones_at_hand()
    for name in names:
        say(f"{name}: features of a sample")
        try:
            model = _frozen_model(source, name, overrides)
        except WeightsError as error:
            left_out.append(str(error))
            continue
        data = data or _open(model.recipe)
        found = sample_features(model, data, affordable(model, data, seconds / len(names)))
        sampled[name] = len(found.labels)
        for learner, answer in LEARNERS.items():
            say(f"{name}: {learner}")
            mean, deviation = _mean(cross_validate(found.features, found.labels, answer))
            steps = _steps(learner, source, name, overrides, data, model.backbone.checksum)
            passes = (len(data.train) + len(data.test)) * (2 if steps.seconds else 1)  # with the adapter and without
            rows.append(
                Expectation(
                    backbone=name,
                    learner=learner,
                    accuracy=100 * mean,
                    error=100 * deviation,
                    seconds=found.seconds_per_image * passes + steps.seconds,
                    saved=_saved_bytes(learner, model.backbone.width, len(data.classes), len(data.train)),
                    memory=max(found.memory, steps.memory),
                    command=_command(learner, source, name if asked else _to_use(name, source), overrides),
                )
            )
    if data is None:
        raise WeightsError("; ".join(left_out))
    rows.sort(key=lambda row: -row.accuracy)
    notices = [text for name in sampled if (text := characters_only(name, source))]
    return Recommendation(len(data.train), len(data.classes), sampled, tuple(rows), tuple(left_out), tuple(notices))


def _open(recipe: Recipe) -> Source:
    """The images, which must be enough to learn some of a class and ask others."""
    data = open_sources(recipe, lambda _: None)[0]
    most = int(np.unique(data.train.labels, return_counts=True)[1].max())
    if most < NEEDED:
        raise DataError(
            f"{data.name}: to compare learners, a class needs at least {NEEDED} training images, one to learn from and "
            f"one to ask; there is one in each of {len(data.classes)} classes, beside {len(data.test)} test images. "
            f"With {NEEDED + 1} images in a class, one of them held back to test, there are enough"
        )
    return data


def _steps(
    learner: str, source: str, name: str, overrides: Sequence[str], data: Source, weights: str | None
) -> StepNeeds:
    """What the steps of a learner need; only the default has some."""
    if learner != DEFAULT_LEARNER:
        return StepNeeds()
    recipe = choose_recipe(source, [f"backbone.name={name}", *overrides]).recipe
    return measure_steps(recipe, data.checksum, weights)


def _to_use(name: str, source: str) -> str:
    """The backbone of a command to copy: for other images than characters, the embedded one is to try alone."""
    return HUB_DEFAULT if characters_only(name, source) else name


def _frozen_model(source: str, name: str, overrides: Sequence[str]) -> IncrementalModel:
    """A backbone with the views of the recipe that would be chosen for it, under a method that trains nothing."""
    chosen = choose_recipe(source, [f"backbone.name={name}", *overrides]).recipe
    shared = {key: getattr(chosen, key) for key in ("backbone", "views", "data", "training", "seed")}
    recipe = check_recipe(load_recipe("simplecil/base").model_copy(update=shared))
    device = pick_device(recipe.training.device)
    set_up(device, recipe.training)
    return IncrementalModel(recipe, device)


# -- learners on features --------------------------------------------------------------------------------------------


def cross_validate(features: Tensor, labels: Tensor, learner: Learner) -> list[float]:
    """The share of right answers in each fold, learned from the others; folds are even in every class."""
    classes, labels = torch.unique(labels, return_inverse=True)
    shares = []
    for held in folds(labels.numpy()):
        kept = np.delete(np.arange(len(labels)), held)
        answers = learner(features[kept], labels[kept], features[held], len(classes)).argmax(-1)
        shares.append(float((answers == labels[held]).double().mean()))
    return shares


def folds(labels: Indices) -> Iterator[Indices]:
    """Each class divided as evenly as can be among the folds, at random; a class of one image is never held out."""
    rng = seeds.stream(SEED, "folds")
    fold = np.full(len(labels), -1)
    for number, label in enumerate(np.unique(labels)):
        members = rng.permutation(np.flatnonzero(labels == label))
        if len(members) > 1:
            fold[members] = (np.arange(len(members)) + number) % FOLDS
    for one in range(FOLDS):
        if (held := np.flatnonzero(fold == one)).size:
            yield held


def _means(x: Tensor, y: Tensor, asked: Tensor, classes: int) -> Tensor:
    sums = torch.zeros(classes, x.shape[1]).index_add(0, y, x)
    return F.normalize(asked, dim=-1) @ F.normalize(sums, dim=-1).mT


def _ridge(x: Tensor, y: Tensor, asked: Tensor, classes: int, projection: int = 0) -> Tensor:
    def draw(size: int) -> Tensor:
        return draw_projection(x.shape[1], size, True, torch.Generator().manual_seed(SEED))

    head = RidgeHead(x.shape[1], projection, BUDGET if projection else None, draw, torch.device("cpu"))
    head.grow(classes)
    head.learn(x, y, seeds.stream(SEED, "held out"))
    return head.scores(asked)


def _projected(x: Tensor, y: Tensor, asked: Tensor, classes: int) -> Tensor:
    return _ridge(x, y, asked, classes, WIDTH)


LEARNERS: dict[str, Learner] = {
    "class means": _means,
    "ridge": _ridge,
    DEFAULT_LEARNER: _projected,
}
RECIPES = {"class means": "simplecil/base", "ridge": "ridge/base"}


def _command(learner: str, source: str, name: str, overrides: Sequence[str]) -> str:
    """What to type for a row; the projection is what `zofc run SOURCE` takes by itself, with an adapter where it
    helps."""
    recipe = RECIPES.get(learner)
    what = [source] if recipe is None else [recipe, f"data.source={source}"]
    return " ".join(["zofc run", *what, f"backbone.name={name}", *overrides])


def _saved_bytes(learner: str, width: int, classes: int, images: int) -> int:
    """Bytes of the statistics that a run keeps."""
    if learner == "class means":
        return 4 * classes * width
    if learner == "ridge":
        return 8 * (width * width + 2 * width * classes)
    most = math.isqrt(BUDGET // 8)
    if images <= most:
        return 4 * images * width + 8 * WIDTH * classes
    return 8 * (most * most + 2 * most * classes)


def _mean(shares: Sequence[float]) -> tuple[float, float]:
    mean = sum(shares) / len(shares)
    if len(shares) < 2:
        return mean, math.nan
    return mean, math.sqrt(sum((share - mean) ** 2 for share in shares) / (len(shares) - 1) / len(shares))
