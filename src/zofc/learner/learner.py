"""The Python API: learn a task, predict, save, load.

learner = zofc.Learner()  # or a recipe of your own: zofc.Learner("zofc/base", ["backbone.name=..."])
learner.learn("folder:my_first_classes")
learner.learn({"fox": fox_images, "hare": hare_images})
learner.predict(images)
learner.save("my_model"); learner = zofc.load("my_model")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from zofc.advice.choice import choose_recipe
from zofc.data import ImageSet
from zofc.data.source import Images
from zofc.errors import DataError, RunError
from zofc.learner.answers import Evaluation, Prediction
from zofc.learner.given_images import GivenImages, OneOrMore, list_images
from zofc.plugins import load_plugin
from zofc.recipe import Recipe, change_recipe, load_recipe
from zofc.runfolder import Run, new_run, open_run
from zofc.runfolder.checkpoint import Progress, load_checkpoint, save_checkpoint
from zofc.runfolder.identity import settings_digest
from zofc.training.device import environment, pick_device, set_up
from zofc.training.events import Events, Listener
from zofc.training.incremental_model import IncrementalModel
from zofc.training.resolve import check_recipe, open_data, plugins_used, require_plugins
from zofc.training.task import TaskTraining


class Learner:
    """A model that learns classes task by task and answers among all of them."""

    def __init__(
        self,
        recipe: Recipe | str | None = None,
        overrides: str | Sequence[str] = (),
        listeners: Sequence[Listener] = (),
    ) -> None:
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
        for text in reasons:
            self._notice(text)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes learned, in the order of learning."""
        return tuple(self.model.classes)

    def learn(self, task: str | Mapping[str, OneOrMore]) -> None:
        """Learn new classes: a source such as `folder:PATH` (all its training images), or images by class name.

        If it fails or is interrupted, nothing has been learned of the task.
        """
        names, images = self._open(task)
        known = sorted(set(names) & set(self.classes))
        if known:
            raise DataError(f"already learned: {', '.join(known[:5])}; a task brings new classes")
        type(self.model.method).check(self.recipe, [len(names)], len(self.model.tasks))
        loader = self.model.loader(images.relabel(images.labels + len(self.classes)))
        with self.model.all_or_nothing():
            self.model.extend(names)
            training = TaskTraining(self.model, loader, self.events, len(self.model.tasks))
            training.begin()
            for _ in training.run():
                pass
            training.end()
        training.check_adapter()

    def predict(self, images: OneOrMore, top: int = 1) -> list[list[Prediction]]:
        """The `top` most likely classes of each image, best first: a list for each image, for a lone one too."""
        if not self.classes:
            raise RunError("nothing has been learned yet")
        if top < 1:
            raise DataError(f"top: expected at least 1, got {top}")
        items = list_images(images)
        given = ImageSet(GivenImages(items), np.zeros(len(items), np.int64))
        answers: list[list[Prediction]] = []
        for batch, _ in self.model.plain_batches(self.model.loader(given)):
            chances = self.model.scores(batch).cpu().double().softmax(-1)
            best = chances.topk(min(top, len(self.classes)))
            for row_chances, row_classes in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                answers.append([Prediction(self.classes[c], p) for c, p in zip(row_classes, row_chances, strict=True)])
        return answers

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
        guessed, true = self.model.guesses(self.model.loader(images.relabel(ids[images.labels])))
        size = len(self.classes)
        confusion = np.bincount(true.numpy() * size + guessed.numpy(), minlength=size * size).reshape(size, size)
        totals = confusion.sum(1)
        per_class = {
            name: 100 * float(confusion[i, i]) / int(totals[i]) for i, name in enumerate(self.classes) if totals[i]
        }
        accuracy = 100 * float(np.trace(confusion)) / int(confusion.sum())
        return Evaluation(self.classes, accuracy, per_class, confusion, unknown)

    def save(self, path: str | Path) -> None:
        """Write the model as a run folder for `load` and the command line; only a saved model is ever replaced."""
        path = Path(path)
        if path.exists() and any(path.iterdir()) and not Run(path).saved:
            raise RunError(f"{path} is not empty and holds no saved model; choose another folder")
        tasks = [(task.start, task.stop) for task in self.model.tasks]
        history, done = self.history, len(tasks)
        unmeasured: list[list[float | None]] = [[None] * (i + 1) for i in range(len(history.rows), done)]
        counts = [*history.counts, *([0] * (done - len(history.counts)))]
        groups = [list(self.classes[start:stop]) for start, stop in tasks]
        progress = Progress(
            recipe=settings_digest(self.recipe.model_dump(mode="json")), classes=list(self.classes), tasks=tasks,
            groups=groups, done=done, inherited=done, rows=[*history.rows, *unmeasured], counts=counts,
            trained=history.trained,
        )  # fmt: skip
        with new_run(path, self.recipe) as run:
            save_checkpoint(run, progress, self.model.method.state_dict(), {})
            made_with = {**environment(self.model.device), "backbone": self.model.backbone.describe()}
            run.write_environment({**made_with, **plugins_used(self.recipe)})
            run.write_metrics({"finished": True, "saved": True, "tasks": done, "tasks_total": done})

    @classmethod
    def load(cls, path: str | Path, device: str | None = None, plugins: Sequence[str | Path] = ()) -> Learner:
        """The model of a run folder. Plug-ins that it needs are Python files given here, or modules imported before."""
        for file in plugins:
            load_plugin(file)
        run = open_run(path)
        changes = require_plugins(run)
        checkpoint = load_checkpoint(run)
        if checkpoint is None:
            raise RunError(f"{path} has no checkpoint yet: no task has been learned")
        progress = checkpoint.progress
        if progress.done < len(progress.tasks):
            raise RunError(f"{path} was stopped inside task {progress.done + 1}; finish it: zofc run --resume {path}")
        learner = cls(run.recipe, f"training.device={device}" if device else ())
        run.check_weights(learner.model.backbone.checksum)
        learner.model.restore(progress.classes, progress.tasks, checkpoint.method)
        learner.history = progress
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


def load(path: str | Path, device: str | None = None, plugins: Sequence[str | Path] = ()) -> Learner:
    """The model of a run folder. Plug-ins that it needs are Python files given here, or modules imported before."""
    return Learner.load(path, device, plugins)
