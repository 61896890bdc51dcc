"""A lesson: the training of one task in epochs, what the readout learns of it, and its calibration. It can be saved
after each step and go on later."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from zofc_device.bundle import DeviceError
from zofc_device.calibration import MOST_IMAGES, calibrate
from zofc_device.directions import Array, stream
from zofc_device.heads import Head
from zofc_device.images import Images, Say
from zofc_device.journal import LessonJournal
from zofc_device.model import Model
from zofc_device.optimizers import Optimizer
from zofc_device.progress import Progress
from zofc_device.steps import Placement

AT_ONCE = 16  # images that are decoded at a time


def _parts(chosen: Array) -> list[Array]:
    return np.split(chosen, range(AT_ONCE, len(chosen), AT_ONCE))


class Lesson:
    """Images of new classes, which become the next task of a model, or further images of known ones; the one is part 0
    of what is learned at once, the other part 1."""

    def __init__(
        self, model: Model, images: Images, sizes: Array, labels: Array, part: int, progress: Progress, say: Say
    ) -> None:
        self.model, self.images, self.sizes, self.labels, self.say = model, images, sizes, labels, say
        self.views, self.training = model.extractor.views, model.settings["training"]
        self.everything, self.optimizers = np.arange(len(labels)), dict[str, Optimizer]()
        self.progress, self.part, self.position = progress, part, progress.position(part)
        self.epoch, self.step = (self.position[key] if self.position else 0 for key in ("epoch", "step"))
        self.gathered = progress.aside("features/") if self.position else {}
        self.journal: LessonJournal | None = None  # of steps
        model.reserve(len(labels))

    def train(self, names: Sequence[str]) -> None:
        """Learn new classes, from the beginning or from where an interrupted lesson was saved."""
        model = self.model
        if self.position is None:
            model.extend(names)
        held, groups = model.held_back(self.labels), model.groups()
        trained = np.delete(self.everything, held)
        batches = -(-len(trained) // int(self.training["batch_size"]))
        plans = {name: model.plans[name].for_batches(batches) for name in groups if name in model.plans}
        placement = Placement(plans, Head(model.kind, model.in_loss), model.seed, len(model.tasks) - 1)
        self.optimizers = placement.optimizers
        self.journal = LessonJournal(model, resumed=self.position is not None)
        self.journal.follow(placement)
        if "peft" in plans and plans["peft"].estimator != "forward_gradient":
            model.extractor.runtime.refuse_integer_activations("features", "features_image")
        if self.position is not None:
            for label, optimizer in self.optimizers.items():
                optimizer.momentum = self.progress.aside(f"optimizer/{label}/")
            self.say(f"the interrupted lesson goes on in epoch {self.epoch + 1}, at step {self.step + 1}")
        if model.trains and model.single:
            self.say("one class: its loss is constant, so it takes a prototype row untrained")
        elif model.trains and model.settings["head"]["init"] == "means" and not self.epoch + self.step:
            model.set_rows_at_means(self.features(trained), self.labels[trained], start=True)
        for loss in self._steps(placement, trained):
            if not math.isfinite(loss):
                raise DeviceError(
                    f"the loss became {loss} in epoch {self.epoch + 1}; check the images, or export a smaller lr"
                )
            self._save()
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
                if "peft" in placement.optimizers:
                    self.gathered.pop("adapted", None)  # the adapter has moved
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
        depend on the images beside them where the recipe asks for fixed batches. Unless few are asked for, all are
        evaluated, and kept with the progress."""
        choice = choice or ("adapted" if self.model.adapter else "frozen")
        known = self.gathered.get(choice)  # of the first images
        if known is None and len(chosen) <= min(MOST_IMAGES, len(self.labels) - 1):
            return np.concatenate([self._embed(part, choice) for part in _parts(chosen)])
        if known is None or len(known) < len(self.labels):
            whole = np.zeros((len(self.labels), int(self.model.settings["backbone"]["width"])), np.float32)
            done = 0 if known is None else len(known)
            whole[:done] = 0 if known is None else known
            for part in _parts(self.everything[done:]):
                whole[part] = self._embed(part, choice)
                self.gathered[choice] = whole[: part[-1] + 1]
                self._save()
        return self.gathered[choice][chosen].astype(np.float64)

    def _embed(self, chosen: Array, choice: str) -> Array:
        most = 1 if self.training.get("fixed_batches") else AT_ONCE
        return self.model.embed(self._pixels(chosen), choice, most)

    def _save(self) -> None:
        """Save the lesson as it stands, if it is time."""
        if self.progress.due():
            if self.journal is not None:
                self.journal.commit()
            aside = {f"features/{choice}": value for choice, value in self.gathered.items()}
            for label, optimizer in self.optimizers.items():
                aside |= {f"optimizer/{label}/{name}": value for name, value in optimizer.momentum.items()}
            position = {"part": self.part, "epoch": self.epoch, "step": self.step}
            self.progress.save(self.model.state, aside, position)

    # -- what follows the steps --------------------------------------------------------------------------------------

    def _finish(self, unseen: Array) -> None:
        model = self.model
        if model.trains and model.single and model.means is None:
            model.set_rows_at_means(self.features(self.everything), self.labels, start=False)
        self._include(unseen)
        counts = np.bincount(self.labels, minlength=len(model.classes))
        rng = stream(model.seed, "calibration", len(model.tasks) - 1)
        chosen = np.sort(rng.permutation(np.flatnonzero(counts[self.labels] > 1))[:MOST_IMAGES])
        self._calibrate(chosen, counts, model.tasks[-1].start)

    def include_more(self) -> None:
        """Include the images, of known classes, in a readout in closed form."""
        if self.position is not None:
            self.say("the interrupted lesson goes on")
        self._include(self.everything)
        counts = np.bincount(self.labels, minlength=len(self.model.classes))
        self._calibrate(self.everything[:MOST_IMAGES], counts + 1, 0)  # there were some before

    def _include(self, unseen: Array) -> None:
        """Include all images in the class means and regressions, if there are any."""
        model = self.model
        features = {name: self.features(self.everything, name) for name in model.ridges}
        if model.means is not None:
            average = self.features(self.everything)  # the last that may save: what is included twice counts twice
            model.average(average, self.labels)
        if features:
            model.extractor.runtime.load()  # no graph: the regression needs the memory
            if text := model.regress(features, self.labels, unseen):
                self.say(text)

    def _calibrate(self, chosen: Array, counts: Array, start: int) -> None:
        """Fit the calibration: anew, where the regression knows its answers to images of all classes without each; else
        to some images, with `counts` of their classes, which replace what was before if they are of classes before
        `start`."""
        model, sample = self.model, self.model.left_out
        if not self.training.get("calibrate", True):
            return
        if sample is not None and model.ridges[model.choice].left_out_of_all:
            every = np.bincount(sample.labels, minlength=len(model.classes))
            model.calibration = calibrate(sample, len(model.classes), every, None)
        elif len(chosen):
            sample = sample or model.score(self.features(chosen), self.labels[chosen], counts)
            model.calibration = calibrate(sample, start, counts, model.calibration)
