"""A run as it is measured: its data, its backbone, states of its method in float64, and the loss of any task at them.

The loss of an old task is the method's own, as if that task were learned again: its images under the rows of its
classes (`rows="own"`, L_i of the paper's L_old), or under all rows learned until then (`rows="all"`, as in the released
code).
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from zofc import seeds
from zofc.analysis.surface import Point, PointLoss
from zofc.data.loading import Batch
from zofc.data.selection import select_per_class
from zofc.errors import RunError
from zofc.methods import method_class
from zofc.methods.classifier import Classifier
from zofc.recipe import Recipe
from zofc.runfolder import open_run
from zofc.runfolder.checkpoint import Checkpoint, load_checkpoint, load_task
from zofc.training.device import pick_device, set_up
from zofc.training.incremental_model import IncrementalModel
from zofc.training.resolve import AnyStream, open_stream, require_plugins

RowChoice = Literal["own", "all"]
Split = Literal["test", "train"]
PREPARED_BYTES = 2**30  # of prepared images that are kept rather than prepared anew at each evaluation
UNDEFINED_FOR = {  # method: why flatness of old tasks is not defined for it
    "ease": "every task has an adapter of its own, so that old tasks do not depend on what a later one moves",
    "aper": "nothing moves after the first task, and the rows that trained it are dropped",
}


class MeasuredRun(ABC):
    """A run with its data, its backbone and its method; one state is loaded at a time."""

    def __init__(self, path: Path, device: str | None = None, notice: Callable[[str], None] = lambda _: None) -> None:
        self.folder = open_run(path)
        for changed in require_plugins(self.folder):
            notice(changed)
        recipe = self.folder.recipe
        _check_method(recipe)
        self.kept = self.folder.kept_tasks
        checkpoint = self.require_states()
        plain = {"device": device or recipe.training.device, "recompute": False, "compile": False}
        recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update=plain)})
        where = pick_device(recipe.training.device)
        where = torch.device("cpu") if where.type == "mps" else where  # which has no float64
        set_up(where, recipe.training)
        self.progress = checkpoint.progress
        self.recipe, self.model = recipe, IncrementalModel(recipe, where)
        self.model.backbone.vit.double()  # the numbers that it was trained with, in double precision
        self.stream = self._open(notice)

    @abstractmethod
    def require_states(self) -> Checkpoint:
        """The last checkpoint; refuses a run that lacks the states to be measured."""

    def _open(self, notice: Callable[[str], None]) -> AnyStream:
        progress = self.progress
        self.folder.check_weights(self.model.backbone.checksum)
        stream = open_stream(self.recipe, notice, progress)
        if list(stream.classes[: len(progress.classes)]) != progress.classes:
            raise RunError(f"{self.folder} learned other classes than the data now has; was the data set changed?")
        for changed in self.folder.changed_data(stream.checksums):
            notice(changed)
        return stream

    def method_after(self, number: int) -> Classifier:
        """The method as it was after a task, counted from 1, of which the tensors were kept."""
        model, tasks = self.model, self.progress.tasks[:number]
        model.classes, model.method = [], method_class(self.recipe)(model.backbone, self.recipe)
        model.restore(self.progress.classes, tasks, load_task(self.kept[number]))
        method = model.method.double()
        assert isinstance(method, Classifier)
        return method

    def batches(self, number: int, split: Split, per_class: int | None, size: int) -> list[Batch]:
        """The images of a task in the test view, at most so many of a class."""
        stream = self.stream
        if split == "train":
            images = stream.train_set(stream.tasks[number - 1])
        else:
            _, images = list(stream.evaluation(stream.tasks[number - 1]))[number - 1]
        if not len(images):
            raise RunError(f"{self.folder}: the images of task {number} are no longer available")
        rng = seeds.stream(self.recipe.seed, "flatness", split, number)
        images = images.take(select_per_class(images.labels, per_class, rng))
        return list(self.model.loader(images).test_batches(size))


class KeptRun(MeasuredRun):
    """A run that kept its tensors after each task."""

    def require_states(self) -> Checkpoint:
        """The last checkpoint, if tasks were kept."""
        checkpoint = load_checkpoint(self.folder)
        if checkpoint is None or not self.kept:
            raise RunError(
                f"{self.folder} did not keep its tasks (a checkpoint holds the last one only); run it again with them: "
                f"zofc run {shlex.quote(str(self.folder.recipe_file))} training.keep_tasks=true --again; or, for a run "
                "with a journal, measure inside of its tasks: zofc flatness RUN --along STEPS"
            )
        return checkpoint

    def tensors_after(self, number: int, like: Point) -> dict[str, Tensor]:
        """The values that the tensors of a point have after a task; those that it does not have are left out."""
        kept = load_task(self.kept[number])
        return {name: kept[name].to(value) for name, value in like.items() if name in kept}


def _check_method(recipe: Recipe) -> None:
    name, kind = recipe.method.name, method_class(recipe)
    why = UNDEFINED_FOR.get(name)
    if not issubclass(kind, Classifier) or not kind.group_names:
        why = "it trains nothing"
    if why:
        raise RunError(f"flatness of old tasks is not defined for '{name}': {why}")
    if recipe.data.joint:
        raise RunError("a joint run has one task, and so no old one whose loss could rise")


def repeat_task(method: Classifier, task: int, seen: int, rows: RowChoice) -> Classifier:
    """The method as if `task` were learned again after `seen` tasks: its loss is that task's. Tensors are shared."""
    view = copy(method)
    view.tasks = [*method.tasks[:seen], method.tasks[task - 1]]
    masked = method.recipe.method.model_copy(update={"mask": rows == "own"})
    view.recipe = method.recipe.model_copy(update={"method": masked})
    return view


def _batch_loss(method: Classifier, view: Classifier, batch: Batch, prepared: Any, point: Point) -> Tensor:
    """The loss of a batch at a point; its images are prepared again if that was not kept, to save memory."""
    features = method.features(point, method.prepare(batch[0]) if prepared is None else prepared)
    return view.loss(point, features, batch[1])


def task_losses(
    method: Classifier, batches: dict[int, list[Batch]], seen: int, rows: RowChoice
) -> dict[int, list[tuple[PointLoss, int]]]:
    """The loss of each task at a state, as a function of those of its tensors that a point has."""
    held = 0
    losses: dict[int, list[tuple[PointLoss, int]]] = {}
    for task, some in batches.items():
        view = repeat_task(method, task, seen, rows)
        losses[task] = []
        for images, labels in some:
            with torch.no_grad():
                prepared = method.prepare(images)
            held += sum(leaf.nbytes for leaf in tree_leaves(prepared) if isinstance(leaf, Tensor))
            kept = prepared if held <= PREPARED_BYTES else None
            losses[task].append((partial(_batch_loss, method, view, (images, labels), kept), len(labels)))
    return losses


def parameters(method: Classifier, over: str, tasks: Sequence[int], rows: RowChoice) -> dict[str, Tensor]:
    """The tensors that a measurement is about: what the current task moves of `peft`, and what the losses of `tasks`
    read of the head, old rows included. {} where the current task moves no such group."""
    moving: dict[str, Tensor] = {}
    if "peft" in over.split("+"):
        peft = method.groups().get("peft")
        if peft is None:
            return {}
        moving |= peft
    if "head" in over.split("+"):
        for task in tasks:
            view = repeat_task(method, task, len(method.tasks), rows)
            moving |= view.named(view.head.moving_names(view.in_loss), "head.")
    return {name: value.detach() for name, value in moving.items()}
