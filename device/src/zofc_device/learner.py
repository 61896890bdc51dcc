"""The Python API, with the names of `zofc.Learner`: learn, predict, evaluate, save, load.

learner = zofc_device.load("bundle")
learner.learn({"fox": fox_images, "hare": hare_images})
learner.predict(images)
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zofc_device.bundle import PROGRESS, REMEDY, STATE, Bundle, BundleError, State
from zofc_device.directions import Array
from zofc_device.features import Extractor
from zofc_device.images import ImageError, Images, OneOrMore, Say, list_images, open_images
from zofc_device.lesson import AT_ONCE, Lesson
from zofc_device.model import Model
from zofc_device.progress import Progress
from zofc_device.runtime import Runtime
from zofc_device.views import Views

TYPICALITY = "typicality."  # statistics for "none of these", which zofc alone keeps


@dataclass(frozen=True)
class Prediction:
    """A class name and its probability."""

    name: str
    probability: float


@dataclass(frozen=True)
class Evaluation:
    """Accuracy (percent) in all and per class, and how often class i (row) was taken for class j (column)."""

    classes: tuple[str, ...]
    accuracy: float
    per_class: dict[str, float]
    confusion: NDArray[np.int64]
    left_out: tuple[str, ...] = ()  # classes that were never learned


class Learner:
    """A bundle that learns classes lesson by lesson and answers among all of them."""

    def __init__(
        self, path: str | Path, memory: int | None = None, threads: int | None = None, say: Say = lambda _: None
    ) -> None:
        """Open a bundle; `memory` in bytes limits the micro-batches, `say` receives messages while learning."""
        self.say = say
        try:
            self.bundle = Bundle(path)
            manifest, self.runtime = self.bundle.manifest, Runtime(self.bundle, threads)
            self.extractor = Extractor(self.runtime, Views.of(manifest["views"]), manifest["backbone"], memory)
            predict_only = set(self.runtime.graphs) == {"predict"}
            self.model = None if predict_only else Model(self.bundle, self.extractor, self.bundle.read())
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BundleError(
                f"{path}: the manifest is damaged, or does not fit the state ({error!r}); {REMEDY}"
            ) from error

    @classmethod
    def load(cls, path: str | Path, memory: int | None = None, threads: int | None = None) -> Learner:
        """The model of a bundle."""
        return cls(path, memory, threads)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes learned, in the order of learning."""
        return tuple(self.bundle.manifest["classes"] if self.model is None else self.model.classes)

    def learn(self, task: str | Mapping[str, OneOrMore], restart: bool = False) -> None:
        """Learn classes: `folder:PATH` with one sub-folder for each, or images by class name.

        New classes are a task of their own; more images of known classes are included exactly where the readout is in
        closed form, and are refused elsewhere. When it returns, the bundle's state has been replaced; if it fails,
        nothing has been learned. Progress is saved every few seconds: after a power cut, the same call goes on.
        """
        if self.model is None:
            raise BundleError(f"{self.bundle.path}: exported with --predict-only; it cannot learn")
        with self.bundle.lock():
            tensors, values = self.bundle.read()  # another process may have learned since
            kept = {name: value for name, value in tensors.items() if not name.startswith(TYPICALITY)}
            progress = Progress(self.bundle, State(kept, values), restart)
            names, images, labels = open_images(task, self.extractor.reserve, self.say)
            sizes, digests = images.inspect(progress.images, progress.save_images)
            progress.begin([names, labels.tolist(), digests])
            model = Model(self.bundle, self.extractor, progress.state)
            known = len(values["classes"])
            new = [name for name in names if name not in values["classes"]]
            if progress.finished:
                self.say("the interrupted lesson had been learned already")
            else:
                model.check(new, [name for name in names if name not in new])
                ids = {name: c for c, name in enumerate([*values["classes"], *new])}
                labels = np.array([ids[name] for name in names])[labels]
                for part, some in enumerate((labels >= known, labels < known)):
                    at = progress.position(1)  # in which part 0 is over
                    if some.any() and (part or at is None):
                        chosen = [item for item, mine in zip(images.items, some, strict=True) if mine]
                        lesson = Lesson(
                            model, Images(chosen, images.reserve), sizes[some], labels[some], part, progress, self.say
                        )
                        lesson.include_more() if part else lesson.train(new)
                when = datetime.now(UTC).isoformat(timespec="seconds")
                entry = {"classes": names, "images": len(images), "tasks": int(bool(new)), "when": when}
                model.values["lessons"] = [*values.get("lessons", ()), {**entry, "digest": progress.lesson}]
                self.bundle.write(model.state)
                progress.drop()
            self.model = model
        if len(kept) < len(tensors):
            self.say('the statistics for "none of these" (zofc predict --reject) were dropped: only zofc keeps them up')

    def predict(self, images: OneOrMore, top: int = 1) -> list[list[Prediction]]:
        """The `top` most likely classes of each image, best first: a list for each image, for a lone one too."""
        if top < 1:
            raise ImageError(f"top: expected at least 1, got {top}")
        chances = self.predict_proba(images)
        best = np.argsort(-chances, axis=1, kind="stable")[:, :top]
        return [
            [Prediction(self.classes[c], float(row[c])) for c in some] for row, some in zip(chances, best, strict=True)
        ]

    def predict_proba(self, images: OneOrMore) -> NDArray[np.float64]:
        """Calibrated probabilities (images, classes) in the order of `classes`; each row sums to one."""
        return np.concatenate([np.zeros((0, len(self.classes))), *(pair[0] for pair in self._answers(images))])

    def embed(self, images: OneOrMore) -> NDArray[np.float32]:
        """Features (images, width): what the classes are told apart by."""
        width = int(self.bundle.manifest["backbone"]["width"])
        return np.concatenate([np.zeros((0, width)), *(pair[1] for pair in self._answers(images))]).astype(np.float32)

    def _answers(self, images: OneOrMore | Images) -> Iterator[tuple[Array, Array]]:
        """Probabilities and features, some images at a time."""
        given = images if isinstance(images, Images) else Images(list_images(images), self.extractor.reserve)
        for start in range(0, len(given), AT_ONCE):
            some = range(start, min(start + AT_ONCE, len(given)))
            pixels = np.stack([self.extractor.views.test(given.load(index)) for index in some])
            if self.model is None:
                chances, features = self.extractor.predict(pixels)
            else:
                features = self.model.embed(pixels)
                chances = self.model.probabilities(self.model.scores(features))
            if not np.isfinite(chances).all():
                raise BundleError(f"{self.bundle.path}: its answers are not finite; {REMEDY}")
            yield chances, features

    def evaluate(self, source: str | Mapping[str, OneOrMore], learned_only: bool = False) -> Evaluation:
        """Accuracy on `folder:PATH` or on images by class name; with `learned_only`, unknown classes are left out."""
        names, images, labels = open_images(source, self.extractor.reserve, self.say, test=True)
        unknown = tuple(name for name in names if name not in self.classes)
        if unknown and not (learned_only and len(unknown) < len(names)):
            remedy = "" if learned_only else "; --learned-only (learned_only=True) leaves them out"
            raise ImageError(
                f"never learned: {', '.join(unknown[:5])}; learned: {', '.join(self.classes[:10])}{remedy}"
            )
        ids = np.array([self.classes.index(name) if name in self.classes else -1 for name in names])[labels]
        chosen, size = np.flatnonzero(ids >= 0), len(self.classes)
        some = Images((images.items[i] for i in chosen), images.reserve)
        guesses = np.concatenate([chances.argmax(-1) for chances, _ in self._answers(some)])
        confusion = np.bincount(ids[chosen] * size + guesses, minlength=size * size).reshape(size, size)
        totals, hits = confusion.sum(1), confusion.diagonal()
        per_class = {name: 100 * float(hits[i]) / int(totals[i]) for i, name in enumerate(self.classes) if totals[i]}
        return Evaluation(self.classes, 100 * float(hits.sum()) / len(chosen), per_class, confusion, unknown)

    def save(self, path: str | Path | None = None) -> None:
        """Write the bundle, with what this learner knows, to a new folder. Without one there is nothing to do: `learn`
        saves, and another process may have learned more since."""
        if path is None:
            return
        if Path(path).exists():
            raise BundleError(f"{path} exists; choose a new folder")
        shutil.copytree(self.bundle.path, path, ignore=shutil.ignore_patterns(".*", PROGRESS, STATE))
        if self.model is not None:
            Bundle(path).write(self.model.state)


load = Learner.load
