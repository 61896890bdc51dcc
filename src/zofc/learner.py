"""The Python API: learn a task, predict, save, load.

learner = zofc.Learner("zofc/base", ["backbone.name=vit_base_patch16_224.augreg_in21k"])
learner.learn("folder:my_first_classes")
learner.learn({"fox": fox_images, "hare": hare_images})
learner.predict(images)
learner.save("my_model"); learner = zofc.load("my_model")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zofc.data import EncodedImages, ImageSet, Loader, SourceOptions, open_source
from zofc.data.source import Images
from zofc.errors import DataError, RunError
from zofc.recipe import Recipe, load_recipe
from zofc.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from zofc.training.continual import Continual
from zofc.training.device import environment, pick_device, set_up
from zofc.training.events import Events, Listener
from zofc.training.folder import RunFolder
from zofc.training.resolve import check_recipe, open_data
from zofc.training.task import TaskTraining

AnyImage = Image.Image | NDArray[np.uint8] | str | Path


@dataclass(frozen=True)
class Prediction:
    name: str
    probability: float


@dataclass(frozen=True)
class Evaluation:
    """Accuracy (percent) in all and per class, and how often class i (row) was taken for class j (column)."""

    classes: tuple[str, ...]
    accuracy: float
    per_class: dict[str, float]
    confusion: NDArray[np.int64]  # (true, predicted)


@dataclass(frozen=True)
class GivenImages:
    """Images handed over from Python, in any of the forms that users have them in."""

    items: Sequence[AnyImage]
    array: None = None

    def __len__(self) -> int:
        return len(self.items)

    def name(self, index: int) -> str:
        item = self.items[index]
        return str(item) if isinstance(item, str | Path) else f"image {index}"

    def load(self, index: int) -> Image.Image:
        item = self.items[index]
        if isinstance(item, str | Path):
            return EncodedImages([Path(item)], [str(item)]).load(0)
        try:
            return (item if isinstance(item, Image.Image) else Image.fromarray(np.asarray(item))).convert("RGB")
        except (TypeError, ValueError) as error:
            raise DataError(
                f"image {index} is neither a PIL image, an (h, w, 3) uint8 array nor a path: {error}"
            ) from error

    def size(self, index: int) -> tuple[int, int]:
        return self.load(index).size

    def take(self, indices: NDArray[np.int64]) -> GivenImages:
        return GivenImages([self.items[int(i)] for i in indices])


class Learner:
    """A model that learns classes task by task and answers among all of them."""

    def __init__(
        self,
        recipe: Recipe | str = "zofc/base",
        overrides: Sequence[str] = (),
        listeners: Sequence[Listener] = (),
    ) -> None:
        self.recipe = load_recipe(recipe, overrides) if isinstance(recipe, str) else recipe
        check_recipe(self.recipe)
        device = pick_device(self.recipe.training.device)
        set_up(device, self.recipe.training.threads)
        self.model = Continual(self.recipe, device)
        self.events = Events(listeners)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes learned, in the order of learning."""
        return tuple(self.model.classes)

    def learn(self, task: str | Mapping[str, Sequence[AnyImage]]) -> None:
        """Learn new classes: a source such as `folder:PATH`, or images by class name."""
        names, images = self._open_task(task)
        known = sorted(set(names) & set(self.classes))
        if known:
            raise DataError(f"already learned: {', '.join(known[:5])}; a task brings new classes")
        type(self.model.method).check(self.recipe, [len(names)])
        start = len(self.classes)
        self.model.extend(names)
        loader = self.model.loader(images.relabel(images.labels + start))
        training = TaskTraining(self.model, loader, self.events, len(self.model.tasks))
        training.begin()
        for _ in training.run():
            pass
        training.end()

    def predict(self, images: Sequence[AnyImage], top: int = 1) -> list[list[Prediction]]:
        """The `top` most likely classes of each image, best first."""
        if not self.classes:
            raise RunError("nothing has been learned yet")
        given = ImageSet(GivenImages(list(images)), np.zeros(len(images), np.int64))
        answers: list[list[Prediction]] = []
        for batch, _ in self.model.plain_batches(self._loader(given)):
            chances = self.model.scores(batch).double().cpu().softmax(-1)
            best = chances.topk(min(top, len(self.classes)))
            for row_chances, row_classes in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                answers.append([Prediction(self.classes[c], p) for c, p in zip(row_classes, row_chances, strict=True)])
        return answers

    def evaluate(self, source: str) -> Evaluation:
        """Accuracy on a source whose class names are among those learned; its test set, or all of it if it has none."""
        opened = open_source(
            source,
            SourceOptions(seed=self.recipe.seed, test_fraction=0.0, skip_broken=self.recipe.data.skip_broken),
        )
        images = opened.test if len(opened.test) else opened.train
        unknown = [name for name in opened.classes if name not in self.classes]
        if unknown:
            raise DataError(
                f"{source}: never learned: {', '.join(unknown[:5])}; learned: {', '.join(self.classes[:10])}"
            )
        ids = np.array([self.classes.index(name) for name in opened.classes], np.int64)
        guessed, true = self.model.guesses(self._loader(images.relabel(ids[images.labels])))
        size = len(self.classes)
        confusion = np.bincount(true.numpy() * size + guessed.numpy(), minlength=size * size).reshape(size, size)
        totals = confusion.sum(1)
        per_class = {
            name: 100 * float(confusion[i, i]) / int(totals[i]) for i, name in enumerate(self.classes) if totals[i]
        }
        return Evaluation(self.classes, 100 * float(np.trace(confusion)) / int(confusion.sum()), per_class, confusion)

    def save(self, path: str | Path) -> None:
        """Write the model as a run folder that `load` and the command line can use."""
        folder = RunFolder.create(Path(path), self.recipe)
        with folder.locked():
            tasks = [(task.start, task.stop) for task in self.model.tasks]
            progress = Progress(classes=list(self.classes), tasks=tasks, done=len(tasks), inherited=len(tasks))
            progress.groups, progress.counts = tasks, [0] * len(tasks)
            progress.rows = [[None] * (i + 1) for i in range(len(tasks))]  # learned, never measured
            tensors = {f"method|{key}": value for key, value in self.model.method.state_dict().items()}
            save_checkpoint(folder.path, progress, tensors, {})
            made_with = {**environment(self.model.device), "backbone": self.model.backbone.describe()}
            folder.write_json("environment.json", made_with)
            folder.write_json("metrics.json", {"finished": True, "tasks": len(tasks), "tasks_total": len(tasks)})

    @classmethod
    def load(cls, path: str | Path, device: str | None = None) -> Learner:
        """The model of a run folder, as far as it has been trained."""
        folder = RunFolder.existing(Path(path))
        found = load_checkpoint(folder.path)
        if found is None:
            raise RunError(f"{path} has no checkpoint yet: no task has been learned")
        recipe = folder.recipe
        if device:
            recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update={"device": device})})
        learner = cls(recipe)
        progress, tensors, _ = found
        expected = folder.read_json("environment.json").get("backbone", {}).get("checksum")
        if expected != learner.model.backbone.checksum:
            raise RunError(f"{path}: the backbone's weights are not those it was trained with (their checksum differs)")
        state = {key.removeprefix("method|"): value for key, value in tensors.items() if key.startswith("method|")}
        learner.model.restore(progress.classes, progress.tasks, state)
        return learner

    def _open_task(self, task: str | Mapping[str, Sequence[AnyImage]]) -> tuple[tuple[str, ...], ImageSet]:
        if isinstance(task, str):
            opened = open_data(self.recipe, task, lambda text: self.events.send("notice", text=text))
            return opened.classes, opened.train
        empty = [name for name, items in task.items() if not len(items)]
        if empty or not task:
            raise DataError(f"no images for {', '.join(empty) or 'any class'}")
        names = tuple(task)
        labels = np.repeat(np.arange(len(names)), [len(task[name]) for name in names])
        images: Images = GivenImages([item for name in names for item in task[name]])
        return names, ImageSet(images, labels)

    def _loader(self, images: ImageSet) -> Loader:
        return self.model.loader(images)


def load(path: str | Path, device: str | None = None) -> Learner:
    """The model of a run folder."""
    return Learner.load(path, device)
