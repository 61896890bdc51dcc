"""The Python API: learn a task, predict, save, load. Between two calls of `learn`, any number of threads may predict.

learner = zofc.Learner()  # or a recipe of your own: zofc.Learner("zofc/base", ["backbone.name=..."])
learner.learn("folder:my_first_classes")
learner.learn({"fox": fox_images, "hare": hare_images})
learner.predict(images)
learner.save("my_model"); learner = zofc.load("my_model")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import active_count
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zofc.advice.choice import choose_recipe
from zofc.advice.features import clear_cached_features
from zofc.data import ImageSet
from zofc.data.class_names import check_class_name
from zofc.data.decode_cache import DecodeCache, cache_folder
from zofc.data.source import Images
from zofc.errors import DataError, RunError
from zofc.learner.answers import Answer, Evaluation, Prediction, evaluate_answers
from zofc.learner.given_images import GivenImages, OneOrMore, list_images
from zofc.learner.teaching import (
    divide_lesson,
    include_images,
    recalibrate,
    remove_classes,
    require_closed_form,
)
from zofc.plugins import load_plugin
from zofc.recipe import Recipe, change_recipe, load_recipe
from zofc.runfolder import open_run
from zofc.runfolder.journal import KeptJournal
from zofc.runfolder.progress import Progress
from zofc.training.device import pick_device, set_up
from zofc.training.events import Events, Listener
from zofc.training.incremental_model import IncrementalModel
from zofc.training.resolve import characters_only, check_recipe, open_data, require_plugins
from zofc.training.run_journal import LessonJournal
from zofc.training.runs import check_later_settings
from zofc.training.saved_models import finished_checkpoint, kept_journal, save_model
from zofc.training.task import TaskTraining


class Learner:
    """A model that learns classes task by task and answers among all of them.

    `predict`, `predict_proba`, `embed` and `evaluate` change nothing and may be called from any number of threads at
    once. `learn` changes the model: while it runs, let other threads answer from another `Learner` of the same folder.
    """

    def __init__(
        self,
        recipe: Recipe | str | None = None,
        overrides: str | Sequence[str] = (),
        listeners: Sequence[Listener] = (),
    ) -> None:
        """A model that has learned nothing yet.

        `recipe` names a recipe (`zofc list recipes`), or is one; by default one is chosen, and events say why.
        `overrides` are settings such as `"seed=1"`, one or several. `listeners` receive the events of training. Bad
        settings raise a `RecipeError`.
        """
        reasons: Sequence[str] = ()
        if recipe is None:
            choice = choose_recipe(None, [overrides] if isinstance(overrides, str) else overrides)
            recipe, reasons = choice.recipe, choice.reasons
        elif isinstance(recipe, str):
            recipe = load_recipe(recipe, overrides)
        else:
            recipe = change_recipe(recipe, overrides)
        self.recipe = check_recipe(recipe)
        device = pick_device(self.recipe.training.device)
        set_up(device, self.recipe.training)
        self.model = IncrementalModel(self.recipe, device)
        self.events = Events(listeners)
        self.history = Progress()  # what a loaded run had measured
        self.journal: KeptJournal | None = None  # the zeroth-order steps of all lessons
        for text in reasons:
            self._notice(text)

    def __repr__(self) -> str:
        name, backbone = self.recipe.title or self.recipe.name, self.model.backbone.name
        return f"Learner({name!r}, backbone={backbone!r}, classes={len(self.classes)}, tasks={len(self.model.tasks)})"

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes learned, in the order of learning."""
        return tuple(self.model.classes)

    @property
    def classes_(self) -> NDArray[np.str_]:
        """The same as an array, the columns of `predict_proba`, under scikit-learn's name."""
        return np.array(self.classes, np.str_)

    def learn(self, task: str | Mapping[str, OneOrMore]) -> None:
        """Learn classes: a source such as `folder:PATH` (all its training images), or images by class name.

        New classes are a task of their own. More images of classes already learned are included exactly where the
        readout is in closed form (`ridge/base`, `zo-ridge/base`, `simplecil/base`), and are refused elsewhere. If it
        fails or is interrupted, nothing has been learned.
        """
        names, images = self._open(task)
        doubt = characters_only(self.recipe.backbone.name, task if isinstance(task, str) else None)
        if doubt and not self.classes:
            self._notice(doubt)
        if known := [name for name in names if name in self.classes]:
            require_closed_form(self.model, known)
        more, new, images = divide_lesson(names, images, self.classes)
        for name in new:
            check_class_name(name)
        if new:
            type(self.model.method).check(self.recipe, [len(new)], len(self.model.tasks))
        threads = active_count() > 1
        training, journal = None, LessonJournal(self.recipe, self.model.device, self.journal)
        with self.model.all_or_nothing():
            if new:
                self.model.extend(new)
                loader = self.model.loader(images, threads=threads)
                training = TaskTraining(self.model, loader, self.events, len(self.model.tasks))
                self._train(training, journal)
            if known and (text := include_images(self.model, self.model.loader(more, threads=threads))):
                self._notice(text)
            recalibrate(self.model)
        self.journal = journal.keep() if self.recipe.training.journal else None
        if training is not None:
            training.check()

    def _train(self, training: TaskTraining, journal: LessonJournal) -> None:
        training.begin()
        if self.recipe.training.journal:
            journal.follow(training.placement, training.index)
        for _ in training.run():
            pass
        journal.end_steps()
        training.end()
        journal.end_task()
        training.calibrate()

    def rename(self, old: str, new: str) -> None:
        """Give a class another name. Its images, statistics and measured accuracies stay."""
        self._require_known([old])
        if check_class_name(new) in self.classes:
            raise DataError(f"'{new}' is the name of another class; choose another")
        self._edit_names(lambda name: new if name == old else name)

    def forget(self, *names: str) -> None:
        """Forget classes: they are never answered again, and the others move up in `classes`.

        Where the readout is in closed form, the rest is as if they had never been learned; what an adapter learned from
        their images stays in it, and an event says so. Cached features and decoded images are removed, whichever images
        they are of; an event says if some are in use. Saved copies still know the classes: save this one in their
        place, or delete them. Measured accuracies stay.
        """
        gone = list(dict.fromkeys(names))
        self._require_known(gone)
        if len(gone) == len(self.classes):
            raise DataError("at least one class must stay; for none, start a new Learner")
        if text := remove_classes(self.model, gone):
            self._notice(text)
        rows = [plan for name, plan in self.recipe.optimize.items() if name not in self.model.method.in_features]
        if any(plan.order == "zeroth" for plan in rows):
            self.journal = None  # they are not what its steps led to any more: the next lesson begins another one
        self._edit_names(lambda name: None if name in gone else name)
        clear_cached_features()
        if in_use := DecodeCache(cache_folder(), 0).clear()[1]:
            self._notice(
                f"{in_use} source(s) of decoded images are in use and were not removed; afterwards: zofc cache clear"
            )

    def _require_known(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in self.classes]
        if unknown or not names:
            learned = ", ".join(self.classes[:10]) or "nothing"
            raise DataError(f"never learned: {', '.join(unknown[:5]) or 'no class is named'}; learned: {learned}")

    def _edit_names(self, edit: Callable[[str], str | None]) -> None:
        """Change class names, or leave out those that become None, wherever they are."""
        self.model.classes = [name for old in self.model.classes if (name := edit(old))]
        history = self.history
        self.history = replace(
            history,
            classes=list(self.model.classes),
            tasks=[(task.start, task.stop) for task in self.model.tasks],
            groups=[[name for old in group if (name := edit(old))] for group in history.groups],
        )

    @overload
    def predict(self, images: OneOrMore, top: int = 1, reject: None = None) -> list[list[Prediction]]: ...

    @overload
    def predict(self, images: OneOrMore, top: int = 1, *, reject: float) -> list[list[Prediction] | None]: ...

    def predict(
        self, images: OneOrMore, top: int = 1, reject: float | None = None
    ) -> list[list[Prediction]] | list[list[Prediction] | None]:
        """The `top` most likely classes of each image, best first: a list for each image, for a lone one too.

        With `reject`, an image that is probably of none of the classes is answered by None. `reject` is the share of
        images of learned classes that may be rejected with it, such as 0.05.
        """
        answers = self.answer(images, top, reject)
        return [one.best for one in answers] if reject is None else [one.best if one.known else None for one in answers]

    def answer(self, images: OneOrMore, top: int = 1, reject: float | None = None) -> list[Answer]:
        """As `predict`, with the most likely classes of rejected images too."""
        if top < 1:
            raise DataError(f"top: expected at least 1, got {top}")
        if reject is not None and not 0 < reject < 1:
            raise DataError(f"reject: expected a share between 0 and 1 of known images, such as 0.05, got {reject}")
        known, images = None, list_images(images)
        if reject is None or not images:
            scores = self._scores(images)
        else:
            scores, features = self._scores_and_features(images)
            known = self.model.is_known(scores, features, reject).tolist()
        best = self.model.probabilities(scores).topk(min(top, scores.shape[1]))
        pairs = zip(best.indices.tolist(), best.values.tolist(), known or [True] * len(scores), strict=True)
        return [
            Answer([Prediction(self.classes[c], p) for c, p in zip(classes, chances, strict=True)], among)
            for classes, chances, among in pairs
        ]

    def predict_proba(self, images: OneOrMore) -> NDArray[np.float64]:
        """Calibrated probabilities (images, classes) in the order of `classes`; each row sums to one."""
        return self.model.probabilities(self._scores(images)).numpy()

    def embed(self, images: OneOrMore) -> NDArray[np.float32]:
        """Features (images, width), float32: what the classes are told apart by, for a search index or a plot."""
        features = [self.model.embed(batch).float().cpu() for batch in self._batches(images)]
        return torch.cat(features).numpy() if features else np.zeros((0, self.model.backbone.width), np.float32)

    def _scores(self, images: OneOrMore) -> Tensor:
        """Scores (images, classes) on the CPU."""
        self._require_classes()
        scores = [self.model.scores(batch).cpu() for batch in self._batches(images)]
        return _finite(torch.cat([torch.zeros(0, len(self.classes)), *scores]))

    def _scores_and_features(self, images: OneOrMore) -> tuple[Tensor, Tensor]:
        """Scores (images, classes) and features (images, width), on the CPU."""
        self._require_classes()
        pairs = [self.model.scores_and_features(batch) for batch in self._batches(images)]
        scores, features = zip(*pairs, strict=True)
        answers = _finite(torch.cat([part.cpu() for part in scores]))
        return answers, torch.cat([part.float().cpu() for part in features])

    def _require_classes(self) -> None:
        if not self.classes:
            raise RunError("nothing has been learned yet")

    def _batches(self, images: OneOrMore) -> Iterator[Tensor]:
        """The images in the test view, batch by batch."""
        items = list_images(images)
        image_set = ImageSet(GivenImages(items), np.zeros(len(items), np.int64))
        loader = self.model.loader(image_set, threads=True)
        return (batch for batch, _ in self.model.plain_batches(loader))

    def evaluate(self, source: str | Mapping[str, OneOrMore], learned_only: bool = False) -> Evaluation:
        """Accuracy on a source (its test set, or all of it if it has none) or on images by class name; the names are
        among those learned, or with `learned_only` others are left out."""
        names, images = self._open(source, test=True)
        unknown = tuple(name for name in names if name not in self.classes)
        ids = np.array([-1 if name in unknown else self.classes.index(name) for name in names], np.int64)
        if unknown:
            images = images.take(np.flatnonzero(ids[images.labels] >= 0))
        if unknown and not (learned_only and len(images)):
            where = f"{source}: " if isinstance(source, str) else ""
            remedy = "" if learned_only else "; --learned-only (learned_only=True) leaves out what was not"
            raise DataError(
                f"{where}never learned: {', '.join(unknown[:5])}; learned: {', '.join(self.classes[:10]) or 'nothing'}"
                f"{remedy}"
            )
        loader = self.model.loader(images.relabel(ids[images.labels]), threads=True)
        pairs = [(self.model.scores(batch).cpu(), labels.cpu()) for batch, labels in self.model.plain_batches(loader)]
        scores, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        _finite(scores)
        return evaluate_answers(self.classes, scores.argmax(-1), labels, self.model.probabilities(scores), unknown)

    def save(self, path: str | Path) -> None:
        """Write the model as a run folder for `load` and the command line; only a saved model is ever replaced."""
        save_model(self.model, self.recipe, Path(path), self.history, self.journal)

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str | None = None,
        plugins: Sequence[str | Path] = (),
        overrides: Sequence[str] = (),
        listeners: Sequence[Listener] = (),
    ) -> Learner:
        """The model of a run folder. Plug-ins that it needs are Python files given here, or modules imported before."""
        for file in plugins:
            load_plugin(file)
        run = open_run(path)
        changes = require_plugins(run)
        checkpoint = finished_checkpoint(run)
        progress = checkpoint.progress
        on_device = [f"training.device={device}"] if device else []
        learner = cls(run.recipe, [*overrides, *on_device], listeners)
        run.check_weights(learner.model.backbone.checksum)
        learner.model.restore(progress.classes, progress.tasks, checkpoint.method, progress.calibration)
        learner.history = progress
        try:
            learner.journal = kept_journal(run, progress)
        except RunError as error:  # the model is whole without it
            learner._notice(f"{error}. The next lesson begins another journal")
        for text in changes:
            learner._notice(text)
        return learner

    def _notice(self, text: str) -> None:
        self.events.send("notice", text=text)

    def _open(self, given: str | Mapping[str, OneOrMore], test: bool = False) -> tuple[tuple[str, ...], ImageSet]:
        if isinstance(given, str):
            opened = open_data(self.recipe, given, self._notice, test_fraction=0.0)
            return opened.classes, opened.test if test and len(opened.test) else opened.train
        lists = {name: list_images(images) for name, images in given.items()}
        empty = [name for name, items in lists.items() if not items]
        if empty or not lists:
            raise DataError(f"no images for {', '.join(empty) or 'any class'}")
        labels = np.repeat(np.arange(len(lists)), [len(items) for items in lists.values()])
        images: Images = GivenImages([item for items in lists.values() for item in items])
        return tuple(lists), ImageSet(images, labels)


def _finite(scores: Tensor) -> Tensor:
    """Scores (images, classes), refused where they are no numbers: there is no answer to read from them."""
    if not bool(scores.isfinite().all()):
        wrong = int((~scores.isfinite()).any(-1).sum())
        raise RunError(
            f"the scores of {wrong} of {len(scores)} images are not finite: the model is damaged, or they overflow "
            "in half precision (training.precision=fp32)"
        )
    return scores


def load(
    path: str | Path, device: str | None = None, plugins: Sequence[str | Path] = (), overrides: str | Sequence[str] = ()
) -> Learner:
    """The model of a run folder. Plug-ins that it needs are Python files given here, or modules imported before.
    `overrides` are settings of what it learns from now on, as `zofc learn` takes them: `training.*`, `optimize.*`."""
    given = [overrides] if isinstance(overrides, str) else overrides
    return Learner.load(path, device, plugins, check_later_settings(given))
