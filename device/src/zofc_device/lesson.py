"""A lesson: the training of one task in epochs, what the readout learns of it, and its calibration. It can be saved
after each step and go on later."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from zofc_device.bundle import PROGRESS, BundleError, DeviceError, State, checksum
from zofc_device.calibration import MOST_IMAGES, calibrate
from zofc_device.directions import Array, stream
from zofc_device.heads import Head
from zofc_device.images import Images
from zofc_device.journal import LessonJournal
from zofc_device.model import Model
from zofc_device.ridge import Sample
from zofc_device.steps import Placement

SAVE_SECONDS, SAVE_SHARE = 2.0, 20  # between two saved states, and how many times longer than writing one
MOMENTUM = "optimizer/"  # the names of optimizers' tensors begin so
AT_ONCE = 16  # images that are decoded at a time
Say = Callable[[str], None]


class Lesson:
    """Images of new classes, which become the next task of a model, or further images of known ones."""

    def __init__(self, model: Model, images: Images, labels: Array, say: Say) -> None:
        self.model, self.images, self.labels, self.say = model, images, labels, say
        self.views, self.training = model.extractor.views, model.settings["training"]
        self.calibrates = bool(self.training.get("calibrate", True))
        self.everything = np.arange(len(labels))
        self.sizes, self.digests = images.inspect()
        self.epoch = self.step = 0

    def train(self, names: Sequence[str]) -> None:
        """Learn new classes, from the beginning or from where an interrupted lesson on the same images was saved."""
        model, digest = self.model, self._digest(names)
        saved = self._saved(digest)
        model.extend(names)
        held, groups = model.held_back(self.labels), model.groups()
        trained = np.delete(self.everything, held)
        batches = -(-len(trained) // int(self.training["batch_size"]))
        plans = {name: plan.for_batches(batches) for name, plan in model.plans.items()}
        placement = Placement(groups, plans, Head(model.kind, model.in_loss), model.seed, len(model.tasks) - 1)
        if "peft" in groups and model.plans["peft"].estimator != "forward_gradient":
            model.extractor.runtime.refuse_integer_activations("features", "features_image")
        if saved is not None:
            self._resume(placement, saved)
        elif model.trains and model.single:
            self.say("one class: its loss is constant, so it takes a prototype row untrained")
        elif model.trains and model.settings["head"]["init"] == "means":
            model.set_rows_at_means(self.features(trained), self.labels[trained], start=True)
        self.journal = LessonJournal(model, None if saved is None else saved.values)
        self.journal.follow(placement, resumed=saved is not None)
        clock, pause = time.monotonic(), SAVE_SECONDS
        for loss in self._steps(placement, trained):
            if not math.isfinite(loss):
                raise DeviceError(
                    f"the loss became {loss} in epoch {self.epoch + 1}; check the images, or export a smaller lr"
                )
            if (start := time.monotonic()) - clock > pause:
                self._save(placement, digest)
                clock = time.monotonic()
                pause = max(SAVE_SECONDS, SAVE_SHARE * (clock - start))
        self.journal.end(placement)
        self._finish(held if "peft" in groups else self.everything)
        self.journal.commit()

    def _steps(self, placement: Placement, trained: Array) -> Iterator[float]:
        """The losses of all steps; then `epoch` and `step` are those of the next one."""
        model, size, task = self.model, int(self.training["batch_size"]), len(self.model.tasks) - 1
        start, steps = model.tasks[model.in_loss.start].start, -(-len(trained) // size)
        varies = self.views.varies or "peft" in placement.optimizers
        kept = None if varies or not placement.epochs else self.features(self.everything)
        while self.epoch < placement.epochs:
            name: tuple[str | int, ...] = ("task", task, "epoch", self.epoch)
            order = stream(model.seed, *name, "order").permutation(trained)
            losses = []
            while self.step < steps:
                chosen = order[self.step * size : (self.step + 1) * size]
                inputs = self._cut(chosen, (*name, "crops", self.step)) if kept is None else kept[chosen]
                position = self.labels[chosen] - start, self.epoch, self.epoch * steps + self.step
                losses.append(placement.step(model.tensors, model.adapter, model.extractor, inputs, *position))
                self.step += 1
                yield losses[-1]
            self.epoch, self.step = self.epoch + 1, 0
            mean = np.mean(losses) if losses else math.nan
            self.say(f"epoch {self.epoch} of {placement.epochs}, mean loss {mean:.4f}")

    def _cut(self, chosen: Array, name: tuple[str | int, ...]) -> Array:
        """Pixels (images, s, s, 3) of the training view."""
        if not self.views.varies:
            return self._pixels(chosen)
        cuts = zip(chosen, *self.views.draw(self.sizes[chosen], stream(self.model.seed, *name)), strict=True)
        return np.stack([self.views.training(self.images.load(int(i)), box, bool(flip)) for i, box, flip in cuts])

    def _pixels(self, chosen: Array) -> Array:
        """Pixels (images, s, s, 3) of the test view."""
        return np.stack([self.views.test(self.images.load(int(index))) for index in chosen])

    def features(self, chosen: Array, choice: str | None = None) -> Array:
        """Features of images in the test view: adapted ones, if there is an adapter, or another choice. They do not
        depend on the images beside them where the recipe asks for fixed batches."""
        choice = choice or ("adapted" if self.model.adapter else "frozen")
        most = 1 if self.training.get("fixed_batches") else AT_ONCE
        parts = np.split(chosen, range(AT_ONCE, len(chosen), AT_ONCE))
        return np.concatenate([self.model.embed(self._pixels(part), choice, most) for part in parts])

    # -- what follows the steps --------------------------------------------------------------------------------------

    def _finish(self, unseen: Array) -> None:
        model = self.model
        if model.trains and model.single and model.means is None:
            model.set_rows_at_means(self.features(self.everything), self.labels, start=False)
        self._include(unseen)
        counts = np.bincount(self.labels, minlength=len(model.classes))
        rng = stream(model.seed, "calibration", len(model.tasks) - 1)
        chosen = np.sort(rng.permutation(np.flatnonzero(counts[self.labels] > 1))[:MOST_IMAGES])
        if len(chosen) and self.calibrates:
            sample = model.left_out or self._score(chosen, counts, model.trains and model.single)
            model.calibration = calibrate(sample, model.tasks[-1].start, counts, model.calibration)
        self._recalibrate()

    def include_more(self, alone: bool) -> None:
        """Include the images, of known classes, in a readout in closed form; `alone`, without a task before."""
        model = self.model
        if alone:
            self._saved("")  # refuses to drop another lesson
        self._include(self.everything)
        if self.calibrates and not self._recalibrate():
            counts = np.bincount(self.labels, minlength=len(model.classes))
            sample = model.left_out or self._score(self.everything[:MOST_IMAGES], counts)
            model.calibration = calibrate(sample, 0, counts + 1, model.calibration)  # there were some before

    def _include(self, unseen: Array) -> None:
        """Include all images in the class means and regressions, if there are any."""
        model = self.model
        if model.means is not None:
            model.average(self.features(self.everything), self.labels)
        if model.ridges:
            features = {name: self.features(self.everything, name) for name in model.ridges}
            if text := model.regress(features, self.labels, unseen):
                self.say(text)

    def _recalibrate(self) -> bool:
        """Fit the calibration anew on images of all classes, where the regression knows its answers without each."""
        model, sample = self.model, self.model.left_out
        if sample is None or not self.calibrates or not model.ridges[model.choice].left_out_of_all:
            return False
        counts = np.bincount(sample.labels, minlength=len(model.classes))
        model.calibration = calibrate(sample, len(model.classes), counts, None)
        return True

    def _score(self, chosen: Array, counts: Array, means: bool = False) -> Sample:
        """Images as the model answers them; each as if it had not been learned, where rows are class means."""
        model, features, labels = self.model, self.features(chosen), self.labels[chosen]
        if (means or model.means is not None) and model.kind == "cosine":
            counts = counts if model.means is None else model.tensors[model.means + "counts"]
            return Sample(model.scores_left_out(features, labels, counts), labels)
        return Sample(model.scores(features), labels)

    # -- interrupted lessons -----------------------------------------------------------------------------------------

    def _digest(self, names: Sequence[str]) -> str:
        """What a lesson is known by: the state that it began with, its classes and its images."""
        parts = [checksum(self.model.state.tensors), list(names), self.labels.tolist(), self.digests]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _saved(self, digest: str) -> State | None:
        bundle = self.model.bundle
        saved = bundle.read(PROGRESS) if (bundle.path / PROGRESS).exists() else None
        if saved is not None and saved.values.get("lesson") != digest:
            raise BundleError(
                f"{bundle.path / PROGRESS}: a lesson on other images was interrupted; learn those again to finish it, "
                "or start this one with --restart (restart=True), which drops that one"
            )
        return saved

    def _save(self, placement: Placement, digest: str) -> None:
        self.journal.commit()
        state, momentum = self.model.state, dict[str, Array]()
        for label, optimizer in placement.optimizers.items():
            momentum |= {f"{MOMENTUM}{label}/{name}": value for name, value in optimizer.momentum.items()}
        values = {**state.values, "lesson": digest, "epoch": self.epoch, "step": self.step}
        self.model.bundle.write(State({**state.tensors, **momentum}, values), PROGRESS)

    def _resume(self, placement: Placement, saved: State) -> None:
        for label, optimizer in placement.optimizers.items():
            start = f"{MOMENTUM}{label}/"
            optimizer.momentum = {k.removeprefix(start): v for k, v in saved.tensors.items() if k.startswith(start)}
        self.model.tensors |= {name: saved.tensors[name] for name in self.model.tensors}
        self.epoch, self.step = saved.values["epoch"], saved.values["step"]
        self.say(f"the interrupted lesson goes on in epoch {self.epoch + 1}, at step {self.step + 1}")
