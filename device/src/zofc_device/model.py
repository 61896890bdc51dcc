"""A method with what it has learned: how it answers, what a task may move, and what its readout learns in closed form.

A row is a trained tensor (`adapter`, `classifier`), a class mean (`simplecil`, `prototypes`), or a column of a ridge
regression (`ridge`, `readout: ridge`); with a fallback, regressions on adapted and on frozen features learn side by
side and the one with more right answers so far answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from zofc_device.bundle import Bundle, BundleError, DeviceError, State
from zofc_device.calibration import Calibration
from zofc_device.directions import Array, stream
from zofc_device.features import MOST_IMAGES, Extractor
from zofc_device.heads import Head, log_softmax, rows_at_means, start_rows
from zofc_device.image_ridge import ImageRidge, content_keys
from zofc_device.optimizers import Plan
from zofc_device.ridge import HELD_OUT, Ridge, RidgeSettings, Sample

CHOICES = ("adapted", "frozen")
METHODS = ("adapter", "classifier", "simplecil", "ridge")


class Model:
    """Tensors are replaced, never changed in place, so a copy of the mapping is a copy of the model."""

    def __init__(self, bundle: Bundle, extractor: Extractor, state: State) -> None:
        self.bundle, self.extractor, self.settings = bundle, extractor, bundle.manifest
        self.tensors = dict(state.tensors)
        values = self.values = dict(state.values)
        self.classes: list[str] = list(values["classes"])
        self.tasks = [range(*task) for task in values["tasks"]]
        self.calibration: Calibration | None = values.get("calibration")
        self.method: dict[str, Any] = self.settings["method"]
        self.name, self.seed = self.method["name"], int(self.settings["seed"])
        if self.name not in METHODS:
            raise BundleError(f"manifest.json: method.name: expected {', '.join(METHODS)}, got {self.name!r}")
        self.adapter = [entry["name"] for entry in self.settings["adapter"] or ()]
        plans: dict[str, Any] = self.settings["optimize"]
        self.last_tasks = {name: plan["tasks"] or math.inf for name, plan in plans.items()}
        still = [name for name, last in self.last_tasks.items() if plans[name]["lr"] and len(self.tasks) < last]
        self.plans = {name: Plan.of(name, plans[name]) for name in still}
        self.ridges = self._make_ridges()
        self.means = "means." if self.name == "simplecil" else "sums." if self.method.get("prototypes") else None
        if missing := [name for name in self.adapter if name not in self.tensors]:
            raise BundleError(f"{bundle.path}: the state has no tensor '{missing[0]}'; restore it from a copy")

    def _make_ridges(self) -> dict[str, Ridge]:
        """The regressions by what they regress from."""
        if self.name != "ridge" and self.method["readout"] != "ridge":
            return {}
        ridge, width = self.settings["ridge"], int(self.settings["backbone"]["width"])
        keys = ("projection", "budget", "strength_from", "keep_features")
        settings = RidgeSettings(width=width, project=self.bundle.projection, **{key: ridge[key] for key in keys})
        kind = ImageRidge if settings.strength_from == "images" else Ridge
        if self.name == "adapter" and ridge["fallback"]:
            return {name: kind(settings, self.tensors, f"fallback.heads.{name}.") for name in CHOICES}
        lone, prefix = ("adapted" if self.adapter else "frozen"), "head." if self.name == "ridge" else "ridge."
        return {lone: kind(settings, self.tensors, prefix)}

    @property
    def state(self) -> State:
        """What is saved. Statistics of typical images are not kept up here, so they are left out after a lesson."""
        tensors = dict(self.tensors)
        for ridge in self.ridges.values():
            tensors |= ridge.state()
        tasks = [[task.start, task.stop] for task in self.tasks]
        return State(tensors, {**self.values, "classes": self.classes, "tasks": tasks, "calibration": self.calibration})

    # -- tasks -----------------------------------------------------------------------------------------------------

    @property
    def trains(self) -> bool:
        """Whether there are rows that are trained."""
        return self.name in ("adapter", "classifier")

    @property
    def in_loss(self) -> range:
        """The tasks whose rows the loss sees: the last one, or all without the mask."""
        return range(len(self.tasks) - 1 if self.method["mask"] else 0, len(self.tasks))

    @property
    def single(self) -> bool:
        """A loss that sees one class is constant: there is nothing to train."""
        return sum(len(self.tasks[number]) for number in self.in_loss) == 1

    @property
    def kind(self) -> str:
        """That of the head."""
        return str(self.settings["head"]["kind"])

    def extend(self, names: Sequence[str]) -> None:
        """Make room for the classes of a new task."""
        count, width = len(names), int(self.settings["backbone"]["width"])
        self.tasks.append(range(len(self.classes), len(self.classes) + count))
        self.classes += names
        for ridge in self.ridges.values():
            ridge.grow(count)
        if self.means is not None:
            for name, rows in (("sums", ((0, count), (0, 0))), ("counts", (0, count))):
                self.tensors[self.means + name] = np.pad(self.tensors[self.means + name], rows)
        if self.name != "ridge":
            head = self.settings["head"]
            self.tensors |= start_rows(self.kind, head["init"], count, width, self.seed, len(self.tasks) - 1)
            if self.method.get("prototypes"):  # the classifier is a temporary one, fresh in each task
                self.tensors["head.sigma"] = np.array(head["scale"], np.float32)

    def check(self, new: Sequence[str], known: Sequence[str]) -> None:
        """Refuse a lesson that this method cannot learn."""
        if known and not self.ridges and self.means is None:
            raise DeviceError(
                f"already learned: {', '.join(known[:5])}; this model trains the rows of a class in one lesson and "
                "cannot include more images of it. Teach them under a new name, or export ridge, zo-ridge or simplecil"
            )
        if self.trains and len(new) == 1 and self.kind == "linear" and self.method["mask"]:
            raise DeviceError("a lesson of a single class has a constant loss; with head.kind=linear teach two or more")

    def groups(self) -> list[str]:
        """What the current task may move, be it at a rate of 0: the adapter, the rows in the loss."""
        if not self.trains or self.single:
            return []
        groups = ["peft", "head"] if self.adapter else ["head"]
        return [name for name in groups if len(self.tasks) <= self.last_tasks[name]]

    def held_back(self, labels: Array) -> Array:
        """The images of the current task that no step may see, by which the fallback is judged; ascending."""
        if len(self.ridges) < 2 or "peft" not in self.groups():
            return np.arange(0)
        held = self._held_out_stream().permutation(len(labels))[: len(labels) // HELD_OUT]
        alone = np.setdiff1d(labels, np.delete(labels, held))  # classes of which all images would be held back
        return np.sort(held[~np.isin(labels[held], alone)])

    def _held_out_stream(self) -> np.random.Generator:
        return stream(self.seed, "held out", len(self.tasks) - 1)

    def set_rows_at_means(self, features: Array, labels: Array, start: bool) -> None:
        """The rows of the current task at class means: as a start, or as they are where nothing is trained."""
        means = np.stack([features[labels == c].mean(0) for c in self.tasks[-1]]).astype(np.float32)
        rows = rows_at_means(self.kind, means, self.settings["head"]["scale"]) if start else means
        self.tensors[f"head.rows.{len(self.tasks) - 1}"] = rows

    # -- the readout in closed form --------------------------------------------------------------------------------

    def average(self, features: Array, labels: Array) -> None:
        """Include images in the class means, which are the rows."""
        assert self.means is not None
        sums, counts = self.tensors[self.means + "sums"].copy(), self.tensors[self.means + "counts"].copy()
        if (counts[labels[labels < self.tasks[-1].start]] == 0).any():
            raise DeviceError(
                "an early version of zofc learned this class and kept no count: train anew with all images"
            )
        np.add.at(sums, labels, features)
        counts += np.bincount(labels, minlength=len(counts))
        self.tensors |= {self.means + "sums": sums, self.means + "counts": counts}
        means = (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
        for task, classes in enumerate(self.tasks):
            name, some = f"head.rows.{task}", slice(classes.start, classes.stop)
            self.tensors[name] = np.where(counts[some, None] > 0, means[some], self.tensors[name])

    def regress(self, features: dict[str, Array], labels: Array, unseen: Array) -> str | None:
        """Include images in the regressions, `unseen` being those that no step saw; which of two answers, and why."""
        both, keep = len(self.ridges) == 2, self.settings["ridge"]["strength_from"] == "images"
        keys = content_keys(features["frozen"]) if both and keep else None
        answers = [
            ridge.learn(features[name], labels, self._held_out_stream(), keys) for name, ridge in self.ridges.items()
        ]
        if not both:
            return None
        right, trained = self.tensors["fallback.right"].copy(), self.tensors["fallback.trained"]
        if keys is not None:  # asked about all images, so that it does not matter how they came
            trained = np.concatenate([trained, np.delete(keys, unseen)])
            right, asked = np.zeros_like(right), 0
        else:
            asked = int(self.tensors["fallback.asked"])
        for number, (held, ridge) in enumerate(zip(answers, self.ridges.values(), strict=True)):
            if isinstance(ridge, ImageRidge):
                fair, truth = ~np.isin(ridge.keys[held.images], trained), ridge.labels[held.images]
            else:
                fair, truth = np.isin(held.images, unseen), labels[held.images]
            right[number] += int((held.scores.argmax(-1)[fair] == truth[fair]).sum())
        asked += int(fair.sum())
        if isinstance(ridge, ImageRidge) and ridge.complete:
            trained = trained[np.isin(trained, ridge.keys)]
        counted = {"fallback.right": right, "fallback.asked": np.array(asked, np.int64), "fallback.trained": trained}
        self.tensors |= counted
        return None if self._untrained else self._explain(right, asked)

    @property
    def _untrained(self) -> bool:
        """Whether no step moved the adapter, and both regressions answer alike: W_up and its bias start at zero."""
        ups = [self.tensors[name] for name in self.adapter if name.rpartition(".")[2] in ("up_weight", "up_bias")]
        return not self.groups() and not any(values.any() for values in ups)

    def _explain(self, right: Array, asked: int) -> str:
        if not asked:
            return "the frozen features answer: there are too few images to tell whether the adapter helps"
        with_it, without = (100 * right / asked).tolist()
        return (
            f"the {self.choice} features answer: of {asked} images that the adapter was not trained on, {with_it:.1f}"
            f" % are right with it, {without:.1f} % without"
        )

    def reserve(self, images: int) -> None:
        """Refuse a lesson of so many images whose regression needs more memory than there is."""
        if self.ridges:
            kept, working = zip(*(ridge.needed_bytes(images) for ridge in self.ridges.values()), strict=True)
            now = sum(value.nbytes for ridge in self.ridges.values() for value in ridge.state().values())
            need = sum(kept) - now + max(*working, 2 * sum(kept))  # which are copied twice when they are saved
            self.extractor.reserve(need, f"the regression on {images} more images")

    # -- answers ---------------------------------------------------------------------------------------------------

    @property
    def choice(self) -> str:
        """Which features answer."""
        if len(self.ridges) == 2:
            with_it, without = self.tensors["fallback.right"]
            return "adapted" if with_it > without else "frozen"
        return "adapted" if self.adapter else "frozen"

    @property
    def left_out(self) -> Sample | None:
        """Images scored by the regression that answers, each as if it had not been learned."""
        return self.ridges[self.choice].left_out if self.ridges else None

    def embed(self, pixels: Array, choice: str | None = None, most: int = MOST_IMAGES) -> Array:
        """Features (batch, width) that the scores are computed from, or those of another choice."""
        frozen = (choice or self.choice) == "frozen"
        flat = None if frozen else np.concatenate([self.tensors[name].ravel() for name in self.adapter])
        return self.extractor.features(pixels, flat, most)

    def scores(self, features: Array) -> Array:
        """Scores (batch, classes)."""
        if self.ridges:
            return self.ridges[self.choice].scores(features)
        return Head(self.kind, range(len(self.tasks))).scores(self.tensors, features)

    def score(self, features: Array, labels: Array, counts: Array) -> Sample:
        """Scored images; each as if it were not among the `counts` of its class, where rows are class means."""
        scores = self.scores(features)
        if self.kind == "cosine" and (self.means is not None or (self.trains and self.single)):
            counts = counts if self.means is None else self.tensors[self.means + "counts"]
            rows = np.concatenate([self.tensors[f"head.rows.{task}"] for task in range(len(self.tasks))])
            rest = counts[labels][:, None] * rows[labels] - features
            lengths = np.linalg.norm(features, axis=-1) * np.linalg.norm(rest, axis=-1)
            cosines = (features * rest).sum(-1) / np.maximum(lengths, 1e-8)
            scores[np.arange(len(labels)), labels] = float(self.tensors["head.sigma"]) * cosines
        return Sample(scores, labels)

    def probabilities(self, scores: Array) -> Array:
        """Calibrated probabilities (batch, classes)."""
        scale = 1.0 if self.calibration is None else float(self.calibration["scale"])
        return np.asarray(np.exp(log_softmax(scale * scores)))
