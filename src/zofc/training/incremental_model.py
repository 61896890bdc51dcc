"""A method on its backbone with the classes it has learned: what training moves, a checkpoint holds, and predicts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from zofc.data.loading import BatchSequence, Loader
from zofc.data.selection import Indices
from zofc.data.source import ImageSet
from zofc.data.views import TestView, TrainView
from zofc.errors import RunError
from zofc.methods import Method, method_class
from zofc.model.backbone import PRECISIONS, load_backbone
from zofc.model.params import under
from zofc.ranks import Ranks
from zofc.recipe import Recipe
from zofc.training.calibration import Calibration
from zofc.training.feature_memory import FeatureMemory
from zofc.training.memory import scoring_batch_size
from zofc.training.typicality import Typicality

TYPICALITY = "typicality."  # the names of its tensors in a checkpoint begin so


class IncrementalModel:
    """A learner between two tasks (or inside one)."""

    def __init__(self, recipe: Recipe, device: torch.device, ranks: Ranks | None = None) -> None:
        self.recipe, self.ranks = recipe, ranks or Ranks()
        self.device = device
        training = recipe.training
        dtype = PRECISIONS[training.precision]
        self.backbone = load_backbone(recipe.backbone, recipe.seed, device, dtype, training.recompute, training.compile)
        self.method = self._new_method()
        self.classes: list[str] = []
        self.calibration: tuple[Calibration, Typicality | None] | None = None  # None: the plain softmax
        self._fits: tuple[int, int] | None = None  # how many images were to be scored at a time, and how many can be
        self._measuring = Lock()  # threads may ask at once
        self.on_images: Callable[[int], None] = lambda _: None  # hears 0, then how many images are done; may raise
        self.most_at_once: int | None = None  # images at a time without training, if fewer than the recipe says
        self.train_view, self.test_view = make_views(
            recipe, self.backbone.image_size, self.backbone.mean, self.backbone.std
        )

    def _new_method(self) -> Method:
        method = method_class(self.recipe)(self.backbone, self.recipe)
        method.ranks = self.ranks
        return method.double() if self.backbone.dtype == torch.float64 else method

    @property
    def tasks(self) -> list[range]:
        """Class ids of each task so far."""
        return self.method.tasks

    def extend(self, names: Sequence[str]) -> range:
        """Make room for the classes of a new task; all of the classes again is a new domain of them."""
        if self.classes and list(names) == self.classes:
            classes = range(len(names))
        else:
            classes = range(len(self.classes), len(self.classes) + len(names))
            self.classes += names
        self.method.extend(classes)
        if self.backbone.dtype == torch.float64:
            self.method.double()  # what it has drawn for the task: the same values as in single precision
        self._fits = None  # a method may grow with its tasks
        return classes

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint holds."""
        typicality = None if self.calibration is None else self.calibration[1]
        statistics = {} if typicality is None else typicality.state()
        return self.method.state_dict() | {f"{TYPICALITY}{name}": value for name, value in statistics.items()}

    def remove(self, names: Sequence[str]) -> None:
        """Remove classes; a task whose classes are all gone stays, without any."""
        stay = [number for number, name in enumerate(self.classes) if name not in names]
        self.method.remove_classes([self.classes.index(name) for name in names])
        self.classes = [self.classes[number] for number in stay]
        if self.calibration is not None and self.calibration[1] is not None:
            self.calibration = self.calibration[0], self.calibration[1].of_classes(stay)
        self._fits = None

    @property
    def calibration_state(self) -> dict[str, Any] | None:
        """What a checkpoint holds of the calibration."""
        return None if self.calibration is None else asdict(self.calibration[0])

    def restore(
        self,
        names: Sequence[str],
        tasks: Sequence[tuple[int, int]],
        tensors: dict[str, Tensor],
        calibration: Mapping[str, Any] | None = None,
    ) -> None:
        """Become what was saved: grow task by task, then take the saved values."""
        statistics = under(tensors, TYPICALITY[:-1])
        if calibration is not None and statistics and (text := Typicality.problem(statistics, len(names))):
            raise RunError(f"the checkpoint is damaged: {TYPICALITY}{text}")
        typicality = Typicality(**statistics) if calibration and statistics else None  # a device learns none
        self.calibration = (Calibration(**calibration), typicality) if calibration else None
        tensors = {name: value for name, value in tensors.items() if not name.startswith(TYPICALITY)}
        for start, stop in tasks:
            if self.extend(names[start:stop]) != range(start, stop):
                raise RunError(f"the checkpoint is damaged: no task can have the classes {start} to {stop}")
        tensors = self.method.adapt_state(tensors)
        own = self.method.state_dict()
        shapes, saved = ({key: value.shape for key, value in state.items()} for state in (own, tensors))
        if wrong := {key for key, _ in shapes.items() ^ saved.items()}:
            raise RunError(f"the checkpoint does not fit this recipe: {', '.join(sorted(wrong)[:3])}")
        self.method.load_state_dict(tensors)

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """What fails inside the block leaves the learner as it was before."""
        names, tasks = list(self.classes), [(task.start, task.stop) for task in self.tasks]
        state = {name: value.clone() for name, value in self.state_dict().items()}
        calibration = self.calibration_state
        try:
            yield
        except BaseException:
            self.classes, self.method = [], self._new_method()
            self.restore(names, tasks, state, calibration)
            raise

    def loader(self, images: ImageSet, keep: int = 0, threads: bool = False) -> Loader:
        """Batches of an image set, as the recipe loads them; or with `threads` as workers, which forks no process."""
        settings = self.recipe.training
        return Loader(
            images,
            train_view=self.train_view,
            test_view=self.test_view,
            device=self.device,
            path="auto" if threads else settings.loading,
            workers=settings.workers,
            threads=threads,
            stream=settings.memory is not None,
            keep=keep,
        )

    def plain_batches(self, loader: Loader, indices: Indices | None = None) -> BatchSequence:
        """The loader's images in order, or those of `indices`, in the test view."""
        size = self.plain_batch_size(len(loader.image_set))
        return BatchSequence(lambda which: self._told(loader.test_batches(size, indices, which)))

    def _told(self, batches: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        self.on_images(0)
        for images, labels in batches:
            yield images, labels
            self.on_images(len(labels))  # whoever asks for the next ones has evaluated these

    def plain_batch_size(self, images: int) -> int:
        """Images at a time without training: what the recipe says, or fewer to stay within its memory budget."""
        settings = self.recipe.training
        if self.method.answers_together:
            return settings.eval_batch_size
        wanted = min(settings.eval_batch_size, self.most_at_once or settings.eval_batch_size)
        if settings.memory is None:
            return wanted
        most = min(wanted, images)
        with self._measuring:
            if self._fits is None or most > self._fits[0] == self._fits[1]:  # all that was asked for fitted: more may
                self._fits = most, self.ranks.least(scoring_batch_size(self, most))
            return min(most, self._fits[1])

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """Scores (batch, classes seen so far) of images in the test view; half by half where memory runs out."""
        return self._by_halves(self.method.scores, images)

    def _by_halves(self, function: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        try:
            return function(images.to(self.device))
        except torch.OutOfMemoryError:
            if len(images) == 1:
                raise
        torch.cuda.empty_cache()
        return torch.cat([self._by_halves(function, half) for half in images.chunk(2)])

    def probabilities(self, scores: Tensor) -> Tensor:
        """Calibrated probabilities (batch, classes) of scores, in float64 on the CPU."""
        scores = scores.cpu().double()
        return scores.softmax(-1) if self.calibration is None else self.calibration[0].probabilities(scores)

    def is_known(self, scores: Tensor, features: Tensor, rate: float) -> Tensor:
        """Whether images (n,) are of a learned class, of which a share `rate` is mistaken for images of others."""
        if self.calibration is None or (typicality := self.calibration[1]) is None:
            raise RunError(f"reject: {self._why_uncalibrated()}. Or predict without reject")
        return typicality.confidence(scores, features) >= typicality.threshold(rate)

    def _why_uncalibrated(self) -> str:
        """Why no image can be told from those of other classes, and what to do."""
        if not self.recipe.training.calibrate:
            return "this model was made with training.calibrate=false; learn it again with true"
        if self.calibration is not None:
            return "this model has learned on a device, which keeps no statistics for it; learn it again here"
        counts = self.method.images_by_class
        if counts is not None and int(counts.max()) == 1:
            return (
                "this model has seen one image of each class, which does not tell how far apart images of a class are; "
                "learn more images of at least one"
            )
        return "this model was made by version 0.1, or from one image of each class; learn it again with more images"

    @torch.no_grad()
    def embed(self, images: Tensor) -> Tensor:
        """Features (batch, width) of images in the test view; the backbone's before the first task."""
        return self._by_halves(self.method.embed if self.classes else self.backbone.features, images)

    @torch.no_grad()
    def scores_and_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Both, in one pass where the scores are read from the features."""
        features = self.embed(images)
        return self.method.read_out(features) if self._reads_features else self.scores(images), features

    @property
    def _reads_features(self) -> bool:
        return type(self.method).scores is Method.scores  # else by a rule of its own

    @property
    def embedding(self) -> Hashable | None:
        """What the features of an image depend on, if they are final and the answer follows from them alone."""
        return self.method.embedding if self._reads_features and not self.method.answers_together else None

    @torch.no_grad()
    def guesses(self, loader: Loader, memory: FeatureMemory | None = None) -> tuple[Tensor, Tensor]:
        """Predicted and true class ids of every image of a loader, on the CPU; from kept features, where `memory` has
        those of the same loader."""
        embedding = None if memory is None else self.embedding
        if memory is None or embedding is None:
            pairs = self.ranks.in_order(self.plain_batches(loader), lambda images: self.scores(images).argmax(-1))
        else:
            kept = memory.batches(embedding, lambda: self._embedded(loader))
            pairs = ((self.method.read_out(features.to(self.device)).argmax(-1), labels) for features, labels in kept)
        guessed, true = zip(*((guesses.cpu(), labels.cpu()) for guesses, labels in pairs), strict=True)
        return torch.cat(guessed), torch.cat(true)

    def _embedded(self, loader: Loader) -> Iterator[tuple[Tensor, Tensor]]:
        for features, labels in self.ranks.in_order(self.plain_batches(loader), self.embed):
            yield features.cpu(), labels.cpu()


def make_views(
    recipe: Recipe, size: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> tuple[TrainView, TestView]:
    """The recipe's views at the backbone's input size, with its mean and std unless the recipe says [0, 1]."""
    views = recipe.views
    plain = views.normalize == "none" or (views.normalize == "paper" and recipe.backbone.is_the_papers)
    norm = (None, None) if plain else (mean, std)
    train = TrainView(size, views.scale, views.ratio, views.flip, *norm)
    return train, TestView(size, round(size * views.resize), views.test_interpolation, *norm)
