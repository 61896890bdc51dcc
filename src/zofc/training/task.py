"""The training loop of one task. It yields after every step, so that its caller can save, report or stop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from zofc import seeds
from zofc.data.loading import Batch, BatchSequence, Loader
from zofc.data.selection import Indices
from zofc.errors import DivergedError
from zofc.methods.classifier import Classifier
from zofc.optim.division import Division
from zofc.optim.placement import Placement, StepReport
from zofc.training.adapter_check import check_adapter
from zofc.training.calibration import MOST_CALIBRATION_IMAGES, calibrate
from zofc.training.events import Events, StepStatus
from zofc.training.incremental_model import IncrementalModel
from zofc.training.loss_check import check_loss
from zofc.training.memory import StepPeak, resident_tensors
from zofc.training.planner import check_weights, plan_memory
from zofc.training.rank_checks import check_states, moving_state
from zofc.units import format_duration

LEAST_SAVED = 10.0  # seconds, from which on a user is told


@dataclass
class Meter:
    """Running sums of loss, hits and time over an epoch."""

    loss: float = 0.0
    right: float = 0.0
    images: int = 0
    seconds: float = 0.0

    def add(self, report: StepReport, images: int, seconds: float) -> None:
        """Include a step."""
        self.loss += report.loss * images
        self.right += report.accuracy * images
        self.images += images
        self.seconds += seconds

    @property
    def mean_loss(self) -> float:
        """Mean loss per image."""
        return self.loss / max(self.images, 1)

    @property
    def accuracy(self) -> float:
        """Accuracy on the training batches in percent, before each step."""
        return 100 * self.right / max(self.images, 1)


class TaskTraining:
    """The training of the task that `model` was last extended with, from its start or from where a run stopped."""

    def __init__(self, model: IncrementalModel, loader: Loader, events: Events, tasks: int) -> None:
        self.model, self.loader, self.events = model, loader, events
        self.index, self.tasks = len(model.tasks) - 1, tasks
        method, seed = model.method, model.recipe.seed
        plans = {name: method.plan(name, group) for name, group in model.recipe.optimize.items()}
        groups = {
            name: group for name, group in method.groups().items() if self.index < (plans[name].tasks or math.inf)
        }
        held = method.held_back(loader.image_set.labels) if groups else ()
        if len(held):
            loader.trained = np.delete(np.arange(len(loader.image_set)), held)
        training = model.recipe.training
        self.batch_size = training.batch_size
        plans = {name: plan.for_batches(self.steps_per_epoch) for name, plan in plans.items()}
        division = Division(model.ranks, training.divide)
        self.placement = Placement(method, groups, plans, seed, self.index, training.graphs, division)
        self.epoch = self.step = 0
        self.meter = Meter()
        self.features: Batch | None = None  # of all images of the task, where they are computed once
        self.losses: list[float] = []  # of the epochs made here
        self.accuracy = 0.0  # of the last of them
        self.peak_memory = 0

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches of an epoch."""
        return self.loader.steps(self.batch_size)

    @property
    def total_steps(self) -> int:
        """Number of steps of the task."""
        return self.steps_per_epoch * self.placement.epochs

    @property
    def steps_done(self) -> int:
        """Number of steps made so far."""
        return self.epoch * self.steps_per_epoch + self.step

    def begin(self) -> None:
        """Let the method prepare for the task."""
        notice = self.model.method.begin_task(lambda: self._images(self.loader.trained))
        if notice:
            self.events.send("notice", text=notice)

    def resume(self, epoch: int, step: int, meter: dict[str, float]) -> None:
        """Continue at a step of an epoch, with its measurements so far; ValueError if there is no such step."""
        if epoch > self.placement.epochs or step > self.steps_per_epoch:
            raise ValueError(f"epoch {epoch + 1}, step {step} of {self.placement.epochs} times {self.steps_per_epoch}")
        self.epoch, self.step = epoch, step
        self.meter = Meter(**{**asdict(Meter()), **meter})

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on, in the epoch's own order and random views."""
        recipe = self.model.recipe
        name = (recipe.seed, "task", self.index, "epoch", epoch)
        if self.on_features:
            return self._feature_batches(name, start)
        augment = recipe.views.augment == "crop-flip"
        return self.loader.train_batches(self.batch_size, name, slice(start, None), augment, self._own_images)

    def _own_images(self, batch: int) -> slice:
        """The images of a batch of so many that this process evaluates."""
        return self.placement.division.images(batch).where

    @property
    def on_features(self) -> bool:
        """Whether steps are made on kept features: nothing that moves touches them, and views are always the same."""
        recipe, method = self.model.recipe, self.model.method
        frozen = type(method).prepare is Classifier.prepare
        return frozen and recipe.views.augment == "none" and recipe.training.memory is None

    def _feature_batches(self, name: Sequence[str | int], start: int) -> Iterator[Batch]:
        if self.features is None:
            clock = time.perf_counter()
            with torch.no_grad():
                pairs = self.model.ranks.in_order(self.model.plain_batches(self.loader), self.model.method.prepare)
                features, labels = (torch.cat(part) for part in zip(*pairs, strict=True))
            self.features = features.to(self.model.device), labels.to(self.model.device)
            saved = (self.placement.epochs - 1) * (time.perf_counter() - clock)
            if saved > LEAST_SAVED:
                text = f"features of the task's images are computed once: about {format_duration(saved)} saved"
                self.events.send("notice", text=text)
        features, labels = self.features
        for indices in torch.split(torch.from_numpy(self.loader.epoch_order(name)), self.batch_size)[start:]:
            chosen = indices[self._own_images(len(indices))].to(features.device)
            yield features[chosen], labels[chosen]

    def run(self) -> Iterator[float]:
        """Train step by step and yield the seconds of each; then `epoch` and `step` are those of the next step."""
        recipe = self.model.recipe
        to_plan = recipe.training.memory is not None
        peak = StepPeak(self.model.device)
        phase: tuple[str, ...] = ()  # the sets that move
        if to_plan and not self.placement.epochs:
            check_weights(self.model, self.placement)
        while self.epoch < self.placement.epochs:
            clock, moving = time.perf_counter(), self.placement.active(self.epoch)
            for images, labels in self.batches(self.epoch, self.step):
                number, batch = (
                    self.steps_done,
                    min(self.batch_size, self.loader.epoch_size - self.step * self.batch_size),
                )
                if to_plan:
                    start = time.perf_counter()
                    self._plan(images, labels)
                    to_plan, clock = False, clock + time.perf_counter() - start  # not counted as training
                if phase != moving:
                    phase = moving
                    self.placement.execution.recorder.forget()  # the steps of the phase before
                    batch_sizes = min(self.steps_per_epoch, 2)  # that of the last batch of an epoch may be another
                    peak.begin(self._resident(), batch_sizes, self._steps_in_phase())
                with peak.step(self._resident):
                    report = self.placement.step(images, labels, self.epoch, number, batch=batch)
                self.peak_memory = max(self.peak_memory, peak.bytes)
                self._check(report, number)
                while notices := self.placement.execution.notices:
                    self.events.send("notice", text=notices.pop(0))
                self.model.method.after_step()
                if (number + 1) % recipe.training.check_ranks == 0:
                    self.check_ranks(number + 1)
                self.step += 1
                seconds = time.perf_counter() - clock
                self.meter.add(report, batch, seconds)
                position = self.index, self.tasks, self.epoch, self.placement.epochs, number + 1, self.total_steps
                self.events.step(StepStatus(*position, report.loss, self.meter.accuracy))
                yield seconds
                clock = time.perf_counter()
            self._close_epoch()

    def check_ranks(self, steps: int) -> None:
        """Stop if the processes of the run have come apart."""
        check_states(self.model.ranks, moving_state(self.placement), f"step {steps} of task {self.index + 1}")

    def end(self) -> None:
        """Let the method finish the task."""
        self.check_ranks(self.steps_done)
        self.placement.execution.recorder.forget()  # frees memory for the next task
        notice = self.model.method.end_task(self._images)
        if notice:
            self.events.send("notice", text=f"task {self.index + 1}: {notice}", about="readout", task=self.index)

    @torch.no_grad()
    def calibrate(self) -> None:
        """Fit the model's calibration on training images of this task."""
        model, labels = self.model, self.loader.image_set.labels
        counts = np.bincount(labels, minlength=len(model.classes))
        rng = seeds.stream(model.recipe.seed, "calibration", self.index)
        chosen = np.sort(rng.permutation(np.flatnonzero(counts[labels] > 1))[:MOST_CALIBRATION_IMAGES])
        if len(chosen) and model.recipe.training.calibrate:
            images = torch.from_numpy(counts)
            sample = model.method.calibration_sample(lambda: model.plain_batches(self.loader, chosen), images)
            model.calibration = calibrate(sample, model.tasks[-1], images, model.calibration)

    def check(self) -> None:
        """Tell the user what went wrong in this task, as far as its training images show it."""
        whole = len(self.losses) == self.placement.epochs  # not continued in between
        if self.index == 0 and whole:
            plans = {name: self.placement.plans[name] for name in self.placement.groups}
            if text := check_loss(self.losses, self.accuracy, plans, self.model.recipe):
                self.events.send("notice", text=f"task {self.index + 1}: {text}", about="loss", task=self.index)
        self._check_adapter()

    def _check_adapter(self) -> None:
        """Whether the features that this task adapted are worse than the frozen ones."""
        method, plans = self.model.method, self.placement.plans
        moved = [name for name in self.placement.groups if name in method.in_features and plans[name].lr]
        if not (moved and self.total_steps and self.model.recipe.training.check_adapter):
            return
        check = check_adapter(self.model, self.loader, self.total_steps * self.batch_size)
        if check is not None and check.harmful:
            rates = " ".join(f"optimize.{name}.lr={plans[name].lr / 10:g}" for name in moved)
            text = f"task {self.index + 1}: {check.warning(rates)}"
            self.events.send("notice", text=text, about="adapter", task=self.index)

    def _images(self, among: Indices | None = None) -> BatchSequence:
        """All training images of the task, or some, once, in the view that the method asks for."""
        model, recipe = self.model, self.model.recipe
        if model.method.batches_in == "test" or recipe.views.augment == "none":
            return model.plain_batches(self.loader, among)
        size = model.plain_batch_size(len(self.loader.image_set))

        def make(which: slice) -> Iterator[Batch]:
            views = self.loader.train_batches(size, (recipe.seed, "task", self.index, "inputs"), which)
            return ((images.to(model.device), labels.to(model.device)) for images, labels in views)

        return BatchSequence(make)

    def _steps_in_phase(self) -> int:
        """Steps done since the present sets began to move."""
        first = self.epoch
        while first and self.placement.active(first - 1) == self.placement.active(self.epoch):
            first -= 1
        return (self.epoch - first) * self.steps_per_epoch + self.step

    def _resident(self) -> list[Tensor]:
        """What is allocated before a step begins, beside its batch."""
        states = [leaf for leaf in tree_leaves(self.placement.state()) if isinstance(leaf, Tensor)]
        return [*resident_tensors(self.model), *states]

    def _plan(self, images: Tensor, labels: Tensor) -> None:
        """Fit the steps of this task into the recipe's memory budget."""
        part = self._own_images(min(self.batch_size, len(self.loader.image_set)))
        rows = torch.arange(part.stop - part.start, device=images.device) % len(
            images
        )  # a resumed epoch may start at its last batch
        self.events.send("notice", text=plan_memory(self.model, self.placement, images[rows], labels[rows]))

    def _close_epoch(self) -> None:
        self.events.send(
            "epoch",
            task=self.index,
            epoch=self.epoch,
            number=self.index * self.placement.epochs + self.epoch + 1,
            loss=self.meter.mean_loss,
            accuracy=self.meter.accuracy,
            lr=self.placement.learning_rates(self.epoch),
            seconds=round(self.meter.seconds, 3),
            steps=self.steps_per_epoch,
        )
        self.losses.append(self.meter.mean_loss)
        self.accuracy = self.meter.accuracy
        self.epoch, self.step, self.meter = self.epoch + 1, 0, Meter()

    def _check(self, report: StepReport, number: int) -> None:
        if math.isfinite(report.loss):
            return
        rates = ", ".join(f"{name} {rate:g}" for name, rate in self.placement.learning_rates(self.epoch).items())
        half = self.model.recipe.training.precision == "fp16"
        before = f"mean loss of the epoch so far: {self.meter.mean_loss:.4f}; " if self.meter.images else ""
        raise DivergedError(
            f"the loss became {report.loss} at task {self.index + 1}, epoch {self.epoch + 1}, step {number + 1} "
            f"({before}learning rates: {rates}). Try a smaller learning rate, "
            "a clip (optimize.<group>.clip=1.0), or views.normalize=backbone; check the images for broken values."
            + " In fp16 a gradient may have grown too large: training.precision=bf16."
            * half
        )
